"""The initial values of a parameter store, and of each shard of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from ps_cluster.server.leftovers import new_session, note
from ps_cluster.server.update_rules.rule import Matrix


@dataclass(frozen=True)
class InitialState:
    """The initial values of a store, or of a shard of it; vectors in float32.

    weights: [n]. factors: [n], learning-rate factors. statistics: [m]. keep: [m], the share of the statistics s that a
    step keeps: s becomes keep s + fresh. session: of the leader, see server/leftovers.py. index: of the shard.
    """

    weights: np.ndarray
    factors: np.ndarray
    statistics: np.ndarray
    keep: np.ndarray
    matrices: tuple[Matrix, ...] = ()
    session: str = field(default_factory=new_session)
    index: int = 0

    def split(self, shards: int) -> list[InitialState]:
        """Return the state of each shard, with contiguous parts of all vectors. Of several none has matrices."""
        if shards == 1:
            return [self]
        vectors = self.weights, self.factors, self.statistics, self.keep
        return self._cut(*(np.array_split(vector, shards) for vector in vectors))

    def cut(self, positions: Sequence[np.ndarray], statistics: Sequence[int]) -> list[InitialState]:
        """Return the state of each shard: the weights at these positions, int64 [k], and so many statistics."""
        at = np.cumsum(statistics)[:-1]
        parts = [[vector[own] for own in positions] for vector in (self.weights, self.factors)]
        parts += [np.split(vector, at) for vector in (self.statistics, self.keep)]
        return self._cut(*parts)

    def _cut(self, *vectors: Sequence[np.ndarray]) -> list[InitialState]:
        return [
            replace(self, weights=weights, factors=factors, statistics=statistics, keep=keep, matrices=(), index=index)
            for index, (weights, factors, statistics, keep) in enumerate(zip(*vectors, strict=True))
        ]

    def name(self, kind: str, what: str) -> str:
        """Return the name of a resource of this shard; note it on the current device, so that a later leader ends it.

        Args:
          kind: as in server/leftovers.py.
        """
        name = f"{self.session}/shard-{self.index}/{what}"
        note(kind, [name])
        return name
