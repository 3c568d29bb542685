"""Write the batches of a finite stream (a tf.data.Dataset, a PyDataset or a generator) to arrays on disk."""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import IO, Any, NamedTuple, TypeAlias

import numpy as np

from ps_cluster.errors import UserError
from ps_cluster.files.values import one_line
from ps_cluster.notices import Notify
from ps_cluster.report.byte_progress import byte_progress
from ps_cluster.report.terminal import make_console

MOST_BYTES = 50 * 10**9
_KEPT_FREE_BYTES = 10**9
_PARTS = ("inputs", "targets", "weights")

Part: TypeAlias = np.ndarray | dict[str, np.ndarray] | tuple[np.ndarray, ...]
"""The inputs, the targets or the weights of all examples, in the structure that a batch of the stream has."""


class StreamArrays(NamedTuple):
    """The examples of a stream, memory-mapped from files, and the number of examples in its first batch."""

    first_batch: int
    inputs: Part | None
    targets: Part | None
    weights: Part | None = None


def write_stream(batches: Iterable[Any], folder: Path, what: str, *, steps: int | None, notify: Notify) -> StreamArrays:
    """Write the examples of all batches, and return them.

    Args:
      batches: each is (inputs, targets) or (inputs, targets, weights). A part is an array [B, ...] or a dictionary of arrays.
      folder: the folder for the files, which must stay until the arrays are no longer used.
      what: the name of the argument that holds the stream, for messages.
      steps: the number of batches to take; None: all.
    """
    columns: dict[tuple[str, ...], _Column] = {}
    limit = min(MOST_BYTES, shutil.disk_usage(folder).free - _KEPT_FREE_BYTES)
    structure, done, rows_of_first = None, 0, 0
    with byte_progress(make_console(), lines=False) as (_, show):
        for number, batch in enumerate(islice(batches, steps)):
            if not isinstance(batch, tuple | list) or len(batch) not in (2, 3):
                raise UserError(
                    f"{what}: batch {number} is {_kind(batch)}: a batch has to be (inputs, targets) or "
                    "(inputs, targets, weights)"
                )
            structure = batch
            for path, value in _leaves(batch):
                if path not in columns:
                    columns[path] = _Column(folder / f"{len(columns)}.bin", f"{what}: {' '.join(path)}")
                done += columns[path].add(value, number)
            if done > limit:
                raise UserError(
                    f"{what}: its first {number + 1:,} batches take {done / 1e9:.1f} GB, and there is room for "
                    f"{limit / 1e9:.1f} GB in '{folder.parent}': give a finite stream, or steps_per_epoch, or set TMPDIR to a "
                    "larger disk"
                )
            rows_of_first = rows_of_first or max(column.rows for column in columns.values())
            show(done, None)
    if structure is None:
        raise UserError(f"{what}: it has no batches")
    if not columns:
        raise UserError(f"{what}: its batches have no arrays")
    lengths = {path: column.rows for path, column in columns.items()}
    if len(set(lengths.values())) > 1:
        told = ", ".join(f"{' '.join(path)} has {rows:,}" for path, rows in lengths.items())
        raise UserError(f"{what}: its parts have different numbers of examples: {told}")
    notify(f"{what}: its batches have been packed: {next(iter(lengths.values())):,} examples, {done / 1e6:,.0f} MB")
    return StreamArrays(rows_of_first, *(_filled(part, (name,), columns) for name, part in zip(_PARTS, structure)))


def _leaves(batch: Sequence[object]) -> Iterator[tuple[tuple[str, ...], object]]:
    for name, part in zip(_PARTS, batch):
        if isinstance(part, Mapping):
            yield from (((name, key), one) for key, one in part.items())
        elif isinstance(part, tuple | list):
            yield from (((name, str(place)), one) for place, one in enumerate(part))
        elif part is not None:
            yield (name,), part


def _filled(part: object, path: tuple[str, ...], columns: Mapping[tuple[str, ...], _Column]) -> Part | None:
    """Return the examples of all batches, in the same structure as `part`, which is from a single batch."""
    if isinstance(part, Mapping):
        return {key: columns[*path, key].rows_of_all() for key in part}
    if isinstance(part, tuple | list):
        return tuple(columns[*path, str(place)].rows_of_all() for place in range(len(part)))
    return None if part is None else columns[path].rows_of_all()


class _Column:
    """One array of a stream, over all batches. Numbers are written to a file; strings are kept in memory."""

    def __init__(self, path: Path, what: str):
        self._what, self._path = what, path
        self._file: IO[bytes] = path.open("wb")
        self._dtype: np.dtype[Any] | None = None
        self._shape: tuple[int, ...] = ()
        self._texts: list[np.ndarray] = []
        self.rows = 0

    def add(self, value: object, batch: int) -> int:
        """Add the rows of a batch. Return their size in bytes."""
        rows = np.asarray(value)
        if rows.dtype == object and rows.size and all(isinstance(one, bytes) for one in rows.flat):
            rows = np.char.decode(rows.astype(bytes), "utf-8", "replace")  # strings of TensorFlow
        if not rows.shape:
            raise UserError(
                f"{self._what} of batch {batch} is {_kind(value)}, which has no rows: batch the stream first"
            )
        if self._dtype is None:
            self._dtype, self._shape = rows.dtype, rows.shape[1:]
        if rows.shape[1:] != self._shape:
            raise UserError(
                f"{self._what} of batch {batch} has rows of shape {list(rows.shape[1:])}, and earlier batches have "
                f"{list(self._shape)}: pad all examples to one shape"
            )
        self.rows += len(rows)
        if rows.dtype.kind in "US":
            self._texts.append(rows)
            return rows.nbytes
        return self._file.write(np.ascontiguousarray(rows.astype(self._dtype)).data)

    def rows_of_all(self) -> np.ndarray:
        """Return the rows of all batches. No rows can be added afterwards."""
        self._file.close()
        if self._texts:
            return np.concatenate(self._texts)
        assert self._dtype is not None  # a stream without batches has no columns
        return np.memmap(self._path, self._dtype, "r", shape=(self.rows, *self._shape))


def _kind(value: object) -> str:
    count = f" of {len(value)}" if isinstance(value, tuple | list) else ""
    return one_line(f"{type(value).__name__}{count}", 100)
