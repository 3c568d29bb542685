"""Read tables in pieces, encode their columns as inputs, and make data sets of them."""

from __future__ import annotations

import codecs
import csv
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Annotated, Any, NamedTuple, Protocol

import numpy as np
from pydantic import Field

from ps_cluster.config.datasets import Contents, OwnDataSettings
from ps_cluster.config.objectives import WEIGHT
from ps_cluster.data.packed import Moments
from ps_cluster.data.targets import Targets, classes_by_name, contents_of, split_of, targets_of
from ps_cluster.errors import did_you_mean
from ps_cluster.files.untrusted import open_regular
from ps_cluster.files.values import Malformed, one_line

Types = Mapping[str, Any]
"""Name of a column → type of pyarrow."""


def wide(kind: Any) -> Any:
    """Return the type that also holds what other rows of such a column may have: whole numbers may get a fraction."""
    import pyarrow

    return pyarrow.float64() if pyarrow.types.is_integer(kind) else kind


def _plain(kind: Any) -> Any:
    """Return the type of the values: text is one type, and so is a column in which all are missing."""
    import pyarrow
    from pyarrow import types

    if types.is_dictionary(kind):
        return _plain(kind.value_type)
    texts = (types.is_null, types.is_large_string, types.is_string_view)
    return pyarrow.string() if any(test(kind) for test in texts) else kind


def _is_like(own: Any, wanted: Any) -> bool:
    """Return whether values mean the same as another type: numbers in one table may not be dates in the other."""
    from pyarrow import types

    if _plain(own) == wanted or types.is_null(own) or types.is_string(wanted):  # any code is a name
        return True
    return any(
        any(test(own) for test in alike) and any(test(wanted) for test in alike)
        for alike in ((types.is_integer, types.is_floating, types.is_decimal), (types.is_temporal,))
    )


# Read the columns of CSV and Parquet files in pieces.

MOST_COLUMNS = 30_000  # pyarrow takes 10 kB for each
_FIRST_LINE_BYTES = 2**22
_DECIMALS_BYTES = 2**16  # that are looked through for numbers with a decimal comma
_BEFORE, _BEHIND = rb'(?:^|(?<=[;\t\n"]))[-+]?', rb'(?=[;\t\r\n"]|$)'
_DECIMAL_COMMA, _DECIMAL_POINT = (re.compile(_BEFORE + rb"(\d+" + mark + rb"\d+)" + _BEHIND) for mark in (b",", rb"\."))
_THOUSANDS = re.compile(rb"\d{1,3},\d{3}")
_BLOCK_BYTES = 2**24  # of a CSV file that are read together; types are taken from the first
BATCH_ROWS = 2**16


class PiecewiseTable(Protocol):
    """A table that is read in pieces. `columns`: name → type of pyarrow."""

    columns: dict[str, Any]

    def batches(self, columns: Sequence[str]) -> Iterator[Any]:
        """Yield record batches of pyarrow, with these columns in this order, from the first row to the last."""


class CsvTable:
    """A CSV file with a line of names; separated by commas, semicolons or tabs, whatever that line has most of.

    Attributes:
      has_decimal_commas: whether its numbers do, where semicolons or tabs separate them.
    """

    def __init__(self, path: Path, types: Mapping[str, Any]):
        """Look at the beginning of a file. `types`: those of columns that are known."""
        import pyarrow

        self._path = path
        with open_regular(path) as file:
            first = file.readline(_FIRST_LINE_BYTES)
            next_lines = file.read(_DECIMALS_BYTES)
        if first.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
            raise Malformed(f"'{path.name}' is text in UTF-16: save it as UTF-8")
        if not first.strip():
            raise Malformed(f"'{path.name}' is empty: its first line has to name the columns")
        if len(first) == _FIRST_LINE_BYTES:
            raise Malformed(f"the first line of '{path.name}' has more than {_FIRST_LINE_BYTES:,} bytes")
        self._delimiter = max(",;\t", key=lambda sign: first.count(sign.encode()))
        self.has_decimal_commas = self._delimiter != "," and _has_decimal_commas(next_lines)
        self._names = next(csv.reader([first.decode("utf-8-sig", "replace")], delimiter=self._delimiter))
        _check_columns(path, len(self._names))
        with self._open(types) as reader:
            found = reader.schema
        if len(set(found.names)) < len(found.names):
            raise Malformed(f"'{path.name}' has two columns of one name: {one_line(', '.join(found.names), 300)}")
        # A later row may have what the first ones don't: a fraction, or a text.
        plain = {pyarrow.null(): pyarrow.string()}
        self.columns = {field.name: plain.get(field.type, field.type) for field in found}

    def batches(self, columns: Sequence[str]) -> Iterator[Any]:
        with self._open({name: self.columns[name] for name in columns}, columns) as reader:
            yield from reader

    @contextmanager
    def _open(self, types: Mapping[str, Any], columns: Sequence[str] = ()) -> Iterator[Any]:
        from pyarrow import csv as arrow

        with (
            arrow_errors(f"'{self._path.name}'", self._names),
            _arrow_file(self._path) as file,
            arrow.open_csv(
                file,
                arrow.ReadOptions(block_size=_BLOCK_BYTES),
                arrow.ParseOptions(delimiter=self._delimiter, newlines_in_values=True),
                arrow.ConvertOptions(
                    column_types={name: wide(kind) for name, kind in types.items()},
                    include_columns=list(columns),
                    strings_can_be_null=True,
                    decimal_point="," if self.has_decimal_commas else ".",
                ),
            ) as reader,
        ):
            yield reader


