"""Describe the arrays of a checkpoint: their names, and how each is made of the parts of all shards. No TensorFlow.

Each array has a form. The form says which dtype and how many axes the array has, how the parts of the shards are joined
and cut again, and what changes with another number of shards. `form_of` returns the form of an array by its name in the
file. Most values come from `ParameterShard.state` (server/shard.py). Those of the ledger and of the dynamic embedding
tables come from server/shard_checkpoint.py. The chief adds `WAITING` and `CHANGED`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, TypeAlias

import numpy as np

from ps_cluster.files.values import Malformed

if TYPE_CHECKING:
    from ps_cluster.server.arrangement import Arrangement

Shape: TypeAlias = "tuple[int, ...]"

NAME_PATTERN = r"^[a-z0-9_]{1,60}$"
# The names of the arrays.
WEIGHTS, STATISTICS = "weights", "statistics"
ACCEPTED_STEPS = "accepted_steps"
COUNTERS = "counts"  # the counters of each shard
WAITING = "waiting"  # ledger rows of steps that some shards have not accepted yet
KEYED = "keyed"  # the keys and the rest of the bookkeeping of all dynamic embedding tables (server/keyed_tables.py)
CHANGED = "changed"  # the positions, as ranges, of the weights and slots that a snapshot of changed rows holds
LEDGER = {COUNTERS, ACCEPTED_STEPS, WAITING}  # the arrays that a resumed training needs in addition to its parameters


@dataclass(frozen=True)
class Form(ABC):
    """Describes how the parts that the shards hold make up an array of a checkpoint.

    Attributes:
      dtype: the dtype of the array; None if it may have any dtype.
      ranks: the numbers of axes that the array may have; None if it may have any number except 0.
      prefix: how the names of arrays of this form begin.
      is_of_shards: whether the shards hold the array. If not, only the chief reads and writes it.
      has_number_per_weight: whether the array has one or more numbers for each weight, also for the weights in rows of
        embedding tables.
      takes_single_numbers: whether a shard's part may be a single number, [].
    """

    dtype: type[np.generic] | None = None
    ranks: tuple[int, ...] | None = None
    prefix: str = ""
    is_of_shards: bool = True
    has_number_per_weight: ClassVar[bool] = False
    takes_single_numbers: ClassVar[bool] = False

    def array_name(self, name: str) -> str:
        """Return the name that an array of this form has in a checkpoint, for example "slot_momentum" for "momentum"."""
        return self.prefix + name

    def check(self, name: str, array: np.ndarray) -> None:
        """Raise Malformed if an array, which was read from a file, does not have this form."""
        has_right_rank = array.ndim > 0 if self.ranks is None else array.ndim in self.ranks
        if not has_right_rank or self.dtype not in (None, array.dtype):
            raise Malformed(f"array '{name}' has the wrong dtype or shape: {array.dtype} {list(array.shape)}")

    def has_row_per_worker(self, rank: int) -> bool:
        """Return whether a shard's part with this number of axes has a row (or a number) for each worker.

        When a checkpoint is restored for more workers, each new worker's row gets the variable's first values, unless
        `ParameterShard.row_of_newcomer` returns another row.
        """
        return rank == 2

    def joined_shape(self, parts: Sequence[Shape]) -> Shape:
        """Return the shape of the array that is made of parts with these shapes, one part for each shard."""
        return *parts[0][:-1], sum(part[-1] for part in parts)

    def sizes(self, shape: Shape) -> Shape:
        """Return those properties of an array's shape that have to fit when a checkpoint is restored.

        Unless a subclass overrides this, they are the number of axes and the length of the last axis. The number of
        workers may differ.
        """
        return len(shape), shape[-1]

    @abstractmethod
    def joined(self, parts: Sequence[np.ndarray], arrangement: Arrangement) -> np.ndarray:
        """Return the array that is made of the parts of all shards.

        Args:
          arrangement: where the weights of each shard are in the network's vector.
        """

    @abstractmethod
    def cut(self, array: np.ndarray, shapes: Sequence[Shape], arrangement: Arrangement) -> list[np.ndarray]:
        """Return the part of each shard. This reverses `joined`. `shapes`: the shapes of the parts."""

    def resharded(self, array: np.ndarray, shards: int) -> np.ndarray:
        """Return an array of an aligned checkpoint (runs/resharding.py), converted for this number of shards."""
        return array


class ByWeight(Form):
    """[n], a number for each weight of the network, or [workers, n], such a vector for each worker."""

    has_number_per_weight = True

    def joined(self, parts: Sequence[np.ndarray], arrangement: Arrangement) -> np.ndarray:
        return arrangement.joined(parts)

    def cut(self, array: np.ndarray, shapes: Sequence[Shape], arrangement: Arrangement) -> list[np.ndarray]:
        return arrangement.cut(array)


class Whole(Form):
    """[m], the vectors of all shards, one after the other, or [workers, m], such a vector for each worker."""

    def joined(self, parts: Sequence[np.ndarray], arrangement: Arrangement) -> np.ndarray:
        return np.concatenate(parts, axis=-1)

    def cut(self, array: np.ndarray, shapes: Sequence[Shape], arrangement: Arrangement) -> list[np.ndarray]:
        return np.split(array, np.cumsum([shape[-1] for shape in shapes])[:-1], axis=-1)


class Keyed(Whole):
    """[m], the vectors of all shards, one after the other for each dynamic embedding table."""

    def joined(self, parts: Sequence[np.ndarray], arrangement: Arrangement) -> np.ndarray:
        return arrangement.keyed.joined(parts) if arrangement.keyed else super().joined(parts, arrangement)

    def cut(self, array: np.ndarray, shapes: Sequence[Shape], arrangement: Arrangement) -> list[np.ndarray]:
        return arrangement.keyed.cut(array) if arrangement.keyed else super().cut(array, shapes, arrangement)


class ByShard(Form):
    """[ps], a number for each shard, or [ps, k], a row for each shard, such as a number for each worker."""

    takes_single_numbers = True

    def has_row_per_worker(self, rank: int) -> bool:
        return rank == 1

    def joined_shape(self, parts: Sequence[Shape]) -> Shape:
        return len(parts), *parts[0]

    def sizes(self, shape: Shape) -> Shape:
        """Return only the number of shards."""
        return shape[:1]

    def joined(self, parts: Sequence[np.ndarray], arrangement: Arrangement) -> np.ndarray:
        """Return the array; a row that is shorter than others is padded with zeros."""
        if parts[0].ndim == 0:
            return np.stack(parts)
        longest = max(map(len, parts))
        return np.stack([np.pad(part, (0, longest - len(part))) for part in parts])

    def cut(self, array: np.ndarray, shapes: Sequence[Shape], arrangement: Arrangement) -> list[np.ndarray]:
        return list(array)

    def resharded(self, array: np.ndarray, shards: int) -> np.ndarray:
        # A new shard continues the rows of shard 0 (`journal.history_of`).
        return array[[index if index < len(array) else 0 for index in range(shards)]]


class Counters(ByShard):
    """[ps, counters], the counters of each shard."""

    def resharded(self, array: np.ndarray, shards: int) -> np.ndarray:
        # The numbers of refused and dropped pushes differ between shards; keep the largest.
        return np.repeat(array.max(axis=0, keepdims=True), shards, axis=0)


# The forms of arrays that modes, optimizer rules and staleness methods add.
BY_WEIGHT = ByWeight(np.float32, (1, 2), prefix="slot_")
BY_SHARD = ByShard(np.float32, (1, 2), prefix="each_")
WHOLE = Whole()  # the form of arrays with any other name

_FORMS: dict[str, Form] = {
    WEIGHTS: ByWeight(np.float32, (1,)),
    STATISTICS: Whole(np.float32, (1,)),
    ACCEPTED_STEPS: ByShard(np.int64, (2,)),
    COUNTERS: Counters(np.int64, (2,)),
    WAITING: Whole(np.float64, (2,), is_of_shards=False),
    KEYED: Keyed(np.int64, (1,)),
    CHANGED: Whole(np.int64, (2,), is_of_shards=False),
}


def form_of(name: str) -> Form:
    """Return the form of the array that has this name in a checkpoint."""
    with_prefix = (form for form in (BY_WEIGHT, BY_SHARD) if name.startswith(form.prefix))
    return _FORMS.get(name) or next(with_prefix, WHOLE)
