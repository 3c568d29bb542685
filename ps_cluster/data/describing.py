"""Describe the fields of a packed data set of any form: their values, and how many are missing."""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from ps_cluster.config import registry
from ps_cluster.config.datasets import DataSet, DataSettings
from ps_cluster.config.objectives import TARGET, WEIGHT, Field
from ps_cluster.data import packed
from ps_cluster.data.packed import PackedDataset, pieces
from ps_cluster.data.packing import Moments
from ps_cluster.files.values import number_text

MOST_BYTES = 2**30  # of a field that are read: of a larger one evenly spaced parts
_PIECE_BYTES = 2**22
_MOST_VALUES = 4  # of one example that are shown
_MOST_COLUMNS = 100  # of one field that are described apart


@dataclass(frozen=True)
class Described:
    """A field, or a column of one, over the training examples. Numbers are None where no value is finite.

    Attributes:
      missing: how many values are NaN or infinite.
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

    Columns of a table have their own names and units; a missing value of theirs was replaced when it was packed.
    """
    found: list[Described] = []
    encoded = _encoded_columns(dataset)
    for name, field, rows in fields_with_rows(dataset, "train"):
        apart = len(field.shape) == 1 and field.shape[0] <= max(_MOST_COLUMNS, len(encoded.get(name, ())))
        columns = field.shape[0] if apart else 1
        sums = _sums(rows, columns, most_bytes)
        described = [sums.described(name, field, () if apart else field.shape, index) for index in range(columns)]
        if name in encoded:
            found += [column.described(one) for one, column in zip(described, encoded[name])]
        elif apart:
            found += [replace(one, name=f"{name}[{index}]") for index, one in enumerate(described)]
        else:
            found += described
    return found


def fields_with_rows(dataset: PackedDataset, split: str) -> Iterator[tuple[str, Field, np.ndarray]]:
    """Yield name, field and rows [N, ...] of each input, the target, and the weight if there is one."""
    spec, inputs, weight = dataset.spec, dataset.inputs(split), dataset.weight(split)
    for name, field in spec.inputs.items():
        yield name, field, inputs[name]
    yield TARGET, spec.target, dataset.target(split)
    if spec.weight is not None and weight is not None:
        yield WEIGHT, spec.weight, weight


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
            columns.append([_text(row) for row in chosen])
    return names, [list(row) for row in zip(*columns)]


def _text(row: np.ndarray) -> str:
    """Return the first values of a row."""
    flat = np.asarray(row, np.float64).reshape(-1)
    more = f" … ({len(flat)})" if len(flat) > _MOST_VALUES else ""
    return " ".join(number_text(value) for value in flat[:_MOST_VALUES]) + more


@dataclass(frozen=True)
class _Column:
    """A column of a table: numbers, which became (value - mean) / std, or the codes of `values`, from 1."""

    name: str
    mean: float = 0.0
    std: float = 1.0
    values: tuple[str, ...] = ()

    def described(self, one: Described) -> Described:
        """Return the description of its numbers in its own units, or of its codes."""
        if self.values:
            return replace(one, name=f"{self.name} (code, of {len(self.values)})")
        numbers = (None if value is None else value * self.std + self.mean for value in (one.low, one.mean, one.high))
        low, mean, high = numbers
        std = None if one.std is None else one.std * self.std
        return replace(one, name=self.name, low=low, mean=mean, std=std, high=high)

    def text(self, value: float) -> str:
        """Return an encoded value as it was in the table."""
        if self.values:
            return self.values[int(value) - 1] if value else "unknown"
        return number_text(value * self.std + self.mean)


def _encoded_columns(dataset: PackedDataset) -> dict[str, list[_Column]]:
    """Return field → its columns, for what was packed from a table."""
    encoding = dataset.encoding()
    if encoding is None:
        return {}
    return {
        "numbers": [_Column(column.name, column.mean, column.std) for column in encoding.numbers],
        "categories": [_Column(column.name, values=tuple(column.values)) for column in encoding.categories],
    }


