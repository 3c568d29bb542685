"""Read the columns of CSV and Parquet files in pieces."""

from __future__ import annotations

import csv
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

from ps_cluster.data.column_types import as_types, types_like, wide
from ps_cluster.files.malformed import Malformed
from ps_cluster.files.opening import open_regular
from ps_cluster.files.plain_text import one_line

MOST_COLUMNS = 30_000  # pyarrow takes 10 kB for each
_FIRST_LINE_BYTES = 2**22
_BLOCK_BYTES = 2**24  # of a CSV file that are read together; types are taken from the first
BATCH_ROWS = 2**16


class Table(Protocol):
    """A table that is read in pieces. `columns`: name → type of pyarrow."""

    columns: dict[str, Any]

    def batches(self, columns: Sequence[str]) -> Iterator[Any]:
        """Yield record batches of pyarrow, with these columns in this order, from the first row to the last."""


class CsvTable:
    """A CSV file with a line of names; separated by commas, semicolons or tabs, whatever that line has most of."""

    def __init__(self, path: Path, types: Mapping[str, Any]):
        """Look at the beginning of a file. `types`: those of columns that are known."""
        import pyarrow

        self._path = path
        with open_regular(path) as file:
            first = file.readline(_FIRST_LINE_BYTES)
        if not first.strip():
            raise Malformed(f"'{path.name}' is empty: its first line has to name the columns")
        if len(first) == _FIRST_LINE_BYTES:
            raise Malformed(f"the first line of '{path.name}' has more than {_FIRST_LINE_BYTES:,} bytes")
        self._delimiter = max(",;\t", key=lambda sign: first.count(sign.encode()))
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
            open_regular(self._path) as file,
            arrow.open_csv(
                file,
                arrow.ReadOptions(block_size=_BLOCK_BYTES),
                arrow.ParseOptions(delimiter=self._delimiter, newlines_in_values=True),
                arrow.ConvertOptions(
                    column_types={name: wide(kind) for name, kind in types.items()},
                    include_columns=list(columns),
                    strings_can_be_null=True,
                ),
            ) as reader,
        ):
            yield reader


class ParquetTable:
    """A Parquet file."""

    def __init__(self, path: Path, types: Mapping[str, Any]):
        """Read the types, which the file knows itself. `types`: those of columns that are known."""
        self._path, self._told = path, f"'{path.name}'"
        with self._open() as file:
            _check_columns(path, file.metadata.num_columns)
            own = {field.name: field.type for field in file.schema_arrow}
        self.columns = types_like(types, own, self._told)

    def batches(self, columns: Sequence[str]) -> Iterator[Any]:
        types = {name: self.columns[name] for name in columns}
        with self._open() as file:
            for batch in file.iter_batches(BATCH_ROWS, columns=list(columns)):
                yield as_types(types, batch, self._told)

    @contextmanager
    def _open(self) -> Iterator[Any]:
        from pyarrow.parquet import ParquetFile

        with arrow_errors(self._told), open_regular(self._path) as file:
            yield ParquetFile(file)


TABLES: dict[str, Callable[[Path, Mapping[str, Any]], Table]] = {".csv": CsvTable, ".parquet": ParquetTable}
"""Ending of a file's name → how it is read."""


def open_tables(files: Mapping[str, Path], text: Sequence[str]) -> dict[str, Table]:
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
