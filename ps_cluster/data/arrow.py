"""Import pyarrow on first use, and provide type hints for the parts of it that this package uses.

pyarrow itself has no type hints.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Protocol

import numpy as np

from ps_cluster.config.lazy import Lazy

pyarrow, compute, kinds = Lazy("pyarrow"), Lazy("pyarrow.compute"), Lazy("pyarrow.types")
arrow_csv, arrow_parquet = Lazy("pyarrow.csv"), Lazy("pyarrow.parquet")


class DataType(Protocol):
    """The type of a column: `pyarrow.DataType`. Only dictionary types have a `value_type`, only time types a `unit`."""

    value_type: DataType
    unit: str
    bit_width: int


class ArrowField(Protocol):
    """The name and type of a column: `pyarrow.Field`."""

    name: str
    type: DataType


class Schema(Protocol):
    """The fields of a table: `pyarrow.Schema`."""

    names: list[str]

    def __iter__(self) -> Iterator[ArrowField]: ...


class Scalar(Protocol):
    """A value of a column: `pyarrow.Scalar`. As a Python object, it is a number, a string, a mapping or None."""

    def as_py(self) -> Any: ...


class Column(Protocol):
    """The values of a column: `pyarrow.Array`, or `pyarrow.ChunkedArray`."""

    type: DataType
    null_count: int

    def __getitem__(self, row: int, /) -> Scalar: ...
    def cast(self, target_type: DataType, safe: bool = True) -> Column: ...
    def drop_null(self) -> Column: ...
    def fill_null(self, fill_value: str | int) -> Column: ...
    def unique(self) -> Column: ...
    def to_pylist(self) -> list[Any]: ...
    def to_numpy(self, zero_copy_only: bool) -> np.ndarray: ...


class RecordBatch(Protocol):
    """Consecutive rows of a table: `pyarrow.RecordBatch`."""

    num_rows: int

    def column(self, i: str | int, /) -> Column: ...
    def filter(self, mask: Column, /) -> RecordBatch: ...
    def slice(self, offset: int, length: int, /) -> RecordBatch: ...


class BatchReader(Protocol):
    """A source of consecutive batches: `pyarrow.RecordBatchReader`."""

    schema: Schema

    def __iter__(self) -> Iterator[RecordBatch]: ...


class Table(Protocol):
    """A complete table: `pyarrow.Table`."""

    num_rows: int
    schema: Schema

    def column(self, i: str | int, /) -> Column: ...
    def select(self, columns: Sequence[str], /) -> Table: ...
    def to_batches(self, max_chunksize: int) -> list[RecordBatch]: ...
