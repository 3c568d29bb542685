"""Describe a packed data set for people: fields, examples, classes, and samples of images as training varies them."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice

import numpy as np

from ps_cluster.config.datasets import Augmentation, DataSet, DataSettings
from ps_cluster.config.objectives import OBJECTIVES, Field
from ps_cluster.data.packed import Moments, PackedDataset, fields_of, pieces
from ps_cluster.files.values import number_text

MOST_BYTES = 2**30  # of a field that are read: of a larger one evenly spaced parts
_PIECE_BYTES = 2**22
_MOST_VALUES = 4  # of one example that are shown
_MOST_CHARACTERS = 48  # of a window of text
_MOST_COLUMNS = 100  # of one field that are described apart


@dataclass(frozen=True)
class Described:
    """A field, or a column of one, over the training examples. Numbers are None where no value is finite.

    Attributes:
      missing: how many values are NaN or infinite; of a table's column how many training rows have none.
      rows: how many examples were read.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    low: float | None
    mean: float | None
    std: float | None
    high: float | None
    missing: int
    rows: int


def describe(dataset: PackedDataset, most_bytes: int = MOST_BYTES) -> list[Described]:
    """Return a description of each input, the target and the weight; of short rows of numbers one for each column.

    Columns of a table have their own names and units. A missing value of theirs was replaced by the mean when it was packed,
    and does not count here.
    """
    found: list[Described] = []
    encoded = _encoded_columns(dataset)
    for name, field, rows in fields_with_rows(dataset, "train"):
        columns = encoded.get(name, [])
        apart = len(field.shape) == 1 and field.shape[0] <= max(_MOST_COLUMNS, len(columns))
        if not columns:
            columns = [_Column(f"{name}[{index}]") for index in range(field.shape[0])] if apart else [_Column(name)]
        found += _described(columns, replace(field, shape=() if apart else field.shape), rows, most_bytes)
    return found


