"""Encode columns of a table as inputs: numbers are standardised, categories become codes, both by the training rows."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
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
    """The encoding of columns as numbers. Its attributes are those of `TableEncoding` (run/rows/dataset.py)."""

    def __init__(self, part: Part, numbers: Sequence[str], categories: Sequence[str]):
        """Read the rows to train on once, for their statistics and their categories.

        Raises:
          Malformed: a column has infinite values, or too many categories.
        """
        self.numbers, self.categories = list(numbers), list(categories)
        self._values: list[set[str]] = [set() for _ in categories]
        self.mean, self.std = np.zeros(len(numbers)), np.ones(len(numbers))
        with np.errstate(invalid="ignore", over="ignore"):  # of infinite values, which are told
            self._gather(part)
        self.values = [sorted(values) for values in self._values]

    def arrays(self, part: Part) -> dict[str, Streamed]:
        """Return the inputs of some rows: numbers float32 [N, k] and categories int32 [N, m], those that there are."""
        found = {}
        if self.numbers:
            found["numbers"] = Streamed("float32", (part.rows, len(self.numbers)), lambda: self._standardised(part))
        if self.categories:
            found["categories"] = Streamed("int32", (part.rows, len(self.categories)), lambda: self._coded(part))
        return found

    def as_row(self, target: str) -> dict[str, Any]:
        """Return the content of the file that keeps it."""
        numbers = zip(self.numbers, self.mean.tolist(), self.std.tolist())
        return {
            "target": target,
            "numbers": [{"name": name, "mean": mean, "std": std} for name, mean, std in numbers],
            "categories": [{"name": name, "values": values} for name, values in zip(self.categories, self.values)],
        }

    def _gather(self, part: Part) -> None:
        origin = None  # of the distance from one row: the mean of squares less the square of the mean would cancel
        count, total, squares = (np.zeros(len(self.numbers)) for _ in range(3))
        for batch, kept in _pieces(part, [*self.numbers, *self.categories]):
            values = _floats(batch, self.numbers)[kept]
            if origin is None and len(values):
                origin = np.nan_to_num(values[0], posinf=0, neginf=0)
            apart = values - (0 if origin is None else origin)
            there = ~np.isnan(apart)
            apart = np.where(there, apart, 0)
            count, total, squares = count + there.sum(0), total + apart.sum(0), squares + (apart**2).sum(0)
            for name, found in zip(self.categories, self._values):
                found.update(_texts(batch, name, kept))
                if len(found) > MOST_CATEGORIES:
                    raise Malformed(
                        f"the column '{name}' has more than {MOST_CATEGORIES:,} different values: name it in data.leave_out"
                    )
        mean = total / np.maximum(count, 1)
        self.std = np.sqrt(np.maximum(squares / np.maximum(count, 1) - mean**2, 0))
        self.std[self.std == 0] = 1
        self.mean = mean + (0 if origin is None else origin)
        if not (wrong := np.isfinite(self.mean) & np.isfinite(self.std)).all():
            raise Malformed(f"the column '{self.numbers[int(np.argmin(wrong))]}' has infinite or too large values")

    def _standardised(self, part: Part) -> Iterator[np.ndarray]:
        for batch, kept in _pieces(part, self.numbers):
            values = (_floats(batch, self.numbers)[kept] - self.mean) / self.std
            yield np.nan_to_num(values, nan=0.0).astype(np.float32)

    def _coded(self, part: Part) -> Iterator[np.ndarray]:
        import pyarrow
        import pyarrow.compute as compute

        known = [pyarrow.array(values, pyarrow.string()) for values in self.values]
        for batch, kept in _pieces(part, self.categories):
            codes = [
                compute.index_in(_as_text(batch.column(name)), value_set=values)
                .fill_null(-1)
                .to_numpy(zero_copy_only=False)
                for name, values in zip(self.categories, known)
            ]
            yield (np.stack(codes, 1)[kept] + 1).astype(np.int32)


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
