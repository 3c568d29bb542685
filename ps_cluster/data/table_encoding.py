"""Encode columns of a table as inputs: numbers are standardised, categories become codes, both by the training rows."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from ps_cluster.data.rows import Streamed
from ps_cluster.data.table_files import Table
from ps_cluster.files.malformed import Malformed

MOST_CATEGORIES = 100_000  # of a column


class Part(NamedTuple):
    """Some rows of a table. `mask`: bool [rows of the table]; None for all."""

    table: Table
    rows: int
    mask: np.ndarray | None = None


class Encoding:
    """The encoding of columns as numbers.

    Attributes:
      content: that of `TableEncoding` (run/rows/dataset.py), which a packed table keeps.
    """

    def __init__(self, content: Mapping[str, Any]):
        self.content = content
        numbers, categories = content["numbers"], content["categories"]
        self.numbers, self.categories = ([column["name"] for column in part] for part in (numbers, categories))
        self.values: list[list[str]] = [column["values"] for column in categories]
        self._mean, self._std = (np.array([column[of] for column in numbers]) for of in ("mean", "std"))

    def arrays(self, part: Part) -> dict[str, Streamed]:
        """Return the inputs of some rows: numbers float32 [N, k] and categories int32 [N, m], those that there are."""
        found = {}
        if self.numbers:
            found["numbers"] = Streamed("float32", (part.rows, len(self.numbers)), lambda: self._standardised(part))
        if self.categories:
            found["categories"] = Streamed("int32", (part.rows, len(self.categories)), lambda: self._coded(part))
        return found

    def encoded(self, table: Table) -> Iterator[dict[str, np.ndarray]]:
        """Yield the inputs of all rows of another table, a piece at a time. Raises Malformed where a column is missing."""
        columns = [*self.numbers, *self.categories]
        if missing := [name for name in columns if name not in table.columns]:
            raise Malformed(f"there is no column '{missing[0]}', which the network was trained on")
        for batch in table.batches(columns):
            numbers = {"numbers": self._as_numbers(batch)} if self.numbers else {}
            yield numbers | ({"categories": self._as_codes(batch)} if self.categories else {})

    def _standardised(self, part: Part) -> Iterator[np.ndarray]:
        for batch, kept in _pieces(part, self.numbers):
            yield self._as_numbers(batch)[kept]

    def _as_numbers(self, batch: Any) -> np.ndarray:
        """Return the columns of numbers, standardised: float32 [B, k]."""
        with np.errstate(over="ignore"):  # told below
            values = ((_floats(batch, self.numbers) - self._mean) / self._std).astype(np.float32)
        _check_finite(self.numbers, ~np.isinf(values).any(0))
        return np.nan_to_num(values, nan=0.0)

    def _coded(self, part: Part) -> Iterator[np.ndarray]:
        for batch, kept in _pieces(part, self.categories):
            yield self._as_codes(batch)[kept]

    def _as_codes(self, batch: Any) -> np.ndarray:
        """Return the columns of categories as codes: int32 [B, m]."""
        import pyarrow.compute as compute

        codes = [
            compute.index_in(_as_text(batch.column(name)), value_set=values)
            .fill_null(-1)
            .to_numpy(zero_copy_only=False)
            for name, values in zip(self.categories, self._known)
        ]
        return (np.stack(codes, 1) + 1).astype(np.int32)

    @cached_property
    def _known(self) -> list[Any]:
        import pyarrow

        return [pyarrow.array(values, pyarrow.string()) for values in self.values]


def learned(part: Part, target: str, numbers: Sequence[str], categories: Sequence[str]) -> Encoding:
    """Read the rows to train on once, for the statistics of columns of numbers and the values of those of categories.

    Raises:
      Malformed: a column has infinite values, or too many categories.
    """
    seen: list[set[str]] = [set() for _ in categories]
    origin = None  # of the distance from one row: the mean of squares less the square of the mean would cancel
    count, total, squares = (np.zeros(len(numbers)) for _ in range(3))
    with np.errstate(invalid="ignore", over="ignore"):  # of infinite values, which are told
        for batch, kept in _pieces(part, [*numbers, *categories]):
            values = _floats(batch, numbers)[kept]
            if origin is None and len(values):
                origin = np.nan_to_num(values[0], posinf=0, neginf=0)
            apart = values - (0 if origin is None else origin)
            there = ~np.isnan(apart)
            apart = np.where(there, apart, 0)
            count, total, squares = count + there.sum(0), total + apart.sum(0), squares + (apart**2).sum(0)
            for name, found in zip(categories, seen):
                _add_texts(found, batch, name, kept)
        mean = total / np.maximum(count, 1)
        std = np.sqrt(np.maximum(squares / np.maximum(count, 1) - mean**2, 0))
        mean += 0 if origin is None else origin
    _check_finite(numbers, np.isfinite(mean) & np.isfinite(std))
    std[std == 0] = 1
    columns = zip(numbers, mean.tolist(), std.tolist())
    return Encoding(
        {
            "target": target,
            "numbers": [{"name": name, "mean": middle, "std": width} for name, middle, width in columns],
            "categories": [{"name": name, "values": sorted(values)} for name, values in zip(categories, seen)],
        }
    )


def _check_finite(columns: Sequence[str], finite: np.ndarray) -> None:
    """Raise Malformed where a column is not finite. `finite`: bool [k]."""
    if not finite.all():
        raise Malformed(f"the column '{columns[int(np.argmin(finite))]}' has infinite or too large values")


def _add_texts(found: set[str], batch: Any, name: str, kept: Any) -> None:
    """Add the different values of a column to those found before. Raises Malformed if these are too many."""
    found.update(_texts(batch, name, kept))
    if len(found) > MOST_CATEGORIES:
        raise Malformed(
            f"the column '{name}' has more than {MOST_CATEGORIES:,} different values: name it in data.leave_out"
        )


def _pieces(part: Part, columns: Sequence[str]) -> Iterator[tuple[Any, Any]]:
    """Yield record batches, and which of their rows belong to the part."""
    at = 0
    for batch in part.table.batches(columns):
        yield batch, slice(None) if part.mask is None else part.mask[at : at + batch.num_rows]
        at += batch.num_rows


def _floats(batch: Any, names: Sequence[str]) -> np.ndarray:
    """Return columns as float64 [B, k]; a missing value is NaN."""
    found = np.empty((batch.num_rows, len(names)))
    for place, name in enumerate(names):
        found[:, place] = as_floats(batch.column(name))
    return found


def as_floats(column: Any) -> np.ndarray:
    """Return an array of pyarrow as float64 [B]; dates and times in their own units, a missing value as NaN."""
    import pyarrow

    if pyarrow.types.is_temporal(column.type):
        column = column.cast(pyarrow.int32() if column.type.bit_width == 32 else pyarrow.int64())
    return column.cast(pyarrow.float64(), safe=False).to_numpy(zero_copy_only=False)


def _texts(batch: Any, name: str, kept: Any) -> list[str]:
    """Return the different values of a column in the rows that are kept, without missing ones."""
    import pyarrow

    column = _as_text(batch.column(name))
    chosen = column if isinstance(kept, slice) else column.filter(pyarrow.array(kept))
    return chosen.unique().drop_null().to_pylist()


def _as_text(column: Any) -> Any:
    import pyarrow

    return column.cast(pyarrow.string())