def _has_decimal_commas(lines: bytes) -> bool:
    """Return whether numbers in lines of a CSV file have a decimal comma, and none a point; 1,234 may be a thousand."""
    found = _DECIMAL_COMMA.findall(lines)
    return not all(map(_THOUSANDS.fullmatch, found)) and not _DECIMAL_POINT.search(lines)


class ArrowTable:
    """A table whose source knows the types of its columns."""

    def __init__(self, own: Types, wanted: Types, what: str, read: Callable[[list[str]], Iterator[Any]]):
        """Choose the types: as `wanted`, where it names a column.

        Args:
          what: the table, for messages.
          read: returns record batches of some columns in their own types.
        Raises:
          Malformed: a column can't get the type that is wanted.
        """
        self._what, self._read = what, read
        self.columns = {name: wanted.get(name, _plain(kind)) for name, kind in own.items()}
        for name, kind in own.items():
            if not _is_like(kind, found := self.columns[name]):
                raise Malformed(
                    f"the column '{name}' of {what} is {kind}, and the table before has {found}: save both as one type"
                )

    def batches(self, columns: Sequence[str]) -> Iterator[Any]:
        """Yield the rows. Raises Malformed for a value that the type of its column does not have."""
        import pyarrow

        for batch in self._read(list(columns)):
            yield pyarrow.RecordBatch.from_arrays([self._typed(batch, name) for name in columns], list(columns))

    def _typed(self, batch: Any, name: str) -> Any:
        import pyarrow

        column, kind = batch.column(name), self.columns[name]
        try:
            return column if column.type == kind else column.cast(wide(kind))
        except pyarrow.ArrowException as error:
            told = one_line(str(error), 200)
            raise Malformed(f"the column '{name}' of {self._what} can't be read as {kind}: {told}") from error


def _parquet_table(path: Path, types: Types) -> ArrowTable:
    """Open a Parquet file. `types`: those of columns that are known."""
    from pyarrow.parquet import ParquetFile

    what = f"'{path.name}'"

    def read(columns: list[str]) -> Iterator[Any]:
        with arrow_errors(what), _arrow_file(path) as file:
            yield from ParquetFile(file).iter_batches(BATCH_ROWS, columns=columns)

    with arrow_errors(what), _arrow_file(path) as file:
        parquet = ParquetFile(file)
        _check_columns(path, parquet.metadata.num_columns)
        own = {field.name: field.type for field in parquet.schema_arrow}
    return ArrowTable(own, types, what, read)


@contextmanager
def _arrow_file(path: Path) -> Iterator[Any]:
    """Open a file as Arrow's own.

    Arrow's threads may still read when Python ends. One of Python's would abort the process then, or never let it end
    (apache/arrow#34314, #50482).
    """
    from pyarrow import OSFile

    with open_regular(path) as file, OSFile(f"/proc/self/fd/{file.fileno()}") as own:
        yield own


TABLES: dict[str, Callable[[Path, Mapping[str, Any]], PiecewiseTable]] = {".csv": CsvTable, ".parquet": _parquet_table}
"""Ending of a file's name → how it is read."""


