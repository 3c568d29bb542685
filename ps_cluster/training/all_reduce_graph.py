"""Build the graph of a round of all-reduce: several updates, and one exchange between all workers after them.

Every worker holds all parameters. For each update, it

1. pulls the weights from its local shard, and computes the gradient of its part of the batch,
2. gets the mean of all workers' gradients by all-reduce,
3. applies the mean to its local shard, and keeps the update's row for the ledger, the table of applied gradients.

After these updates, one more all-reduce exchanges all their rows, every worker's request, and digests of the weights.

An update usually needs one all-reduce, of the flat gradient together with the moving statistics. If gradients are not
sent in float32 and the network has moving statistics, a second all-reduce sends these statistics in float32.
"""

from __future__ import annotations

from enum import IntEnum
from typing import NamedTuple

import tensorflow as tf

from ps_cluster.config import RunConfig
from ps_cluster.runs.ledger import NOT_SCHEDULED, ServerColumns
from ps_cluster.server.ordering import after, now_after
from ps_cluster.server.shard import columns_by_name
from ps_cluster.server.store import ParameterStore, Pulled, StepPush
from ps_cluster.training.devices import graph_of_dispatch
from ps_cluster.training.modes.sync import ReplicaShard
from ps_cluster.training.step import Compute, WorkerIdentity
from ps_cluster.training.worker import TimedComputation


class Request(IntEnum):
    """The action that all workers take after a round. Worker 0 chooses it."""

    CONTINUE = 0
    STOP = 1  # end the training for good
    CONTINUE_LATER = 2  # end this process; the training continues when the tasks are started again
    SAVE = 3  # continue, and wait for worker 0, which may save a state before the next round

    @property
    def ends_training(self) -> bool:
        return self in (Request.STOP, Request.CONTINUE_LATER)


class RoundEnd(NamedTuple):
    """The result of the exchange between all workers at the end of a round.

    Attributes:
      request: the request of worker 0.
      digests: a digest of each worker's weights after the updates of the round.
    """

    request: Request
    digests: list[float]


class AllReduceUpdates:
    """Runs rounds: several updates in one graph, and an exchange of rows, requests and digests between all workers."""

    def __init__(self, strategy: tf.distribute.Strategy, store: ParameterStore, compute: Compute, config: RunConfig):
        self._strategy = strategy
        self._workers = config.cluster.workers
        self._replica = store.only_shard(ReplicaShard)
        self._computation = TimedComputation(compute, config, store)
        self._graph = graph_of_dispatch(config, tf.TensorSpec([], tf.int32), self._round)

    def __call__(self, updates: int, request: Request) -> RoundEnd:
        """Run a round. All workers must call this with the same number of updates.

        Args:
          updates: the number of updates in the round.
          request: this worker's request. Only worker 0 may request anything other than CONTINUE.
        """
        ended = self._graph(tf.constant(updates), tf.constant(float(request), tf.float64))
        leader_request, *digests = ended.numpy().tolist()
        return RoundEnd(Request(leader_request), digests)

    def _round(self, updates: tf.Tensor, request: tf.Tensor) -> tf.Tensor:
        """Run a round; return the request of worker 0 and the digests of all workers, float64 [1 + workers].

        Args:
          updates: int32 [].
          request: float64 [].
        """
        who = self._strategy.run(lambda: WorkerIdentity.read().both())

        def body(position: tf.Tensor, rows: tf.TensorArray) -> tuple[tf.Tensor, tf.TensorArray]:
            row = self._strategy.run(self._update, args=(who,))
            return position + 1, rows.write(position, row)

        rows = tf.TensorArray(tf.float64, size=updates, element_shape=[None])
        _, rows = tf.while_loop(lambda position, _: position < updates, body, [0, rows], parallel_iterations=1)
        return self._strategy.run(self._share, args=(rows.stack(), request, who[0]))

    def _update(self, who: tf.Tensor) -> tf.Tensor:
        """Apply one update; return this worker's ledger row for it. `who`: int64 [2], see `WorkerIdentity.both`."""
        identity = WorkerIdentity(who[0], who[1])
        asked = tf.timestamp()
        with tf.control_dependencies([asked]):
            answer = self._replica.read_message(self._replica.pull(identity.worker))
        pulled = Pulled(answer.weights, answer.statistics, answer.numbers[:1])  # the version of the only shard
        step_id = pulled.versions[0] * self._workers + identity.worker
        push, _ = self._computation(step_id, pulled, identity, NOT_SCHEDULED, asked, asked)
        with tf.control_dependencies([push.columns]):
            means = self._mean_over_workers(push)
        entered = now_after(*means)
        gradient, fresh = (after([entered], vector) for vector in means)
        rate = columns_by_name(push.columns).learning_rate
        version = self._replica.apply_mean(gradient, tf.cast(rate, tf.float32), fresh)
        staleness = version - 1 - pulled.versions[0]
        columns = ServerColumns(version, staleness, 1.0, entered, now_after(version))
        return tf.concat([tf.stack([tf.cast(value, tf.float64) for value in columns]), push.columns], 0)

    def _mean_over_workers(self, push: StepPush) -> list[tf.Tensor]:
        """Return the gradient [n] and what the step adds to the moving statistics [m], averaged over all workers."""
        if push.fresh.shape[0] == 0 or push.gradient.dtype == tf.float32:
            return self._mean(push.gradient, tf.cast(push.fresh, push.gradient.dtype))
        # With bfloat16's 8 bits a moving mean would be wrong by up to 0.3 % of a standard deviation. Statistics are
        # few, so they are sent in float32.
        return [*self._mean(push.gradient), *self._mean(push.fresh)]

    def _mean(self, *vectors: tf.Tensor) -> list[tf.Tensor]:
        """Return the mean of each vector over all workers, in float32. One all-reduce sends all these vectors.

        `vectors`: vectors of the same dtype.
        """
        summed = tf.cast(_all_reduce(tf.concat(vectors, 0)), tf.float32)
        means: list[tf.Tensor] = tf.split(summed / self._workers, [tf.size(vector) for vector in vectors])
        return means

    def _share(self, rows: tf.Tensor, request: tf.Tensor, worker: tf.Tensor) -> tf.Tensor:
        """Write all workers' rows into every worker's ledger.

        Return the request of worker 0, and a digest of the weights for each worker. The request is computed as the sum
        of all requests, because the other workers always request CONTINUE, which is 0.
        """
        mine = tf.one_hot(worker, self._workers, on_value=True, off_value=False)
        # Not a product with `mine`: there, a NaN in one worker's rows would spread to all rows, because NaN x 0 is NaN.
        table = tf.where(mine[None, :, None], rows[:, None, :], tf.zeros([], tf.float64))  # [count, workers, columns]
        digests = tf.where(mine, self._replica.digest(), tf.zeros([], tf.float64))
        summed = _all_reduce(tf.concat([tf.reshape(table, [-1]), [request], digests], 0))
        table = tf.reshape(summed[: -1 - self._workers], tf.shape(table))
        with tf.control_dependencies([self._replica.write_rows(table)]):
            return tf.identity(summed[-1 - self._workers :])


def _all_reduce(vector: tf.Tensor) -> tf.Tensor:
    """Return the sum of a vector over all workers."""
    return tf.distribute.get_replica_context().all_reduce(tf.distribute.ReduceOp.SUM, vector)
