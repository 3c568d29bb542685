"""Read the columns of tables in pieces: from one or more CSV or Parquet files, and from tables of other libraries."""

from __future__ import annotations

import codecs
import contextlib
import csv
import io
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import MappingProxyType

from ps_cluster.data.arrow import BatchReader, Column, DataType, RecordBatch, arrow_csv, arrow_parquet, kinds, pyarrow
from ps_cluster.data.line_files import is_compressed, open_maybe_gzip
from ps_cluster.files.reading import open_regular
from ps_cluster.files.values import Malformed, one_line, reason

Types = Mapping[str, DataType]
"""The types of columns, by the names of the columns."""


def read_type(kind: DataType) -> DataType:
    """Return the type to use for reading a column of type `kind`: float64 for types of integers, else `kind`.

    The type `kind` may have been guessed from the first rows of the column, and later rows may have fractions.
    """
    return pyarrow.float64() if kinds.is_integer(kind) else kind


def _value_type(kind: DataType) -> DataType:
    """Return the type of a column's values: `string` for all types of text, and for a column without values."""
    if kinds.is_dictionary(kind):
        return _value_type(kind.value_type)
    texts = (kinds.is_null, kinds.is_large_string, kinds.is_string_view)
    return pyarrow.string() if any(test(kind) for test in texts) else kind


def _is_compatible(own: DataType, wanted: DataType) -> bool:
    """Return whether a column of type `own` can be read as type `wanted`, e.g. integers as floats, but not as dates."""
    if _value_type(own) == wanted or kinds.is_null(own) or kinds.is_string(wanted):  # any value can be read as text
        return True
    return are_numbers(own, wanted) or (kinds.is_temporal(own) and kinds.is_temporal(wanted))


def are_numbers(*found: DataType) -> bool:
    """Return whether all of these types are types of numbers."""
    return all(kinds.is_integer(kind) or kinds.is_floating(kind) or kinds.is_decimal(kind) for kind in found)


MOST_COLUMNS = 30_000  # pyarrow takes 10 kB for each
_FIRST_LINE_BYTES = 2**22
_DECIMALS_BYTES = 2**16  # bytes after the first line that are searched for numbers with a decimal comma
_BEFORE, _BEHIND = rb'(?:^|(?<=[;\t\n"]))[-+]?', rb'(?=[;\t\r\n"]|$)'
_DECIMAL_COMMA, _DECIMAL_POINT = (re.compile(_BEFORE + rb"(\d+" + mark + rb"\d+)" + _BEHIND) for mark in (b",", rb"\."))
_THOUSANDS = re.compile(rb"\d{1,3},\d{3}")
_BLOCK_BYTES = 2**24  # bytes of a CSV file that are read at once; the types of columns are guessed from the first block
BATCH_ROWS = 2**16


class PiecewiseTable(ABC):
    """A table that is read in pieces."""

    what: str  # its name, for messages
    columns: dict[str, DataType]  # the types of all columns, by name
    declared: Types = MappingProxyType({})  # the types that the file itself declares; empty if it declares none
    untyped: frozenset[str]  # the columns whose type is not known, because all values that were looked at are missing
    guesses_types = False  # whether types are guessed from values, because the file does not declare them
    has_decimal_commas = False  # whether numbers have decimal commas; columns are then separated by semicolons or tabs

    @property
    def parts(self) -> Sequence[PiecewiseTable]:
        """The tables that this table consists of: only itself if it is a single table."""
        return (self,)

    @abstractmethod
    def place(self, column: str, value: str) -> str:
        """Return where `value` first occurs in a column, for messages, e.g. "line 34 of 'cars.csv'"."""

    @abstractmethod
    def batches(self, columns: Sequence[str]) -> Iterator[RecordBatch]:
        """Yield batches with these columns in this order, from the first row to the last."""