def open_tables(files: Mapping[str, Path], text: Sequence[str]) -> dict[str, PiecewiseTable]:
    """Return split → table. All have the types of the first.

    Args:
      text: columns of names, even if they look like numbers.
    """
    import pyarrow

    types: dict[str, Any] = {name: pyarrow.string() for name in text}
    tables = {}
    for split, file in files.items():
        if (ending := file.suffix.lower()) not in TABLES:
            raise Malformed(f"the name '{file.name}' ends in none of {', '.join(TABLES)}")
        tables[split] = TABLES[ending](file, types)
        types = tables[split].columns
    return tables


def _check_columns(path: Path, columns: int) -> None:
    if columns > MOST_COLUMNS:
        raise Malformed(
            f"'{path.name}' has {columns:,} columns, of at most {MOST_COLUMNS:,}: save them as an .npy array"
        )


@contextmanager
def arrow_errors(what: str, names: Sequence[str] = ()) -> Iterator[None]:
    """Raise Malformed for what pyarrow can't read. `names`: of the columns, which pyarrow numbers."""
    import pyarrow

    try:
        yield
    except MemoryError:  # pyarrow's too is one of its own errors
        raise
    except (pyarrow.ArrowException, UnicodeDecodeError) as error:
        by_number = {f"#{number}": f"'{name}'" for number, name in enumerate(names)}
        text = re.sub(
            r"(?<=CSV column )#\d+", lambda found: by_number.get(found[0], found[0]), one_line(str(error), 300)
        )
        hint = "; a column of names is one that data.categorical lists" if "conversion error" in text else ""
        raise Malformed(f"{what} can't be read: {text}{hint}") from error


# Encode columns of a table as inputs: numbers are standardised, categories become codes, both by the training rows.

MOST_CATEGORIES = 100_000  # of a column


class Encoding:
    """The encoding of columns as numbers.

    Attributes:
      content: that of `TableEncoding` (runs/rows.py), which a packed table keeps.
    """

    def __init__(self, content: Mapping[str, Any]):
        import pyarrow

        self.content = content
        numbers, categories = content["numbers"], content["categories"]
        self.numbers, self.categories = ([column["name"] for column in part] for part in (numbers, categories))
        self.values: list[list[str]] = [column["values"] for column in categories]
        self._values = [pyarrow.array(values, pyarrow.string()) for values in self.values]
        self._mean, self._std = (np.array([column[of] for column in numbers]) for of in ("mean", "std"))

    def arrays(self, table: PiecewiseTable, rows: int) -> dict[str, Streamed]:
        """Return the inputs of a table's rows: numbers float32 [N, k] and categories int32 [N, m], those that there are."""
        found = {}
        if self.numbers:
            read = partial(_encoded, table, self.numbers, self._as_numbers)
            found["numbers"] = Streamed("float32", (rows, len(self.numbers)), read)
        if self.categories:
            read = partial(_encoded, table, self.categories, self._as_codes)
            found["categories"] = Streamed("int32", (rows, len(self.categories)), read)
        return found

    def encoded(self, table: PiecewiseTable) -> Iterator[dict[str, np.ndarray]]:
        """Yield the inputs of all rows of another table, a piece at a time.

        Raises:
          Malformed: a column is missing, or has times where the training's had none.
        """
        from pyarrow import types

        columns = [*self.numbers, *self.categories]
        if missing := [name for name in columns if name not in table.columns]:
            raise Malformed(f"there is no column '{missing[0]}', which the network was trained on")
        for column in self.content["numbers"]:
            name, kind = column["name"], table.columns[column["name"]]
            if types.is_temporal(kind) != column["is_time"] and not types.is_string(kind):
                was = "dates or times" if column["is_time"] else "numbers"
                raise Malformed(f"the column '{name}' is {kind}, and the network was trained on {was}: give those")
        for batch in table.batches(columns):
            numbers = {"numbers": self._as_numbers(batch)} if self.numbers else {}
            yield numbers | ({"categories": self._as_codes(batch)} if self.categories else {})

    def _as_numbers(self, batch: Any) -> np.ndarray:
        """Return the columns of numbers, standardised: float32 [B, k]."""
        with np.errstate(over="ignore"):  # told below
            values = ((_floats(batch, self.numbers) - self._mean) / self._std).astype(np.float32)
        _check_finite(self.numbers, ~np.isinf(values).any(0))
        without_gaps: np.ndarray = np.nan_to_num(values, nan=0.0)
        return without_gaps

    def _as_codes(self, batch: Any) -> np.ndarray:
        """Return the columns of categories as codes: int32 [B, m]."""
        import pyarrow.compute

        codes = []
        for name, values in zip(self.categories, self._values):
            texts = batch.column(name).cast(pyarrow.string())
            found = pyarrow.compute.index_in(texts, value_set=values)
            codes.append(found.fill_null(-1).to_numpy(zero_copy_only=False))
        return (np.stack(codes, 1) + 1).astype(np.int32)


