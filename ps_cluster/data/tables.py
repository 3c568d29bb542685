"""Encode the columns of tables as inputs, and make data sets of them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Annotated, Any, NamedTuple

import numpy as np
from pydantic import Field

from ps_cluster.config.datasets import Contents, OwnDataSettings
from ps_cluster.config.objectives import WEIGHT
from ps_cluster.data.packed import Moments
from ps_cluster.data.table_files import IN_AN_INPUT, IN_THE_TARGET, PiecewiseTable, told_of_value
from ps_cluster.data.targets import (
    MOST_WITH_GAPS,
    Targets,
    classes_by_name,
    contents_of,
    is_binary,
    split_of,
    targets_of,
)
from ps_cluster.errors import did_you_mean
from ps_cluster.files.values import Malformed, is_decimal, one_line

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
    missing = dict.fromkeys([*numbers, *categories], 0)
    moments, at = Moments(), 0
    for batch in table.batches([*numbers, *categories]):
        end = at + batch.num_rows
        mine = batch if kept is None else batch.filter(pyarrow.array(kept[at:end]))
        at = end
        values = _floats(mine, numbers)
        moments.add(values, ~np.isnan(values))
        for name, count in zip(numbers, np.isnan(values).sum(0).tolist()):
            missing[name] += count
        for name, found in zip(categories, seen):
            missing[name] += mine.column(name).null_count
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
                {"name": name, "mean": middle, "std": width, "is_time": is_time, "missing": missing[name]}
                for name, middle, width, is_time in columns
            ],
            "categories": [
                {"name": name, "values": sorted(values), "missing": missing[name]}
                for name, values in zip(categories, seen)
            ],
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

_NUMBERS_FOR_EACH_TEXT = 10  # of the different values of a column: with so many, it is one of numbers
_MISSING = frozenset({"?", "na", "n/a", "-", "null", "."})  # marks of a missing value, in small letters
_FEWEST_ROWS = 20  # in which values that are all different tell something of the column
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
    targets = _targets(tables, roles.target, settings)
    split, examples = split_of(targets, settings.held_out), len(targets.train)
    kept = None if split is None else np.isin(np.arange(examples), split.train)
    encoding = learned(tables["train"], kept, roles)
    rows_to_train_on = examples if split is None else len(split.train)
    for name, texts in zip(encoding.categories, encoding.values):
        _check_not_numbers(tables["train"], name, texts, rows_to_train_on, settings)
    _check_free_text(encoding, rows_to_train_on, settings)
    rows: list[dict[str, Any]] = []
    for table, target in zip(tables.values(), (targets.train, targets.test)):
        assert target is not None  # it was read above
        weights = {WEIGHT: _column(table, roles.weight)} if roles.weight else {}
        rows.append(encoding.arrays(table, len(target)) | weights)
    contents = contents_of(targets, split, *rows)
    inputs = dict(contents.spec.inputs)
    if "categories" in inputs:
        inputs["categories"] = replace(inputs["categories"], codes=tuple(len(one) + 1 for one in encoding.values))
    notes = (*contents.notes, *_told_of_identifiers(tables["train"], roles, settings))
    return replace(contents, spec=replace(contents.spec, inputs=inputs), encoding=encoding.content, notes=notes)


def _told_of_identifiers(table: PiecewiseTable, roles: Roles, settings: TableSettings) -> Iterator[str]:
    """Yield a line about columns of whole numbers or texts that are inputs and have another value in each row."""
    from pyarrow import types

    whole = [name for name in roles.numbers if types.is_integer(table.columns[name])]
    found = all_different(table, [*whole, *(name for name in roles.categories if name not in settings.categorical)])
    if found:
        named = one_line(", ".join(f"'{name}'" for name in found), 300)
        columns, have, like, use, them = (
            ("columns", "have", "identifiers", "They are used as inputs", "them")
            if len(found) > 1
            else ("column", "has", "an identifier", "It is used as an input", "it")
        )
        yield (
            f"the {columns} {named} {have} a different value in every row, like {like}. {use}. To leave {them} out: "
            f"--set 'data.leave_out=[{one_line(', '.join([*settings.leave_out, *found]), 300)}]'"
        )


def all_different(table: PiecewiseTable, names: Sequence[str]) -> list[str]:
    """Return the columns that have no value twice and none missing, in a table of at least `_FEWEST_ROWS` rows."""
    import pyarrow
    from pyarrow import compute

    parts: dict[str, list[Any]] = {name: [] for name in names}
    rows = 0
    for batch in table.batches(names) if names else ():
        rows += batch.num_rows
        for name in list(parts):
            parts[name].append(batch.column(name))
            if batch.column(name).null_count or compute.count_distinct(parts[name][-1]).as_py() < batch.num_rows:
                del parts[name]
        if not parts:
            return []
    whole = {name: pyarrow.chunked_array(columns) for name, columns in parts.items()} if rows >= _FEWEST_ROWS else {}
    return [name for name, column in whole.items() if compute.count_distinct(column).as_py() == rows]


def _check_not_numbers(
    table: PiecewiseTable, name: str, texts: Iterable[str], rows: int, settings: TableSettings
) -> None:
    """Raise Malformed for a column of text that seems to hold numbers, and marks of missing values or one typing error.

    Other columns of numbers and texts are categories, such as codes of which one is "other".

    Args:
      texts: the different values of the column in so many `rows`.
    """
    if name in settings.categorical or not table.guesses_types:
        return
    others = [text for text in texts if text and not is_decimal(text.strip())]
    numbers = sum(1 for text in texts if text) - len(others)
    if not others or numbers < _NUMBERS_FOR_EACH_TEXT * len(others):
        return
    are_marks = all(text.strip().lower() in _MISSING for text in others)
    if are_marks or len(others) == 1 and numbers > rows / 2:
        advice = IN_THE_TARGET if name == settings.target else IN_AN_INPUT
        raise Malformed(told_of_value(name, "holds numbers", others[0], table.place(name, others[0]), advice))


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


def _targets(tables: Mapping[str, PiecewiseTable], name: str, settings: TableSettings) -> Targets:
    """Return the targets: text, and few different whole numbers, are classes; other numbers are to be predicted."""
    import pyarrow

    kind = tables["train"].columns[name]
    is_text = _is_category(name, kind)
    read = _texts if is_text else _column
    try:
        found = {split: read(table, name) for split, table in tables.items()}
    except Malformed as error:  # a text in a row behind those that the type is guessed by
        raise Malformed(str(error).replace(IN_AN_INPUT, IN_THE_TARGET)) from error
    for split, values in found.items():
        if not len(values):
            raise Malformed(f"the {split} table has no rows")
        if missing := np.count_nonzero(values == "" if is_text else np.isnan(values)):
            raise Malformed(
                f"the column '{name}' has no value in {missing:,} of {len(values):,} rows: fill or remove them"
            )
    if is_text:
        texts = np.unique(found["train"]).tolist()
        _check_not_numbers(tables["train"], name, texts, len(found["train"]), settings)
    objective = settings.objective
    if objective == "auto":
        train, is_integer = found["train"], not is_text and pyarrow.types.is_integer(kind)
        few_whole = is_integer and (train % 1 == 0).all() and len(np.unique(train)) <= MOST_WITH_GAPS
        objective = "classification" if is_text or few_whole or is_binary(train) else "regression"
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