class CsvTable(PiecewiseTable):
    """A CSV file whose first line names the columns.

    The columns are separated by the comma, semicolon or tab, whichever is most frequent in the first line. A .tsv file
    is separated by tabs. A file whose name ends in .gz is decompressed.
    """

    guesses_types = True

    def __init__(self, path: Path, types: Types):
        """Read the names of the columns, and guess their types, from the beginning of a file.

        `types`: the types that some columns must have.
        """
        self._path, self.what = path, f"'{path.name}'"
        with open_maybe_gzip(path) as file:
            first = file.readline(_FIRST_LINE_BYTES)
            next_lines = file.read(_DECIMALS_BYTES)
        if first.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
            raise Malformed(f"'{path.name}' is text in UTF-16: save it as UTF-8")
        if not first.strip():
            raise Malformed(f"'{path.name}' is empty: its first line has to name the columns")
        if len(first) == _FIRST_LINE_BYTES:
            raise Malformed(f"the first line of '{path.name}' has more than {_FIRST_LINE_BYTES:,} bytes")
        signs = "\t" if ending_of(path).startswith(".tsv") else ",;\t"
        self._delimiter = max(signs, key=lambda sign: first.count(sign.encode()))
        self.has_decimal_commas = self._delimiter != "," and _has_decimal_commas(next_lines)
        self._names = next(csv.reader([first.decode("utf-8-sig", "replace")], delimiter=self._delimiter))
        _check_columns(path, len(self._names))
        with self._open(types) as reader:
            found = reader.schema
        if len(set(found.names)) < len(found.names):
            raise Malformed(f"'{path.name}' has two columns of the same name: {one_line(', '.join(found.names), 300)}")
        self.untyped = frozenset(field.name for field in found if field.type == pyarrow.null())
        # A later row may have a text where the first rows have nothing.
        plain = {pyarrow.null(): pyarrow.string()}
        self.columns = {field.name: plain.get(field.type, field.type) for field in found}

    def batches(self, columns: Sequence[str]) -> Iterator[RecordBatch]:
        with self._open({name: self.columns[name] for name in columns}, columns) as reader:
            yield from reader

    def place(self, column: str, value: str) -> str:
        at = self._names.index(column)
        with open_maybe_gzip(self._path) as file, io.TextIOWrapper(file, "utf-8-sig", "replace", newline="") as text:
            rows = csv.reader(text, delimiter=self._delimiter)
            with contextlib.suppress(csv.Error):  # a cell that is too long
                for row in rows:
                    if len(row) > at and row[at] == value:
                        return f"line {rows.line_num:,} of {self.what}"
        return self.what

    @contextmanager
    def _open(self, types: Types, columns: Sequence[str] = ()) -> Iterator[BatchReader]:
        with (
            arrow_errors(self.what, self._of_another_type),
            _arrow_file(self._path) as file,
            arrow_csv.open_csv(
                file,
                arrow_csv.ReadOptions(block_size=_BLOCK_BYTES),
                arrow_csv.ParseOptions(delimiter=self._delimiter, newlines_in_values=True),
                arrow_csv.ConvertOptions(
                    column_types={name: read_type(kind) for name, kind in types.items()},
                    include_columns=list(columns),
                    strings_can_be_null=True,
                    decimal_point="," if self.has_decimal_commas else ".",
                ),
            ) as reader,
        ):
            yield reader

    def _of_another_type(self, text: str) -> str | None:
        """Return a better message, with column and line, if pyarrow's message is about a wrong value; else None."""
        if not (found := _INVALID_VALUE.fullmatch(text)):
            return None
        name, value = self._names[int(found["column"])], found["value"]
        kind = "holds numbers" if found["kind"] in ("double", "int64") else f"is read as {found['kind']}"
        return wrong_value_message(name, kind, value, self.place(name, value))


_INVALID_VALUE = re.compile(
    r"In CSV column #(?P<column>\d+): CSV conversion error to (?P<kind>.*): invalid value '(?P<value>.*)'"
)


ADVICE_FOR_INPUT = (
    "leave the cell empty where a value is missing, or name the column in data.categorical if its values are names"
)
ADVICE_FOR_TARGET = "fix or remove these rows, or name the column in data.categorical if its values are names"


def wrong_value_message(column: str, kind: str, value: str, place: str, advice: str = ADVICE_FOR_INPUT) -> str:
    """Return the message about a value that does not fit its column.

    `kind`: what the message says about the column, e.g. "holds numbers".
    """
    return f"the column '{column}' {kind}, but has '{one_line(value, 80)}' in {place}: {advice}"


def _has_decimal_commas(lines: bytes) -> bool:
    """Return whether numbers in lines have decimal commas, and none has a point. Commas as in 1,234 do not count."""
    found = _DECIMAL_COMMA.findall(lines)
    return not all(map(_THOUSANDS.fullmatch, found)) and not _DECIMAL_POINT.search(lines)


