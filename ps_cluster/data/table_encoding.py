"""Encode columns of a table as inputs of a network.

The training rows determine how numbers are standardised and which code each category has.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import numpy as np

from ps_cluster.data.arrow import Column, RecordBatch, compute, kinds, pyarrow
from ps_cluster.data.lazy_rows import StreamedRows
from ps_cluster.data.moments import Moments
from ps_cluster.data.table_files import PiecewiseTable
from ps_cluster.data.text_rows import TextSize, codes_of
from ps_cluster.files.values import Malformed
from ps_cluster.runs.dataset_rows import CategoryColumn, NumberColumn, TableEncoding

MOST_CATEGORIES = 100_000  # of one column
_CHARACTERS_AT_ONCE = 2**22  # of texts that are padded to one length together; each takes 4 bytes


class ColumnRoles(NamedTuple):
    """The names of a table's columns by their role: target, weight, or an input of numbers, categories or texts."""

    target: str
    weight: str | None
    numbers: list[str]
    categories: list[str]
    texts: list[str]


class Encoding:
    """The encoding of a table's columns as inputs of a network."""

    def __init__(self, content: TableEncoding):
        """Create an encoding from its content, which was learned from a table or stored with a packed table."""
        self.content = content
        self.numbers = [column.name for column in content.numbers]
        self.categories = [column.name for column in content.categories]
        # The values of each column of categories. The code of a value is its position, counted from 1.
        self._values = [pyarrow.array(column.values, pyarrow.string()) for column in content.categories]
        self.texts = content.texts
        self._mean = np.array([column.mean for column in content.numbers])
        self._std = np.array([column.std for column in content.numbers])

    def arrays(self, table: PiecewiseTable, rows: int, text_size: TextSize) -> dict[str, StreamedRows]:
        """Return inputs by name: "numbers" float32 [N, k], "categories" int32 [N, m], and "texts" [N, t, characters].

        `rows`: N, the number of rows of the table. `text_size`: the number of characters of each text, and the dtype of
        the code points that texts become.
        """

        def streamed(columns: list[str], dtype: str, encode: Callable[[RecordBatch], np.ndarray]) -> StreamedRows:
            return StreamedRows(dtype, (rows, len(columns)), lambda: map(encode, table.batches(columns)))

        def codes() -> Iterator[np.ndarray]:
            # Each text takes as much memory as the longest one, so all texts of a batch may be too many at once.
            at_once = max(1, _CHARACTERS_AT_ONCE // (len(self.texts) * text_size.characters))
            for batch in table.batches(self.texts):
                for start in range(0, batch.num_rows, at_once):
                    texts = self._as_texts(batch.slice(start, at_once))
                    yield codes_of(texts, text_size.characters).astype(text_size.code)

        found = {}
        if self.numbers:
            found["numbers"] = streamed(self.numbers, "float32", self._as_numbers)
        if self.categories:
            found["categories"] = streamed(self.categories, "int32", self._as_codes)
        if self.texts:
            found["texts"] = StreamedRows(text_size.code, (rows, len(self.texts), text_size.characters), codes)
        return found

    def encoded(self, table: PiecewiseTable) -> Iterator[dict[str, np.ndarray]]:
        """Encode all rows of a new table, e.g. one to predict from, and yield the inputs in pieces.

        Raises Malformed if a column is missing, or has times where the training data had numbers or vice versa.
        """
        columns = [*self.numbers, *self.categories, *self.texts]
        if missing := [name for name in columns if name not in table.columns]:
            raise Malformed(f"there is no column '{missing[0]}', which the network was trained on")
        for column in self.content.numbers:
            kind = table.columns[column.name]
            if kinds.is_temporal(kind) != column.is_time and not kinds.is_string(kind):
                was = "dates or times" if column.is_time else "numbers"
                raise Malformed(
                    f"the column '{column.name}' is {kind}, but the network was trained on {was}: give {was} here"
                )
        for batch in table.batches(columns):
            numbers = {"numbers": self._as_numbers(batch)} if self.numbers else {}
            texts = {"texts": self._as_texts(batch)} if self.texts else {}
            yield numbers | ({"categories": self._as_codes(batch)} if self.categories else {}) | texts

    def text_pieces(self, table: PiecewiseTable) -> Iterator[np.ndarray]:
        """Yield the columns of texts in pieces. Each piece is an array [B, t] of Python strings."""
        yield from map(self._as_texts, table.batches(self.texts)) if self.texts else ()

    def _as_texts(self, batch: RecordBatch) -> np.ndarray:
        """Return the columns of texts as an array [B, t] of Python strings. A missing text is ""."""
        return np.stack([as_texts(batch.column(name)) for name in self.texts], 1)

    def _as_numbers(self, batch: RecordBatch) -> np.ndarray:
        """Return the columns of numbers, standardised, float32 [B, k]. A missing number becomes 0, the mean."""
        with np.errstate(over="ignore"):  # reported below
            values = ((_floats(batch, self.numbers) - self._mean) / self._std).astype(np.float32)
        _check_finite(self.numbers, ~np.isinf(values).any(0))
        without_gaps: np.ndarray = np.nan_to_num(values, nan=0.0)
        return without_gaps

    def _as_codes(self, batch: RecordBatch) -> np.ndarray:
        """Return the columns of categories as codes, int32 [B, m]. A missing or unknown value has the code 0."""
        codes = []
        for name, values in zip(self.categories, self._values):
            texts = batch.column(name).cast(pyarrow.string())
            found = compute.index_in(texts, value_set=values)
            codes.append(found.fill_null(-1).to_numpy(zero_copy_only=False))
        return (np.stack(codes, 1) + 1).astype(np.int32)


def learn_encoding(table: PiecewiseTable, kept: np.ndarray | None, roles: ColumnRoles) -> Encoding:
    """Return the encoding of a table, learned in one pass over its training rows.

    `kept`: which rows are training rows, bool [N]; None for all. Raises Malformed if a column has infinite values, or
    too many categories.
    """
    numbers, categories = roles.numbers, roles.categories
    seen: list[set[str]] = [set() for _ in categories]
    missing = dict.fromkeys([*numbers, *categories], 0)
    moments, at = Moments(), 0
    columns = [*numbers, *categories]
    for batch in table.batches(columns) if columns else ():  # without names, Arrow would read every column
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
    times = [kinds.is_temporal(table.columns[name]) for name in numbers]
    of_numbers = zip(numbers, mean.tolist(), np.where(std == 0, 1, std).tolist(), times)
    return Encoding(
        TableEncoding(
            target=roles.target,
            numbers=[
                NumberColumn(name=name, mean=middle, std=width, is_time=is_time, missing=missing[name])
                for name, middle, width, is_time in of_numbers
            ],
            categories=[
                CategoryColumn(name=name, values=sorted(values), missing=missing[name])
                for name, values in zip(categories, seen)
            ],
            texts=roles.texts,
        )
    )


def _check_finite(columns: Sequence[str], finite: np.ndarray) -> None:
    """Raise Malformed if a column has values that are not finite. `finite`: bool [k], False for such columns."""
    if not finite.all():
        raise Malformed(f"the column '{columns[int(np.argmin(finite))]}' has infinite or too large values")


def _floats(batch: RecordBatch, names: Sequence[str]) -> np.ndarray:
    """Return columns as float64 [B, k]. A missing value is NaN."""
    found = np.empty((batch.num_rows, len(names)))
    for place, name in enumerate(names):
        found[:, place] = as_floats(batch.column(name))
    return found


def as_texts(column: Column) -> np.ndarray:
    """Return a column as an array [B] of Python strings. A missing text is ""."""
    return column.cast(pyarrow.string()).fill_null("").to_numpy(zero_copy_only=False)


_SECONDS = {"s": 1.0, "ms": 1e-3, "us": 1e-6, "ns": 1e-9}


def as_floats(column: Column) -> np.ndarray:
    """Return a column as float64 [B]. Dates and times are in seconds, and a missing value is NaN."""
    seconds = 1.0
    if kinds.is_temporal(kind := column.type):
        days = kinds.is_date32(kind)
        seconds = 86_400.0 if days else _SECONDS["ms" if kinds.is_date64(kind) else kind.unit]
        column = column.cast(pyarrow.int32() if kind.bit_width == 32 else pyarrow.int64())
    numbers: np.ndarray = column.cast(pyarrow.float64(), safe=False).to_numpy(zero_copy_only=False)
    return numbers * seconds