def _encoded(
    table: PiecewiseTable, columns: Sequence[str], encode: Callable[[Any], np.ndarray]
) -> Iterator[np.ndarray]:
    """Return all rows of some columns, encoded, in pieces."""
    return map(encode, table.batches(columns))


def learned(table: PiecewiseTable, kept: np.ndarray | None, roles: Roles) -> Encoding:
    """Read the rows to train on once, for the statistics of columns of numbers and the values of those of categories.

    Args:
      kept: which rows of the table those are, bool [N]; None for all.

    Raises:
      Malformed: a column has infinite values, or too many categories.
    """
    import pyarrow

    numbers, categories = roles.numbers, roles.categories
    seen: list[set[str]] = [set() for _ in categories]
    moments, at = Moments(), 0
    for batch in table.batches([*numbers, *categories]):
        end = at + batch.num_rows
        mine = batch if kept is None else batch.filter(pyarrow.array(kept[at:end]))
        at = end
        values = _floats(mine, numbers)
        moments.add(values, ~np.isnan(values))
        for name, found in zip(categories, seen):
            found.update(mine.column(name).cast(pyarrow.string()).unique().drop_null().to_pylist())
            if len(found) > MOST_CATEGORIES:
                raise Malformed(
                    f"the column '{name}' has more than {MOST_CATEGORIES:,} different values: name it in data.leave_out"
                )
    mean, std = (np.broadcast_to(of, len(numbers)) for of in (moments.mean, moments.std))
    _check_finite(numbers, np.isfinite(mean) & np.isfinite(std))
    times = [pyarrow.types.is_temporal(table.columns[name]) for name in numbers]
    columns = zip(numbers, mean.tolist(), np.where(std == 0, 1, std).tolist(), times)
    return Encoding(
        {
            "target": roles.target,
            "numbers": [
                {"name": name, "mean": middle, "std": width, "is_time": is_time}
                for name, middle, width, is_time in columns
            ],
            "categories": [{"name": name, "values": sorted(values)} for name, values in zip(categories, seen)],
        }
    )


def _check_finite(columns: Sequence[str], finite: np.ndarray) -> None:
    """Raise Malformed where a column is not finite. `finite`: bool [k]."""
    if not finite.all():
        raise Malformed(f"the column '{columns[int(np.argmin(finite))]}' has infinite or too large values")


def _floats(batch: Any, names: Sequence[str]) -> np.ndarray:
    """Return columns as float64 [B, k]; a missing value is NaN."""
    found = np.empty((batch.num_rows, len(names)))
    for place, name in enumerate(names):
        found[:, place] = as_floats(batch.column(name))
    return found


_SECONDS = {"s": 1.0, "ms": 1e-3, "us": 1e-6, "ns": 1e-9}


def as_floats(column: Any) -> np.ndarray:
    """Return an array of pyarrow as float64 [B]; dates and times in seconds, a missing value as NaN."""
    import pyarrow

    seconds = 1.0
    if pyarrow.types.is_temporal(kind := column.type):
        days = pyarrow.types.is_date32(kind)
        seconds = 86_400.0 if days else _SECONDS["ms" if pyarrow.types.is_date64(kind) else kind.unit]
        column = column.cast(pyarrow.int32() if kind.bit_width == 32 else pyarrow.int64())
    numbers: np.ndarray = column.cast(pyarrow.float64(), safe=False).to_numpy(zero_copy_only=False)
    return numbers * seconds


