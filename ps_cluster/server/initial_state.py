"""Define the initial values of a parameter store and of its shards."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from ps_cluster.config.equations import Matrix
from ps_cluster.errors import UserError
from ps_cluster.models.keyed_rows import KeyedPart
from ps_cluster.server.leftovers import new_leader_prefix, note


@dataclass(frozen=True)
class InitialState:
    """The initial values of a parameter store, or of one of its shards. All vectors are float32."""

    weights: np.ndarray  # [n]
    factors: np.ndarray  # [n], the learning-rate factors
    statistics: np.ndarray  # [m]
    keep: np.ndarray  # [m], the share of the statistics s that a step keeps: s becomes keep * s + fresh
    matrices: tuple[Matrix, ...] = ()  # the positions of the matrices among the weights
    tables: tuple[np.ndarray, ...] = ()  # the rows of each group of embedding tables, [rows, width]
    keyed: Mapping[int, KeyedPart] = field(default_factory=dict)  # the groups whose rows are found by their keys
    # The prefix of the names of all resources that the leader creates, see server/leftovers.py.
    leader_prefix: str = field(default_factory=new_leader_prefix)
    index: int = 0  # the number of the shard, from 0

    def split(self, shards: int) -> list[InitialState]:
        """Return the state of each shard, which has a contiguous part of every vector.

        A matrix that the optimizer rule needs as a whole is never divided between shards.

        Raises:
          UserError: a shard would have no weights, because a matrix can't be divided.
        """
        if shards == 1:
            return [self]
        ends = ends_of_shards(len(self.weights), shards, self.matrices)
        parts = [np.split(vector, ends[:-1]) for vector in (self.weights, self.factors)]
        states = self._cut(*parts, *(np.array_split(vector, shards) for vector in (self.statistics, self.keep)))
        return [
            replace(
                state,
                matrices=tuple(
                    one._replace(begin=one.begin - begin) for one in self.matrices if begin <= one.begin < end
                ),
            )
            for state, begin, end in zip(states, [0, *ends[:-1]], ends, strict=True)
        ]

    def cut(self, positions: Sequence[np.ndarray], statistics: Sequence[int]) -> list[InitialState]:
        """Return the state of each shard, with the weights at the positions that belong to the shard.

        Args:
          positions: for each shard, the positions of its weights, int64 [k].
          statistics: the number of statistics of each shard. Each shard gets a contiguous range of them.
        """
        cuts = np.cumsum(statistics)[:-1]
        parts = [[vector[of_shard] for of_shard in positions] for vector in (self.weights, self.factors)]
        parts += [np.split(vector, cuts) for vector in (self.statistics, self.keep)]
        return self._cut(*parts)

    def _cut(self, *vectors: Sequence[np.ndarray]) -> list[InitialState]:
        parts = list(zip(*vectors, strict=True))
        return [
            replace(
                self,
                weights=weights,
                factors=factors,
                statistics=statistics,
                keep=keep,
                matrices=(),
                tables=self._tables_of(index, len(parts)),
                keyed={group: part.of_server(index, len(parts)) for group, part in self.keyed.items()},
                index=index,
            )
            for index, (weights, factors, statistics, keep) in enumerate(parts)
        ]

    def _tables_of(self, index: int, servers: int) -> tuple[np.ndarray, ...]:
        """Return the rows of each group of embedding tables that belong to one of the servers.

        They are every `servers`-th row of the group, beginning with row `index` (server/table_shard.py). In a dynamic
        embedding table, they are every `servers`-th bucket of rows.
        """
        ways = [self.keyed[group].layout.ways if group in self.keyed else 1 for group in range(len(self.tables))]
        return tuple(
            rows.reshape(-1, together, rows.shape[1])[index::servers].reshape(-1, rows.shape[1])
            for rows, together in zip(self.tables, ways)
        )

    def name(self, kind: str, what: str) -> str:
        """Return a name for a resource of this shard.

        The name is recorded in the process of the current device, so that `free_leftovers` can free the resource later.

        Args:
          kind: the type of the resource: QUEUE, LOCK or VARIABLE of server/leftovers.py.
          what: the last part of the name, which is unique within the shard.
        """
        name = f"{self.leader_prefix}/shard-{self.index}/{what}"
        note(kind, [name])
        return name


def ends_of_shards(length: int, shards: int, matrices: Sequence[Matrix]) -> list[int]:
    """Return, for each shard, the position in the vector of all weights where the shard ends.

    Each shard gets about the same number of weights. An end that falls inside a matrix is moved to the beginning or the
    end of this matrix, and the shards after it share the remaining weights equally.

    Args:
      length: the number of all weights.
    Raises:
      UserError: a shard would have no weights, because a matrix can't be divided.
    """
    ends = [0]
    for left in range(shards, 0, -1):
        begin = ends[-1]
        end = begin + -(-(length - begin) // left)
        for one in matrices:
            if one.begin < end < one.end:
                is_nearer = end - one.begin < one.end - end
                end = one.begin if is_nearer and one.begin > begin else one.end
        ends.append(end)
    if matrices and ends[-2] == length:
        raise UserError(
            f"cluster.parameter_servers: got {shards}: this optimizer rule keeps each matrix whole on one parameter server, "
            f"and the network's {len(matrices)} matrices leave no weights for the last server: choose fewer servers"
        )
    return ends[1:]
