"""Describe a packed data set for people: its fields, their statistics, and some examples as text."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import islice

import numpy as np

from ps_cluster.config.objectives import TEXT, ArrayField
from ps_cluster.data.moments import Moments
from ps_cluster.data.packed import PackedDataset, PackedSplit, fields_of, pieces
from ps_cluster.data.text_rows import texts_of
from ps_cluster.files.values import number_text

MOST_BYTES = 2**30  # of a field with more bytes than this, only evenly spaced pieces are read
_PIECE_BYTES = 2**22
_MOST_VALUES = 4  # an example is shown with at most this many values
_MOST_CHARACTERS = 48  # a text is shown with at most this many characters
_MOST_COLUMNS = 100  # a field with more columns is described as a whole


@dataclass(frozen=True)
class FieldStatistics:
    """Statistics of a field, or of one of its columns, over the training examples."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    # The smallest value, mean, standard deviation and largest value; for texts, those of their lengths in characters.
    # None if no value is finite.
    low: float | None
    mean: float | None
    std: float | None
    high: float | None
    missing: int  # how many values are NaN or infinite; in a table, how many training rows have no value
    rows: int  # how many examples were read


def describe(dataset: PackedDataset, most_bytes: int = MOST_BYTES) -> list[FieldStatistics]:
    """Return statistics of each field of the training examples. A field is an input, the target or the weight.

    A field whose rows are short vectors gets statistics for each of its columns. The columns of a table have their
    original names and units, and their missing values are left out. `most_bytes`: if a field has more bytes than this,
    only evenly spaced pieces of it are read.
    """
    found: list[FieldStatistics] = []
    encoded = _encoded_columns(dataset)
    for name, field in fields_of(dataset.spec).items():
        rows = dataset.rows("train", name, field)
        columns = encoded.get(name, [])
        apart = len(field.shape) == 1 and field.shape[0] <= max(_MOST_COLUMNS, len(columns))
        if not columns:
            columns = [_Column(f"{name}[{index}]") for index in range(field.shape[0])] if apart else [_Column(name)]
        found += _described(columns, replace(field, shape=() if apart else field.shape), rows, most_bytes)
    return found


def _described(
    columns: Sequence[_Column], field: ArrayField, rows: np.ndarray, most_bytes: int
) -> list[FieldStatistics]:
    """Return the statistics of each of the `columns` of a field's rows.

    If the rows are not divided into columns, `columns` has one entry, which stands for all values of a row.
    """
    mean, std = (np.array(of) for of in zip(*((column.mean, column.std) for column in columns)))
    moments, low, high, read = Moments(), np.full(len(columns), np.inf), np.full(len(columns), -np.inf), 0
    every = max(1, -(-rows.nbytes // most_bytes))
    for piece in islice(pieces(rows, _PIECE_BYTES), None, None, every):
        numbers = np.count_nonzero(piece, axis=-1) if field.dtype == TEXT else piece
        values = np.asarray(numbers, np.float64).reshape(-1, len(columns)) * std + mean
        finite = np.isfinite(values)
        moments.add(values, finite)
        low = np.minimum(low, np.where(finite, values, np.inf).min(0))
        high = np.maximum(high, np.where(finite, values, -np.inf).max(0))
        read += len(piece)
    found = []
    for place, column in enumerate(columns):
        count = int(moments.count[place])
        lowest, middle, width, highest = (
            float(of[place]) if count else None for of in (low, moments.mean, moments.std, high)
        )
        missing = read * math.prod(field.shape) - count
        if column.missing is not None:
            missing = column.missing
            # In the packed rows the mean replaces missing values, which makes their standard deviation too small.
            if count and not column.values:
                middle = column.mean
                width = column.std if highest != lowest else 0.0
        name = f"{column.name} (codes of {len(column.values)} categories)" if column.values else column.name
        found.append(FieldStatistics(name, field.dtype, field.shape, lowest, middle, width, highest, missing, read))
    return found


def example_rows(
    dataset: PackedDataset, which: slice | np.ndarray, split: PackedSplit = "train"
) -> tuple[list[str], list[list[str]]]:
    """Return some examples as a table of texts: the names of its columns, and a list of values for each example.

    `which`: the examples, as a slice or as indices [M].
    """
    encoded = _encoded_columns(dataset)
    names: list[str] = []
    columns: list[list[str]] = []
    for name, field in fields_of(dataset.spec).items():
        chosen = dataset.rows(split, name, field)[which]
        if field.dtype == TEXT:
            of_texts = [column.name for column in encoded.get(name, [])] or [name]
            names += of_texts
            apart = texts_of(chosen).reshape(len(chosen), len(of_texts), -1).swapaxes(0, 1)
            columns += [[_beginning(" · ".join(row)) for row in column] for column in apart]
        elif name in encoded:
            for column, values in zip(encoded[name], chosen.T):
                names.append(column.name)
                columns.append([column.text(value) for value in values])
        else:
            names.append(name)
            if dataset.spec.is_text:
                columns.append([_beginning(row.tobytes().decode("utf-8", "replace")) for row in chosen])
            else:
                columns.append([_first_values(row) for row in chosen])
    return names, [list(row) for row in zip(*columns)]


def _beginning(text: str) -> str:
    text = repr(text)[1:-1]
    return text if len(text) <= _MOST_CHARACTERS else f"{text[:_MOST_CHARACTERS]} …"


def _first_values(row: np.ndarray) -> str:
    flat = np.asarray(row, np.float64).reshape(-1)
    more = f" … ({len(flat)})" if len(flat) > _MOST_VALUES else ""
    return " ".join(number_text(value) for value in flat[:_MOST_VALUES]) + more


@dataclass(frozen=True)
class _Column:
    """A column, and how it was encoded if it is from a table.

    Numbers were encoded as (value - mean) / std, and categories as their positions in `values`, counted from 1.
    """

    name: str
    mean: float = 0.0
    std: float = 1.0
    values: tuple[str, ...] = ()
    missing: int | None = None  # how many training rows have no value in it; None if the data is not a table

    def text(self, value: float) -> str:
        """Return an encoded value as it was in the table.

        In a column with missing numbers, the mean is shown as missing, because missing numbers became the mean.
        """
        if self.values:
            return self.values[int(value) - 1] if value else "missing or unknown" if self.missing else "unknown"
        if self.missing and value == 0:
            return "missing"
        return number_text(value * self.std + self.mean)


def _encoded_columns(dataset: PackedDataset) -> dict[str, list[_Column]]:
    """Return the columns of each field, by the name of the field. The mapping is empty if the data is not a table."""
    encoding = dataset.encoding()
    if encoding is None:
        return {}
    return {
        "numbers": [
            _Column(column.name, column.mean, column.std, missing=column.missing) for column in encoding.numbers
        ],
        "categories": [
            _Column(column.name, values=tuple(column.values), missing=column.missing) for column in encoding.categories
        ],
        "texts": [_Column(name) for name in encoding.texts],
    }
