"""Describe where the weights of each shard are in the vector of the whole network.

A shard's vector is a sequence of parts. Usually it is a single part, which is a range of the network's vector. With
embedding tables and k parameter servers, a shard has a range of the weights outside of tables, followed by every k-th
row of each table. Each of these parts is described by a few numbers, because a list of positions would take twice as
much memory as the tables. In the modes `layers` and `width`, which divide the network among the workers, each part is
a list of positions.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import NamedTuple, TypeAlias

import numpy as np

# If the network has tables, the chief reads and sends this many numbers of a vector at a time (8 MB).
BLOCK_NUMBERS = 2**21


class RowRange(NamedTuple):
    """Describes a part of a shard's vector: a range of the network's vector, or every `step`-th row of such a range.

    A row is `width` consecutive weights, such as a row of an embedding table.
    """

    begin: int  # the range from `begin` to `end` consists of rows
    end: int
    width: int = 1  # the number of weights in a row
    first: int = 0  # the index of the first row in the range that belongs to the part
    step: int = 1  # the distance between two rows of the part, in rows

    @property
    def size(self) -> int:
        """The number of weights in the part."""
        rows = (self.end - self.begin) // self.width
        return max(0, -(-(rows - self.first) // self.step)) * self.width

    def take(self, vector: np.ndarray) -> np.ndarray:
        """Return the weights of this part from the network's vector, [..., n] → [..., size]."""
        return self._view(vector).reshape(*vector.shape[:-1], -1)

    def put(self, vector: np.ndarray, values: np.ndarray) -> None:
        """Write the weights of this part, [..., size], into the network's vector, [..., n]."""
        view = self._view(vector)
        view[...] = values.reshape(view.shape)

    def positions(self, indices: np.ndarray) -> np.ndarray:
        """Convert positions in the part (`indices`, int64 [k]) to positions in the network's vector, int64 [k]."""
        found: np.ndarray
        if self.width == self.step == 1:  # the usual case: one operation creates only one array
            found = indices + (self.begin + self.first)
            return found
        rows = self.first + indices // self.width * self.step
        found = self.begin + rows * self.width + indices % self.width
        return found

    def _view(self, vector: np.ndarray) -> np.ndarray:
        """Return the part's rows as a view of the vector, [..., rows, width]."""
        rows = vector[..., self.begin : self.end].reshape(*vector.shape[:-1], -1, self.width)
        return rows[..., self.first :: self.step, :]


@dataclass(frozen=True)
class Listed:
    """Describes a part of a shard's vector by a list of positions in the network's vector, int64 [size].

    It has the same methods as `RowRange`.
    """

    listed: np.ndarray

    @property
    def size(self) -> int:
        return len(self.listed)

    def take(self, vector: np.ndarray) -> np.ndarray:
        found: np.ndarray = vector[..., self.listed]
        return found

    def put(self, vector: np.ndarray, values: np.ndarray) -> None:
        vector[..., self.listed] = values

    def positions(self, indices: np.ndarray) -> np.ndarray:
        found: np.ndarray = self.listed[indices]
        return found


Part: TypeAlias = RowRange | Listed


class BlockPart(NamedTuple):
    """The part of a `Block` that belongs to one shard: its position in the block, and in the shard's vector."""

    shard: int  # the shard's index
    place: int  # the position of the first of these numbers in the shard's vector; the other numbers follow it
    rows: RowRange  # where the numbers are in the block


class Block(NamedTuple):
    """A block of the network's vector, from `begin` to `end`, and the part of the block that each shard has."""

    begin: int
    end: int
    parts: list[BlockPart]


class Arrangement:
    """Describes where the parts of each shard's vector are in the network's vector.

    Attributes:
      sizes: the length of each shard's vector.
      keyed: where each shard's part is in a checkpoint's array `KEYED`, which holds the keys and the bookkeeping of
        dynamic embedding tables; None if the network has no such tables.
    """

    def __init__(self, of_shards: Sequence[Sequence[Part]], keyed: Arrangement | None = None):
        self._of_shards, self.keyed = of_shards, keyed
        self._ends = [np.cumsum([part.size for part in parts]) for parts in of_shards]
        self.sizes = [int(ends[-1]) for ends in self._ends]

    def joined(self, vectors: Sequence[np.ndarray]) -> np.ndarray:
        """Return the network's vector, [..., n], made from the vectors of the shards."""
        whole = np.empty([*vectors[0].shape[:-1], sum(self.sizes)], vectors[0].dtype)
        for parts, ends, vector in zip(self._of_shards, self._ends, vectors, strict=True):
            for part, values in zip(parts, np.split(vector, ends[:-1], axis=-1), strict=True):
                part.put(whole, values)
        return whole

    def cut(self, vector: np.ndarray) -> list[np.ndarray]:
        """Return the vector of each shard, [..., size], cut from the network's vector. This reverses `joined`.

        A shard's vector may be a view of `vector`.
        """
        taken = [[part.take(vector) for part in parts] for parts in self._of_shards]
        return [pieces[0] if len(pieces) == 1 else np.concatenate(pieces, axis=-1) for pieces in taken]

    def blocks(self, most: int = BLOCK_NUMBERS) -> Iterator[Block]:
        """Yield consecutive blocks of the network's vector, which together cover it.

        A block has at most `most` numbers, or a single row if a row is longer. All parts have to be `RowRange` objects.
        """
        spans: dict[tuple[int, int], list[tuple[int, int, RowRange]]] = {}
        for shard, (parts, ends) in enumerate(zip(self._of_shards, self._ends, strict=True)):
            for part, place in zip(parts, ends.tolist(), strict=True):
                assert isinstance(part, RowRange)
                spans.setdefault((part.begin, part.end), []).append((shard, place - part.size, part))
        for (begin, end), of_span in sorted(spans.items()):
            width = of_span[0][2].width
            numbers = max(1, most // width) * width
            for low in range(begin, end, numbers):
                high, row = min(low + numbers, end), (low - begin) // width
                pieces = []
                for shard, place, span in of_span:
                    before = max(0, -(-(row - span.first) // span.step))  # rows of the part in earlier blocks
                    rows = RowRange(0, high - low, width, span.first + before * span.step - row, span.step)
                    if rows.size:
                        pieces.append(BlockPart(shard, place + before * width, rows))
                yield Block(low, high, pieces)

    def positions(self, shard: int, indices: np.ndarray) -> np.ndarray:
        """Convert positions in a shard's vector (`indices`, int64 [k]) to positions in the network's, int64 [k]."""
        if len(self._of_shards[shard]) == 1:  # `indices` may cover all weights, so avoid needless arrays
            return self._of_shards[shard][0].positions(indices)
        ends, found = self._ends[shard], np.empty(len(indices), np.int64)
        number = np.searchsorted(ends, indices, side="right")
        for index, part in enumerate(self._of_shards[shard]):
            chosen = number == index
            found[chosen] = part.positions(indices[chosen] - (ends[index] - part.size))
        return found


def contiguous(lengths: Sequence[int]) -> Arrangement:
    """Return the arrangement in which shards of these lengths follow one another in the network's vector."""
    return Arrangement([[RowRange(end - length, end)] for length, end in zip(lengths, accumulate(lengths))])
