"""Define the columns of the ledger, and join the rows of several shards into one row per step. No TensorFlow.

A row belongs to a step id. It is written in the critical section in which the step's gradient is accepted. An accepted
gradient is applied immediately. In a mode with rounds, which apply the mean of several workers' gradients, the last
gradient of a round triggers the update. Each parameter server keeps a ledger of the updates to its shard.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from ps_cluster.config.lazy import tf
from ps_cluster.files.values import Malformed
from ps_cluster.runs.rows import MOST, MOST_INDEX

# The constants of `server.rate_of_more_workers.RateOfMoreWorkers`.
RATE_RETURNS_OVER = (
    100  # after workers have left, the lowered factor of the learning rate grows e-fold in this many updates
)
# A worker takes part if it made at least one of the last TAKES_PART_FOR x (number of workers so far) updates.
TAKES_PART_FOR = 16


class ServerColumns(NamedTuple):
    """The columns of a ledger row that the parameter server fills.

    In a graph they are scalars of any numeric dtype, elsewhere numbers.

    Times are unix seconds. The docstring of `WorkerColumns` describes their order.
    """

    version: tf.Tensor | float
    staleness: tf.Tensor | float
    # The update was made with the row's learning rate x this factor (`server.rate_of_more_workers.RateOfMoreWorkers`).
    rate_factor: tf.Tensor | float
    entered_time: tf.Tensor | float
    applied_time: tf.Tensor | float


class WorkerColumns(NamedTuple):
    """The columns of a ledger row that the worker fills, and pushes with the gradient.

    In a graph they are scalars of any numeric dtype, elsewhere numbers.

    A step has these times, in order. First the chief schedules the dispatch. Then the worker asks for parameters (or
    has got them with the reply to its previous push), is admitted (perhaps after a wait), has pulled the parameters,
    has computed, and pushes (later than it has computed if it is slow on purpose). Finally the push enters the critical
    section of the parameter server, and the update is applied.
    """

    worker: tf.Tensor | float
    pid: tf.Tensor | float
    examples: tf.Tensor | float
    ids_checksum: tf.Tensor | float
    metric: tf.Tensor | float
    loss: tf.Tensor | float
    learning_rate: tf.Tensor | float
    # The norm of the part of gradients that the worker's pushes to this shard have left out, before and after this push;
    # 0 if none.
    remainder_before: tf.Tensor | float
    remainder_after: tf.Tensor | float
    # How many rows of embedding tables the step has pulled and pushed, and how many numbers are in them; 0 without any.
    rows: tf.Tensor | float
    row_values: tf.Tensor | float
    scheduled_time: tf.Tensor | float
    asked_time: tf.Tensor | float
    admitted_time: tf.Tensor | float
    pulled_time: tf.Tensor | float
    computed_time: tf.Tensor | float
    pushed_time: tf.Tensor | float


WORKER_COLUMNS = WorkerColumns._fields
COLUMNS = ("step", *ServerColumns._fields, *WORKER_COLUMNS)
TIME_COLUMNS = tuple(name for name in COLUMNS if name.endswith("_time"))
NOT_SCHEDULED = 0.0  # the scheduled time in modes where no chief hands out steps

ROW = np.dtype([(name, np.float64) for name in COLUMNS])
"""A row of a shard's ledger, and a line of metrics/updates.csv."""
NO_ROWS = np.empty(0, ROW)

WHOLE = {"ps", "step", "version", "staleness", "worker", "pid", "examples", "ids_checksum", "rows", "row_values"}
REMAINDERS = ("remainder_before", "remainder_after")
_OF_A_DIVERGED_RUN = {"loss", "learning_rate", "metric", *REMAINDERS}  # may be NaN or infinite


class Counts(NamedTuple):
    """The counters that a parameter server keeps in addition to its ledger's rows.

    Each counter is incremented by a different method, so that the counters check each other.
    """

    version: int
    accepted: int  # gradients
    refused: int  # replays
    dropped: int  # gradients that came too late


COUNTS = Counts._fields