def _described(columns: Sequence[_Column], field: Field, rows: np.ndarray, most_bytes: int) -> list[Described]:
    """Return the description of each column of the rows, or of the field as a whole, which is a single one."""
    mean, std = (np.array(of) for of in zip(*((column.mean, column.std) for column in columns)))
    moments, low, high, read = Moments(), np.full(len(columns), np.inf), np.full(len(columns), -np.inf), 0
    every = max(1, -(-rows.nbytes // most_bytes))
    for piece in islice(pieces(rows, _PIECE_BYTES), None, None, every):
        values = np.asarray(piece, np.float64).reshape(-1, len(columns)) * std + mean
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
            if count and not column.values:  # those that were filled in would make the deviation smaller
                middle, width = column.mean, column.std if highest != lowest else 0.0
        name = f"{column.name} (code, of {len(column.values)})" if column.values else column.name
        found.append(Described(name, field.dtype, field.shape, lowest, middle, width, highest, missing, read))
    return found


def fields_with_rows(dataset: PackedDataset, split: str) -> Iterator[tuple[str, Field, np.ndarray]]:
    """Return name, field and rows [N, ...] of each input, the target, and the weight if there is one."""
    return ((name, field, dataset.rows(split, name, field)) for name, field in fields_of(dataset.spec).items())


def example_rows(
    dataset: PackedDataset, which: slice | np.ndarray, split: str = "train"
) -> tuple[list[str], list[list[str]]]:
    """Return the names of fields or columns, and some examples as text. `which`: a slice, or indices [M]."""
    encoded = _encoded_columns(dataset)
    names: list[str] = []
    columns: list[list[str]] = []
    for name, _, rows in fields_with_rows(dataset, split):
        chosen = rows[which]
        if name in encoded:
            names += [column.name for column in encoded[name]]
            columns += [
                [column.text(value) for value in chosen[:, index]] for index, column in enumerate(encoded[name])
            ]
        else:
            names.append(name)
            columns.append([_as_written(row) if dataset.spec.is_text else _text(row) for row in chosen])
    return names, [list(row) for row in zip(*columns)]


def _as_written(row: np.ndarray) -> str:
    """Return the first characters of a window of text, on one line."""
    text = repr(row.tobytes().decode("utf-8", "replace"))[1:-1]
    return text if len(text) <= _MOST_CHARACTERS else f"{text[:_MOST_CHARACTERS]} …"


def _text(row: np.ndarray) -> str:
    """Return the first values of a row."""
    flat = np.asarray(row, np.float64).reshape(-1)
    more = f" … ({len(flat)})" if len(flat) > _MOST_VALUES else ""
    return " ".join(number_text(value) for value in flat[:_MOST_VALUES]) + more


@dataclass(frozen=True)
class _Column:
    """A column: of a table numbers, which became (value - mean) / std, or the codes of `values`, from 1.

    Attributes:
      missing: how many of a table's training rows have no value; None of what is no table.
    """

    name: str
    mean: float = 0.0
    std: float = 1.0
    values: tuple[str, ...] = ()
    missing: int | None = None

    def text(self, value: float) -> str:
        """Return an encoded value as it was in the table. The mean of a column with missing values is one of those."""
        if self.values:
            return self.values[int(value) - 1] if value else "missing or unknown" if self.missing else "unknown"
        if self.missing and value == 0:
            return "missing"
        return number_text(value * self.std + self.mean)


def _encoded_columns(dataset: PackedDataset) -> dict[str, list[_Column]]:
    """Return field → its columns, for what was packed from a table."""
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
    }


# Draw examples of each class of a data set of images, as they are and as training varies them.

_AT_ONCE = 16  # images that are varied together: large ones take much memory as float32

Vary = Callable[[np.ndarray, int], np.ndarray]
"""Returns the images of some training examples, int64 [B], in an epoch: [B, H, W, C]."""


@dataclass(frozen=True)
class VariedImage:
    """An image, uint8 [H, W, C], and variations of it."""

    image: np.ndarray
    varied: tuple[np.ndarray, ...]


@dataclass(frozen=True)
class ExampleGroup:
    """A class, a label or a range of the target.

    Attributes:
      train_ids: indices of its training examples, int64 [M]. test_examples: how many it has to test on.
      samples: some of the training examples, once they are drawn.
    """

    name: str
    train_ids: np.ndarray
    test_examples: int
    samples: tuple[VariedImage, ...] = ()

    @property
    def train_examples(self) -> int:
        return len(self.train_ids)


def groups_of(dataset: PackedDataset) -> list[ExampleGroup]:
    """Return the classes, labels or ranges of the target, without samples."""
    objective, spec = OBJECTIVES[dataset.spec.objective], dataset.spec
    train, test = (objective.groups(dataset.target(split), spec) for split in ("train", "test"))
    return [ExampleGroup(name, ids, len(of_test)) for (name, ids), (_, of_test) in zip(train, test)]


def with_samples(
    dataset: PackedDataset,
    groups: Sequence[ExampleGroup],
    vary: Vary | None,
    *,
    samples: int,
    variations: int,
    seed: int,
) -> list[ExampleGroup]:
    """Return groups of a data set of images with random samples of each.

    Args:
      vary: how training varies images; None: not at all.
      variations: how many of each sample.
    """
    draw = np.random.default_rng(seed)
    chosen = [np.sort(draw.choice(one.train_ids, min(samples, one.train_examples), replace=False)) for one in groups]
    ids = np.concatenate(chosen)
    epochs = [np.clip(np.rint(vary(ids, epoch)), 0, 255).astype(np.uint8) for epoch in range(variations) if vary]
    drawn = (
        VariedImage(image, tuple(of_epoch[place] for of_epoch in epochs))
        for place, image in enumerate(_images(dataset, ids))
    )
    return [replace(group, samples=tuple(islice(drawn, len(mine)))) for group, mine in zip(groups, chosen)]


def variation(kind: DataSet, settings: DataSettings, dataset: PackedDataset, seed: int) -> Vary | None:
    """Return how training varies images, for which TensorFlow is imported; None where it takes them as they are."""
    if getattr(settings, "augmentation", None) == Augmentation() or (augment := kind.augmentation()) is None:
        return None
    import tensorflow as tf

    from ps_cluster.data.batches import Batch

    (name,) = dataset.spec.inputs

    def vary(ids: np.ndarray, epoch: int) -> np.ndarray:
        parts = []
        for start in range(0, len(ids), _AT_ONCE):
            part = ids[start : start + _AT_ONCE]
            step = tf.constant(epoch * len(ids) + start, tf.int64)  # another one for each part: other draws
            batch = Batch(seed, step, tf.constant(part, tf.int64), tf.fill([len(part)], tf.cast(epoch, tf.int64)))
            images = tf.constant(_images(dataset, part))
            parts.append(augment({name: images}, batch, dataset.spec, settings)[name].numpy())
        return np.concatenate(parts)

    return vary


def _images(dataset: PackedDataset, ids: np.ndarray) -> np.ndarray:
    (images,) = dataset.inputs("train").values()
    chosen: np.ndarray = images[ids]
    return chosen