class Streamed:
    """Rows that can only be read from the first to the last. Reading goes on where it was, or begins again."""

    _pieces: Iterator[np.ndarray]  # that come
    _piece: np.ndarray  # the one that was read last
    _first: int  # the place of its first row

    def __init__(self, dtype: str, shape: tuple[int, ...], read: Callable[[], Iterator[np.ndarray]]):
        """Keep how to read. `read` returns all rows [N, ...] from the first on, in pieces of any length."""
        self.dtype, self.shape = np.dtype(dtype), shape
        self._read = read
        self._forget()

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, part: slice | np.ndarray) -> np.ndarray:
        """Return some rows. `part`: a slice, or their places int64 [M], ascending."""
        places = np.arange(*part.indices(len(self))) if isinstance(part, slice) else part
        if len(places) and places[0] < self._first:
            self._forget()
        taken = [self._piece[:0]]
        while len(places):
            behind = self._first + len(self._piece)
            here = int(np.searchsorted(places, behind))
            taken.append(self._piece[places[:here] - self._first])
            places = places[here:]
            if len(places):
                self._first, self._piece = behind, next(self._pieces)
        return np.concatenate(taken)

    def _forget(self) -> None:
        self._first, self._piece = 0, np.empty((0, *self.shape[1:]), self.dtype)
        self._pieces = self._read()


# Data sets of tables: a column to predict, and columns to predict it from.

MOST_WHOLE_CLASSES = 100  # different whole numbers that are taken for classes
_MOST_TEXTS = 100  # different texts that are categories, even if hardly one comes twice

Names = Annotated[tuple[str, ...], Field(strict=False)]  # YAML has a list


class TableSettings(OwnDataSettings):
    """Settings of tables."""

    target: str | None = Field(default=None, description="The column to predict.")
    categorical: Names = Field(
        default=(), description="Columns of numbers that are names, such as codes of places; text with many values."
    )
    leave_out: Names = Field(default=(), description="Columns that are not used.")
    weight: str | None = Field(default=None, description="The column that says how much a row counts.")


class Roles(NamedTuple):
    """The roles of a table's columns: target, weight, and inputs that are numbers or categories."""

    target: str
    weight: str | None
    numbers: list[str]
    categories: list[str]


def contents_of_tables(tables: Mapping[str, PiecewiseTable], settings: TableSettings) -> Contents:
    """Return the contents of a data set of tables, "train" and perhaps "test".

    Raises:
      Malformed: a column is missing, of a wrong type, or can't be encoded.
    """
    roles = _roles(tables["train"].columns, settings)
    _check_same(tables, roles)
    targets = _targets(tables, roles.target, settings.objective)
    split, examples = split_of(targets, settings.held_out), len(targets.train)
    kept = None if split is None else np.isin(np.arange(examples), split.train)
    encoding = learned(tables["train"], kept, roles)
    _check_free_text(encoding, examples if split is None else len(split.train), settings)
    rows: list[dict[str, Any]] = []
    for table, target in zip(tables.values(), (targets.train, targets.test)):
        assert target is not None  # it was read above
        weights = {WEIGHT: _column(table, roles.weight)} if roles.weight else {}
        rows.append(encoding.arrays(table, len(target)) | weights)
    contents = contents_of(targets, split, *rows)
    inputs = dict(contents.spec.inputs)
    if "categories" in inputs:
        inputs["categories"] = replace(inputs["categories"], codes=tuple(len(one) + 1 for one in encoding.values))
    return replace(contents, spec=replace(contents.spec, inputs=inputs), encoding=encoding.content)


def _check_free_text(encoding: Encoding, rows: int, settings: TableSettings) -> None:
    """Raise Malformed for columns of text that hardly come twice: as categories they tell nothing of other rows."""
    different = dict(zip(encoding.categories, map(len, encoding.values)))
    free = [name for name, texts in different.items() if texts > max(_MOST_TEXTS, rows / 2)]
    if free := [name for name in free if name not in settings.categorical]:
        raise Malformed(
            f"the column '{free[0]}' has {different[free[0]]:,} different texts in {rows:,} training rows, and free text is "
            f"not read: leave it out (--set 'data.leave_out=[{one_line(', '.join([*settings.leave_out, *free]), 300)}]'), or "
            "name it in data.categorical if each text is a category"
        )


