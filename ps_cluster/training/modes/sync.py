"""Mode sync: synchronous training by all-reduce between the workers, without parameter servers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ps_cluster.config.lazy import tf
from ps_cluster.config.modes import ClusterShape, Flow, Synchrony, Waits
from ps_cluster.config.tasks import ON_DEATH, WITH_ALL_WORKERS, WORKER
from ps_cluster.server.shard import ParameterShard
from ps_cluster.training.modes.base import DefaultMode

if TYPE_CHECKING:
    from ps_cluster.training.job import TrainingJob


_WHOLE_IN_FLOAT64 = 2**52 - 1  # a mask of 52 bits: float64 holds every whole number of 52 bits exactly


class ReplicaShard(ParameterShard):
    """A shard with all weights, in a worker's process.

    The shards of all workers apply the same updates, so their weights are equal.
    """

    def write_rows(self, rows: tf.Tensor) -> tf.Operation:
        """Write rows into the ledger: for each update, one row from every worker.

        Args:
          rows: float64 [updates, workers, columns], all columns except the step id, which follows from the version.
        """
        workers = rows.shape[1]
        steps = (rows[:, :, :1] - 1) * workers + tf.range(workers, dtype=tf.float64)[None, :, None]
        return self.ledger.write(tf.reshape(tf.concat([steps, rows], axis=2), [-1, rows.shape[2] + 1]))

    def digest(self) -> tf.Tensor:
        """Return a checksum of the weights, an integer as float64 []. It depends on their order, too."""
        bits = tf.cast(tf.bitcast(self.weights.read_value(), tf.int32), tf.int64)
        odd = 2 * tf.range(self.length, dtype=tf.int64) + 1
        return tf.cast(tf.bitwise.bitwise_and(tf.reduce_sum(bits * odd), _WHOLE_IN_FLOAT64), tf.float64)


class Sync(DefaultMode):
    """Synchronous training by all-reduce between the workers, without parameter servers."""

    name = "sync"
    description = "all workers average each gradient by all-reduce, without parameter servers"
    cluster = ClusterShape(
        types=(WORKER,),
        flows=(Flow(WORKER, WORKER, "parts of gradients, in a ring"),),
        why_workers_are_fixed="each all-reduce needs all workers",
        # Each all-reduce waits for every worker, and the strategy can't replace a worker that died.
        on_death={**ON_DEATH, WORKER: WITH_ALL_WORKERS},
    )
    synchrony = Synchrony(waits=Waits.FOR_ALL_REDUCE, is_stale=False)
    shard = ReplicaShard

    def train(self, job: TrainingJob) -> None:
        from ps_cluster.training.all_reduce import train

        train(job)