class ArrowTable(PiecewiseTable):
    """A table whose source declares the types of its columns."""

    def __init__(self, own: Types, wanted: Types, what: str, read: Callable[[list[str]], Iterator[RecordBatch]]):
        """Choose the types of the columns. Raises Malformed if a column can't have the type that is wanted.

        Args:
          own: the types that the source declares.
          wanted: the types that some columns must have.
          what: the name of the table, for messages.
          read: returns batches of some columns, in the types of the source.
        """
        self.what, self._read = what, read
        self.columns = {name: wanted.get(name, _value_type(kind)) for name, kind in own.items()}
        self.declared = {name: _value_type(kind) for name, kind in own.items() if not kinds.is_null(kind)}
        self.untyped = frozenset(own.keys() - self.declared.keys() - wanted.keys())
        for name, kind in own.items():
            if not _is_compatible(kind, found := self.columns[name]):
                raise Malformed(_other_type_message(name, what, kind, found))

    def place(self, column: str, value: str) -> str:
        row = 0
        for batch in self._read([column]):
            values = batch.column(0).to_pylist()
            if value in values:
                return f"row {row + values.index(value) + 1:,} of {self.what}"
            row += len(values)
        return self.what

    def batches(self, columns: Sequence[str]) -> Iterator[RecordBatch]:
        """Yield the rows. Raises Malformed for a value that can't have the type of its column."""
        for batch in self._read(list(columns)):
            yield pyarrow.RecordBatch.from_arrays([self._typed(batch, name) for name in columns], list(columns))

    def _typed(self, batch: RecordBatch, name: str) -> Column:
        column, kind = batch.column(name), self.columns[name]
        try:
            return column if column.type == kind else column.cast(read_type(kind))
        except pyarrow.ArrowException as error:
            raise Malformed(
                f"the column '{name}' of {self.what} can't be read as {kind}: {reason(error, 200)}"
            ) from error


class JoinedTables(PiecewiseTable):
    """A table that consists of several tables, e.g. files. The rows of each follow those of the table before it."""

    def __init__(self, what: str, parts: Sequence[PiecewiseTable]):
        """Join tables. `what`: their common name, for messages. Raises Malformed if their columns differ."""
        self.what, self._parts = what, parts
        self.columns = parts[0].columns
        self.declared, self.untyped = parts[0].declared, parts[0].untyped
        self.has_decimal_commas = any(part.has_decimal_commas for part in parts)
        self.guesses_types = any(part.guesses_types for part in parts)
        for part in parts[1:]:
            if different := sorted(set(part.columns) ^ set(self.columns)):
                raise Malformed(
                    f"{parts[0].what} and {part.what} are not parts of one table: only one of them has the column "
                    f"'{one_line(different[0], 100)}'; give only the file to train on, or name one file 'train' "
                    "and the other one 'test'"
                )

    @property
    def parts(self) -> Sequence[PiecewiseTable]:
        return self._parts

    def place(self, column: str, value: str) -> str:
        places = ((part, part.place(column, value)) for part in self.parts)
        return next((place for part, place in places if place != part.what), self.what)

    def batches(self, columns: Sequence[str]) -> Iterator[RecordBatch]:
        for part in self.parts:
            yield from part.batches(columns)


def _parquet_table(path: Path, types: Types) -> ArrowTable:
    """Open a Parquet file. `types`: the types that some columns must have."""
    what = f"'{path.name}'"

    def read(columns: list[str]) -> Iterator[RecordBatch]:
        with arrow_errors(what), _arrow_file(path) as file:
            yield from arrow_parquet.ParquetFile(file).iter_batches(BATCH_ROWS, columns=columns)

    with arrow_errors(what), _arrow_file(path) as file:
        parquet = arrow_parquet.ParquetFile(file)
        _check_columns(path, parquet.metadata.num_columns)
        own = {field.name: field.type for field in parquet.schema_arrow}
    return ArrowTable(own, types, what, read)


@contextmanager
def _arrow_file(path: Path) -> Iterator[object]:
    """Open a file as a file object of Arrow.

    Arrow's threads may still read when Python ends. With a file object of Python, that would abort the process or keep
    it from ending (apache/arrow#34314, #50482).
    """
    with open_regular(path) as file, pyarrow.OSFile(f"/proc/self/fd/{file.fileno()}") as own:
        yield pyarrow.CompressedInputStream(own, "gzip") if is_compressed(path) else own