def _roles(columns: Mapping[str, Any], settings: TableSettings) -> Roles:
    known = one_line(", ".join(columns), 600)
    if settings.target is None:
        raise Malformed(f"data.target is missing: say by --target which column to predict, of {known}")
    named = {"target": (settings.target,), "weight": (settings.weight,) if settings.weight else ()}
    for setting, names in {**named, "categorical": settings.categorical, "leave_out": settings.leave_out}.items():
        if unknown := [name for name in names if name not in columns]:
            hint = did_you_mean(unknown[0], columns).strip()
            raise Malformed(
                f"data.{setting}: there is no column '{unknown[0]:.100}', of {known}{f': {hint}' if hint else ''}"
            )
    if nameless := [name for name in columns if not name.strip() or not name.isprintable()]:
        raise Malformed(
            f"a column has the name {nameless[0]!r:.100}, which can't be told: rename it (pandas writes none with index=False)"
        )
    not_inputs = {settings.target, settings.weight, *settings.leave_out}
    inputs = {name: kind for name, kind in columns.items() if name not in not_inputs}
    categories = [name for name, kind in inputs.items() if name in settings.categorical or _is_category(name, kind)]
    if not inputs:
        raise Malformed(f"there is no column but '{settings.target}': nothing to predict it from")
    return Roles(settings.target, settings.weight, [name for name in inputs if name not in categories], categories)


def _is_category(name: str, kind: Any) -> bool:
    """Return whether a column holds names. Raises Malformed if it holds neither names nor numbers."""
    from pyarrow import types

    if types.is_dictionary(kind):
        kind = kind.value_type
    if any(test(kind) for test in (types.is_boolean, types.is_string, types.is_large_string, types.is_null)):
        return True
    if types.is_binary(kind):
        raise Malformed(
            f"the column '{name}' is no text in UTF-8: save the file as UTF-8, or name it in data.leave_out"
        )
    if not any(test(kind) for test in (types.is_integer, types.is_floating, types.is_decimal, types.is_temporal)):
        raise Malformed(f"the column '{name}' is {kind}, neither numbers nor text: name it in data.leave_out")
    return False


def _check_same(tables: Mapping[str, PiecewiseTable], roles: Roles) -> None:
    used = [roles.target, *roles.numbers, *roles.categories, *([roles.weight] if roles.weight else [])]
    for split, table in tables.items():
        if missing := [name for name in used if name not in table.columns]:
            raise Malformed(f"the {split} table has no column '{missing[0]}', which the training table has")


def _column(table: PiecewiseTable, name: str) -> np.ndarray:
    """Return a whole column as float64."""
    parts = [as_floats(batch.column(name)) for batch in table.batches([name])]
    return np.concatenate([*parts, np.empty(0)])


def _targets(tables: Mapping[str, PiecewiseTable], name: str, objective: str) -> Targets:
    """Return the targets: text, and few different whole numbers, are classes; other numbers are to be predicted."""
    import pyarrow

    kind = tables["train"].columns[name]
    is_text = _is_category(name, kind)
    read = _texts if is_text else _column
    found = {split: read(table, name) for split, table in tables.items()}
    for split, values in found.items():
        if not len(values):
            raise Malformed(f"the {split} table has no rows")
        if missing := np.count_nonzero(values == "" if is_text else np.isnan(values)):
            raise Malformed(
                f"the column '{name}' has no value in {missing:,} of {len(values):,} rows: fill or remove them"
            )
    if objective == "auto":
        train, is_integer = found["train"], not is_text and pyarrow.types.is_integer(kind)
        few_whole = is_integer and (train % 1 == 0).all() and len(np.unique(train)) <= MOST_WHOLE_CLASSES
        objective = "classification" if is_text or few_whole else "regression"
    if objective == "classification":
        if not is_text and (large := max(np.abs(values).max() for values in found.values())) >= 2**53:
            raise Malformed(
                f"the column '{name}' has whole numbers such as {large:.0f}, which float64 does not tell apart: name it in "
                "data.categorical"
            )
        return classes_by_name(_short(found["train"]), _short(found["test"]) if "test" in found else None)
    if objective == "multi-label":
        raise Malformed("data.objective=multi-label needs several columns to predict, and a table has one")
    return targets_of(found["train"], found.get("test"), objective)


def _texts(table: PiecewiseTable, name: str) -> np.ndarray:
    """Return a whole column as text; "" where it is missing."""
    import pyarrow

    parts = [
        batch.column(name).cast(pyarrow.string()).fill_null("").to_numpy(zero_copy_only=False)
        for batch in table.batches([name])
    ]
    return np.concatenate([part.astype(str) for part in parts] or [np.empty(0, str)])


def _short(values: np.ndarray) -> np.ndarray:
    """Return whole numbers as such, so that their names have no fraction."""
    return values.astype(np.int64) if values.dtype.kind == "f" and (values % 1 == 0).all() else values