class _Sums:
    """Sums over values [n, C], for each of C columns."""

    def __init__(self, columns: int):
        self._rows = 0
        self._missing = np.zeros(columns, np.int64)
        self._low, self._high = np.full(columns, np.inf), np.full(columns, -np.inf)
        self._moments = Moments()

    def add(self, values: np.ndarray, rows: int) -> None:
        finite = np.isfinite(values)
        self._moments.add(values, finite)
        self._rows += rows
        self._missing += (~finite).sum(0)
        self._low = np.minimum(self._low, np.where(finite, values, np.inf).min(0))
        self._high = np.maximum(self._high, np.where(finite, values, -np.inf).max(0))

    def described(self, name: str, field: Field, shape: tuple[int, ...], column: int) -> Described:
        numbers = (self._low, self._moments.mean, self._moments.std, self._high)
        low, mean, std, high = (float(of[column]) if self._moments.count[column] else None for of in numbers)
        return Described(name, field.dtype, shape, low, mean, std, high, int(self._missing[column]), self._rows)


def _sums(rows: np.ndarray, columns: int, most_bytes: int) -> _Sums:
    sums = _Sums(columns)
    every = max(1, -(-rows.nbytes // most_bytes))
    for number, piece in enumerate(pieces(rows, _PIECE_BYTES)):
        if number % every == 0:
            sums.add(np.asarray(piece, np.float64).reshape(-1, columns), len(piece))
    return sums


# Name the folder of a packed copy: the name changes with all that the copy depends on.


def packed_folder(cache_dir: Path) -> Path:
    """Return the folder of packed copies. Copies of another format are left alone: an older version may train on them."""
    return cache_dir / f"packed-{packed.FORMAT}"


def target(kind: DataSet, settings: DataSettings, cache_dir: Path, *parts: str) -> Path:
    """Return the folder of a packed copy, with `parts` at the end of its name."""
    slug = kind.name
    if kind.path is not None:
        slug, parts = kind.path.stem, (_short(kind.name), fingerprint(kind.path), *parts)
    elif reference := registry.parse(kind.name):
        code = hashlib.sha256(reference.file.read_bytes()).hexdigest()[:8]
        slug, parts = f"{reference.file.stem}-{reference.name}", (_short(str(reference)), code, *parts)
    if own := kind.own_settings(settings):
        parts = (_short(json.dumps(own, sort_keys=True)), *parts)
    slug = re.sub(r"\W+", "-", slug)[:60]
    return packed_folder(cache_dir) / "-".join((f"{slug}.{kind.version}", *parts))


def fingerprint(source: Path) -> str:
    """Return eight hexadecimal digits that change with a file, or with any file below a folder."""
    digest = hashlib.sha256()
    for path, status in _files(source):
        digest.update(f"{path}\0{status.st_size}\0{status.st_mtime_ns}\n".encode(errors="surrogateescape"))
    return digest.hexdigest()[:8]


def size_of(source: Path) -> int:
    """Return the bytes of a file, or of all files below a folder."""
    return sum(status.st_size for _, status in _files(source))


def _files(source: Path) -> Iterator[tuple[str, os.stat_result]]:
    source = Path(os.path.realpath(source))
    if not source.is_dir():
        yield str(source), source.stat()
        return
    seen: set[str] = set()
    for folder, folders, names in os.walk(source, followlinks=True):
        if (real := os.path.realpath(folder)) in seen:  # a link to a folder above
            folders.clear()
            continue
        seen.add(real)
        folders.sort()
        for name in sorted(names):
            path = os.path.join(folder, name)
            yield path, os.stat(path) if os.path.exists(path) else os.lstat(path)


def _short(text: str) -> str:
    return hashlib.sha256(text.encode(errors="surrogateescape")).hexdigest()[:8]