def counts_of(table: np.ndarray) -> list[Counts]:
    """Return the counters of each shard. `table`: int64 [shards, len(COUNTS)]."""
    return [Counts(*of_shard) for of_shard in table.tolist()]


def names_of(row: np.dtype) -> tuple[str, ...]:
    """Return the names of a structured dtype's fields, in order; empty for a plain dtype."""
    return row.names or ()


def check_values(rows: np.ndarray) -> None:
    """Raise Malformed if `rows`, a structured array [k], contain an impossible value, such as a negative step."""
    for name in set(names_of(rows.dtype)) - _OF_A_DIVERGED_RUN:
        values = rows[name]
        sound = np.abs(values) <= MOST  # false for NaN too
        if name in WHOLE:
            sound &= (values >= 0) & (values == np.floor(values))
        if name == "worker":
            sound &= values < MOST_INDEX
        if not sound.all():
            raise Malformed(f"has the impossible value {values[np.argmin(sound)]:g} in column '{name}'")


def rows_of(table: np.ndarray) -> np.ndarray:
    """Convert a table of numbers, float64 [k, len(COLUMNS)], to a structured array [k] of dtype ROW."""
    return np.ascontiguousarray(table, np.float64).view(ROW).reshape(-1)


class ShardJoiner:
    """Joins the ledger rows that several shards have for the same step into one row.

    A step counts as applied when all shards have accepted it.

    Attributes:
      waiting: the rows of steps that some shards have not accepted yet, a structured array [k] of dtype ROW.
      waiting_shards: int64 [k], the index of the shard of each of these rows.
      mixed: the number of steps whose pushes to different shards came from different processes, because a worker died.
    """

    def __init__(self, shards: int, *, shared: bool = False):
        """Create a joiner.

        `shared`: whether the network itself is divided among the workers. All workers then take part in each step, and
        each shard belongs to a different worker.
        """
        self._shards = shards
        self._shared = shared
        self.waiting, self.waiting_shards = NO_ROWS, np.zeros(0, np.int64)
        self.mixed = 0

    def add(self, rows: list[np.ndarray]) -> np.ndarray:
        """Return one row for each step that is now applied on every shard, in the order of their steps.

        A step's staleness is that of its stalest shard, and its rate factor is the lowest of all shards. Its times on
        the parameter server are those of the shard that applied it last. The norms of what compression has left out
        (`remainder_before`, `remainder_after`) are taken over all shards. Its worker is the one that pushed to shard 0.
        `rows`: the new rows of each shard.
        """
        if self._shards == 1:
            return rows[0][np.argsort(rows[0]["step"], kind="stable")]
        held = np.concatenate([self.waiting, *rows])
        owners = np.concatenate([self.waiting_shards, np.repeat(np.arange(self._shards), [len(own) for own in rows])])
        # If a shard has a row twice, it counts once here, and the proof reports it. Step and shard are combined into one
        # number, because sorting pairs took half of the time of the chief's periodic check of 16 shards.
        _, order = np.unique(held["step"].astype(np.int64) * self._shards + owners, return_index=True)
        held, owners = held[order], owners[order]
        _, which, counts = np.unique(held["step"], return_inverse=True, return_counts=True)
        whole = counts[which] == self._shards
        self.waiting, self.waiting_shards = held[~whole], owners[~whole]
        return self._join(held[whole].reshape(-1, self._shards))

    def _join(self, rows: np.ndarray) -> np.ndarray:
        """Combine the rows of all shards into one row per step, [steps] of ROW. `rows`: [steps, shards] of ROW."""
        joined, last = rows[:, 0].copy(), rows["applied_time"].argmax(axis=1)
        joined["staleness"] = rows["staleness"].max(axis=1)
        joined["rate_factor"] = rows["rate_factor"].min(axis=1)
        for name in ("remainder_before", "remainder_after"):
            joined[name] = np.linalg.norm(rows[name], axis=1)
        for name in ("entered_time", "applied_time"):
            joined[name] = rows[name][np.arange(len(rows)), last]
        if not self._shared:
            self.mixed += int((rows["pid"] != rows["pid"][:, :1]).any(axis=1).sum())
        return joined
