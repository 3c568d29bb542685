"""Compute the rows of a data set only when they are read, so that not all rows have to fit into memory together."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from typing import Protocol, runtime_checkable

import numpy as np

from ps_cluster.config.objectives import FieldValues


@runtime_checkable
class IndexableRows(FieldValues, Protocol):
    """An array, or an object like it, whose rows can be read with a slice or with indices (int64 [M])."""

    @property
    def dtype(self) -> np.dtype: ...

    def __getitem__(self, part: slice | np.ndarray, /) -> np.ndarray: ...


class LazyRows(ABC):
    """An array [N, ...] of known dtype and shape whose rows are computed only when they are read."""

    def __init__(self, dtype: np.dtype, shape: tuple[int, ...]):
        self.dtype, self.shape = dtype, shape

    def __len__(self) -> int:
        return self.shape[0]

    @abstractmethod
    def __getitem__(self, part: slice | np.ndarray, /) -> np.ndarray:
        """Return some rows. `part`: a slice, or indices int64 [M] in ascending order."""


class SelectedRows(LazyRows):
    """The rows of another array at the indices `ids` [N], in the order of `ids`."""

    def __init__(self, rows: IndexableRows, ids: np.ndarray):
        super().__init__(rows.dtype, (len(ids), *rows.shape[1:]))
        self._rows, self._ids = rows, ids

    def __getitem__(self, part: slice | np.ndarray, /) -> np.ndarray:
        return self._rows[self._ids[part]]


class ChangedRows(LazyRows):
    """The rows of another array, which `change` converts to another dtype or shape when they are read."""

    def __init__(self, rows: IndexableRows, change: Callable[[np.ndarray], np.ndarray]):
        first = change(np.asarray(rows[:1]))
        super().__init__(first.dtype, (len(rows), *first.shape[1:]))
        self._rows, self._change = rows, change

    def __getitem__(self, part: slice | np.ndarray, /) -> np.ndarray:
        return self._change(np.asarray(self._rows[part]))


class StreamedRows(LazyRows):
    """An array whose rows can only be read in order, from the first to the last.

    If an earlier row is wanted, all rows are read again from the first one on.
    """

    _pieces: Iterator[np.ndarray]  # the pieces that have not been read yet
    _piece: np.ndarray  # the piece that was read last
    _first: int  # the index of the first row of `_piece`

    def __init__(self, dtype: str, shape: tuple[int, ...], read: Callable[[], Iterator[np.ndarray]]):
        """Create the rows. `read` returns all rows [N, ...] from the first to the last, in pieces of any length."""
        super().__init__(np.dtype(dtype), shape)
        self._read = read
        self._start_again()

    def __getitem__(self, part: slice | np.ndarray, /) -> np.ndarray:
        places = np.arange(*part.indices(len(self))) if isinstance(part, slice) else part
        if len(places) and places[0] < self._first:
            self._start_again()
        taken = [self._piece[:0]]
        while len(places):
            behind = self._first + len(self._piece)
            here = int(np.searchsorted(places, behind))
            taken.append(self._piece[places[:here] - self._first])
            places = places[here:]
            if len(places):
                self._first, self._piece = behind, next(self._pieces)
        return np.concatenate(taken)

    def _start_again(self) -> None:
        self._first, self._piece = 0, np.empty((0, *self.shape[1:]), self.dtype)
        self._pieces = self._read()