TABLES: Mapping[str, Callable[[Path, Types], PiecewiseTable]] = {
    **dict.fromkeys((".csv", ".tsv", ".csv.gz", ".tsv.gz"), CsvTable),
    ".parquet": _parquet_table,
}
"""The functions that open the files of tables, by the endings of the files' names."""


def ending_of(path: Path) -> str:
    """Return the ending of a file's name if it is that of a table, e.g. ".csv.gz"; else ""."""
    return next((ending for ending in TABLES if path.name.lower().endswith(ending)), "")


def open_tables(files: Mapping[str, Sequence[Path]], text: Sequence[str]) -> dict[str, PiecewiseTable]:
    """Open the files of each split as one table, and return the tables by split. `files`: the files of each split.

    A column has the same type in all tables, namely its type in the first table where it has a value. `text`: columns
    that are read as text, even if they look like numbers.
    """
    types: dict[str, DataType] = {name: pyarrow.string() for name in text}
    tables: dict[str, PiecewiseTable] = {}
    for split, parts in files.items():
        opened = _open_parts(parts, types, text)
        what = f"{opened[0].what} and {len(opened) - 1:,} more"
        tables[split] = opened[0] if len(opened) == 1 else JoinedTables(what, opened)
        for name, kind in tables[split].columns.items():
            types.setdefault(name, kind)
    return tables


def columns_of(file: Path) -> Types:
    """Return the types of the columns in the file of a table, by the names of the columns."""
    return _open(file, {}).columns


def _open_parts(files: Sequence[Path], types: dict[str, DataType], text: Sequence[str]) -> list[PiecewiseTable]:
    """Open the files of one table. `types`: the known types of columns, to which the types of new columns are added."""
    opened: list[PiecewiseTable] = []
    for file in files:
        table = _open(file, types)
        if opened:
            _check_alike(opened[0], table, text)
        for name in table.columns.keys() - table.untyped:
            types.setdefault(name, table.columns[name])
        opened.append(table)
    # A column may have its first value, and so its type, in a later file.
    return [
        table if types.keys().isdisjoint(table.untyped) else _open(file, types)
        for file, table in zip(files, opened, strict=True)
    ]


def _check_alike(first: PiecewiseTable, later: PiecewiseTable, text: Sequence[str]) -> None:
    """Raise Malformed if a column is text in the first file of a table, and a later file declares another type for it.

    This check is not for files of separate tables, e.g. to train and to test on. If the column is text in the first
    table, it is read as text from the other tables, too.
    """
    for name, kind in later.declared.items():
        before = first.declared.get(name, kind)
        if name not in text and kinds.is_string(before) and not (kinds.is_string(kind) or kinds.is_null(kind)):
            raise Malformed(_other_type_message(name, later.what, kind, before))


def _other_type_message(column: str, what: str, kind: DataType, before: DataType) -> str:
    return (
        f"the column '{column}' of {what} is {kind}, but it is {before} in an earlier table: save it as the same type in "
        "both tables"
    )


def _open(file: Path, types: Types) -> PiecewiseTable:
    if not (ending := ending_of(file)):
        raise Malformed(f"the name '{file.name}' ends in none of {', '.join(TABLES)}")
    return TABLES[ending](file, types)


def _check_columns(path: Path, columns: int) -> None:
    if columns > MOST_COLUMNS:
        raise Malformed(
            f"'{path.name}' has {columns:,} columns, more than {MOST_COLUMNS:,}: save them as an .npy array"
        )


@contextmanager
def arrow_errors(what: str, rephrase: Callable[[str], str | None] = lambda text: None) -> Iterator[None]:
    """Turn pyarrow's errors in a `with` block into Malformed.

    `what`: the name of the table, for messages. `rephrase` gets pyarrow's message, and returns a better one or None.
    """
    try:
        yield
    except MemoryError:  # also pyarrow's own, which is an ArrowException too
        raise
    except (pyarrow.ArrowException, UnicodeDecodeError, OSError) as error:
        if getattr(error, "errno", None) is not None:  # an error of the system
            raise
        text = str(error)
        raise Malformed(rephrase(text) or f"{what} can't be read: {one_line(text, 300)}") from error
