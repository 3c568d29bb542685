"""Rows that are made from others when they are asked for, so that none of them has to fit into the memory."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from ps_cluster.catalogue.examples import Rows


class Selected:
    """Some rows of an array, in the order of `ids` [N]."""

    def __init__(self, rows: Any, ids: np.ndarray):
        self._rows, self._ids = rows, ids
        self.dtype, self.shape = rows.dtype, (len(ids), *rows.shape[1:])

    def __len__(self) -> int:
        return len(self._ids)

    def __getitem__(self, part: slice | np.ndarray) -> np.ndarray:
        return self._rows[self._ids[part]]


class Changed:
    """Rows of another dtype or shape: `change` makes them, piece by piece."""

    def __init__(self, rows: Rows, change: Callable[[np.ndarray], np.ndarray]):
        self._rows, self._change = rows, change
        like = change(np.asarray(rows[:1]))
        self.dtype, self.shape = like.dtype, (len(rows), *like.shape[1:])

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, part: slice | np.ndarray) -> np.ndarray:
        return self._change(np.asarray(self._rows[part]))  # type: ignore[index]  # an array of ids, if the rows take one


class Streamed:
    """Rows that can only be read from the first to the last. Reading goes on where it was, or begins again."""

    def __init__(self, dtype: str, shape: tuple[int, ...], read: Callable[[], Iterator[np.ndarray]]):
        """Keep how to read. `read` returns all rows [N, ...] from the first on, in pieces of any length."""
        self.dtype, self.shape = np.dtype(dtype), shape
        self._read = read
        self._begin_again()

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, part: slice) -> np.ndarray:
        start, stop, _ = part.indices(len(self))
        if start < self._at:
            self._begin_again()
        self._take(start - self._at)
        return self._take(stop - start)

    def _begin_again(self) -> None:
        self._at = 0
        self._pieces: Iterator[np.ndarray] = iter(())
        self._left = np.empty((0, *self.shape[1:]), self.dtype)

    def _take(self, count: int) -> np.ndarray:
        """Return the next rows, and go on behind them."""
        if not self._at and not len(self._left):
            self._pieces = self._read()
        taken = [self._left[:count]]
        self._left, missing = self._left[count:], count - len(taken[0])
        while missing > 0:
            piece = next(self._pieces)
            taken.append(piece[:missing])
            self._left, missing = piece[missing:], missing - len(taken[-1])
        self._at += count
        return np.concatenate(taken)
