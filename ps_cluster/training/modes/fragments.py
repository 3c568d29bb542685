"""Exchange the shards at different times within a period of local steps, so that not all weights are sent at once.

Mode diloco uses this module if `mode.fragments` is set.
"""

from __future__ import annotations

import numpy as np

from ps_cluster.config import RunConfig
from ps_cluster.config.lazy import tf
from ps_cluster.config.stragglers import parse_stragglers
from ps_cluster.runs.ledger import WorkerColumns
from ps_cluster.runs.run_dir import residual_files
from ps_cluster.server.ordering import after, now_after
from ps_cluster.server.shard import Push
from ps_cluster.server.store import ParameterStore
from ps_cluster.training.devices import graph_of_dispatch
from ps_cluster.training.modes.local_steps import LocalOptimizer, LocalTraining, PeriodSoFar
from ps_cluster.training.slow_down import SlowDown
from ps_cluster.training.step import WorkerIdentity
from ps_cluster.training.worker import DispatchGraph, StepTimes, stacked, with_remainders, worker_columns
from ps_cluster.training.worker_state import ErrorFeedback

_APART = 1_000_003  # the difference between the seeds of two consecutive shards


class FragmentedWorker:
    """Takes local steps in a worker, and exchanges each shard after a different step of the period.

    This is Streaming DiLoCo (Douillard et al. 2025, arXiv:2501.18512, section 2.1) without the paper's overlap of
    communication and computation: training pauses during an exchange. With S shards and H local steps, shard S - 1 is
    exchanged after H / S steps of each period, shard S - 2 after 2 H / S, and shard 0 after all H. The exchange of a
    shard does not change the worker's local weights of the other shards. So there are H steps between two exchanges of
    a shard. Until the next exchange, the worker's process keeps the shard's pulled weights, statistics and version.
    """

    def __init__(self, store: ParameterStore, training: LocalTraining):
        lengths, counts = zip(*[(part.length, part.statistics_length) for part in store.shards])
        self._shards, self._training = store.shards, training
        self._ends, self._statistics_ends = np.cumsum(lengths), np.cumsum(counts)
        self.own = LocalOptimizer(training)

        self._feedback = [
            ErrorFeedback(
                part.codec.rounded,
                [part.length],
                (training.seed + _APART * index) % 2**31,
                residual_files(index),
                name=f"{store.leader_prefix}/left-out-{index}",
            )
            for index, part in enumerate(self._shards)
            if part.codec.loses
        ]

        variable = self.own.state.scratch
        self._pulled = variable("pulled", [int(self._ends[-1])], tf.float32)
        self._statistics = variable("statistics", [int(self._statistics_ends[-1])], tf.float32)
        self._statistics_pulled = variable("statistics pulled", [int(self._statistics_ends[-1])], tf.float32)
        self._versions = variable("versions", [len(lengths)], tf.int64)

    def begin(self, store: ParameterStore, worker: tf.Tensor, step: tf.Tensor) -> tf.Tensor:
        """Pull all shards, unless this process has pulled them before. Returns a tensor to depend on."""

        def pull() -> tf.Tensor:
            pulled = store.pull(worker)
            weights = tf.cast(pulled.weights, tf.float32)
            kept = [(self.own.weights, weights), (self._pulled, weights), (self._versions, pulled.versions)]
            kept += [(one, pulled.statistics) for one in (self._statistics, self._statistics_pulled)]
            return after([variable.assign(value, read_value=False) for variable, value in kept], 0)

        is_there = tf.raw_ops.VarIsInitializedOp(resource=self._versions.handle)
        begun = tf.cond(is_there, lambda: 0, pull)
        return after([self.own.state.load(step, [begun])], begun)

    def take(self, step: tf.Tensor, first: int, end: int, so_far: PeriodSoFar) -> PeriodSoFar:
        """Take local steps, and keep the resulting statistics. See `LocalOptimizer.take`."""
        with tf.control_dependencies([so_far.passed_on]):
            statistics = self._statistics.read_value()
        ended = self.own.take(step, first, end, so_far._replace(statistics=statistics))
        with tf.control_dependencies([self._statistics.assign(ended.statistics, read_value=False)]):
            return ended._replace(passed_on=tf.identity(ended.passed_on))

    def exchange(
        self, index: int, step: tf.Tensor, columns: WorkerColumns, needed: tf.Tensor
    ) -> tuple[tf.Tensor, tf.Tensor]:
        """Push the change of the worker's weights of shard `index`, and load the weights and statistics in the answer.

        The pushed change is the weights that the last exchange of this shard returned, minus the current weights.
        Returns a tensor to depend on, and the outcome of the push, int64 [].
        """
        part = self._shards[index]
        of, of_statistics = (
            slice(int(ends[index]) - length, int(ends[index]))
            for ends, length in ((self._ends, part.length), (self._statistics_ends, part.statistics_length))
        )
        with tf.control_dependencies([needed]):
            moved = self._pulled.read_value()[of] - self.own.weights.read_value()[of]
            before, now = (one.read_value()[of_statistics] for one in (self._statistics_pulled, self._statistics))
            version = self._versions.read_value()[index]
        fresh = now - np.broadcast_to(self._training.kept, self._statistics.shape)[of_statistics] * before
        if self._feedback:
            sent = self._feedback[index](step, moved)
            vector, settle, columns = sent.vector, sent.settle, with_remainders(columns, sent.remainders[0])
        else:
            vector, settle = tf.cast(moved, part.wire), lambda outcomes: []
        message = part.exchange(Push(step, version, vector, fresh, stacked(columns)), step)
        answer, outcome = part.read_message(message), part.outcome(message)
        weights = tf.cast(answer.weights, tf.float32)
        kept = [one[of].assign(weights) for one in (self.own.weights, self._pulled)]
        kept += [one[of_statistics].assign(answer.statistics) for one in (self._statistics, self._statistics_pulled)]
        with tf.control_dependencies([*kept, *settle(outcome[None])]):
            return after([self._versions[index].assign(answer.version)], 0), outcome


def batches_before_exchange(batches: int, shard: int, shards: int) -> int:
    """Return the number of batches in a period that come before the exchange of a shard.

    The last shard is exchanged first. `batches`: the number of all batches in the period.
    """
    return batches * (shards - shard) // shards


def fragments_graph(store: ParameterStore, training: LocalTraining, config: RunConfig) -> DispatchGraph:
    """Return the graph that a worker runs for a dispatch, a group of periods. It exchanges the shards one by one.

    See also `steps_graph`.
    """
    shards, steps = len(store.shards), config.batches_per_step
    stragglers = parse_stragglers(config.cluster.straggler)
    slow_down = SlowDown(stragglers, config.most_workers, config.training.seed, parts=shards)

    def run_steps(step_ids: tf.Tensor, scheduled: tf.Tensor) -> tf.Tensor:
        identity, worker = WorkerIdentity.read(), FragmentedWorker(store, training)

        def body(position: tf.Tensor, before: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
            step = step_ids[position]
            asked = began = now_after(before)
            so_far, outcomes = PeriodSoFar.begin(before, tf.zeros([0])), []
            for index in reversed(range(shards)):
                first, end = (batches_before_exchange(steps, one, shards) for one in (index + 1, index))
                so_far = worker.take(step, first, end, so_far)
                computed = now_after(so_far.passed_on)
                waited = slow_down.wait(identity.worker, step, computed - began)
                times = StepTimes(scheduled, asked, asked, asked, computed, now_after(computed, *waited))
                columns = worker_columns(identity, so_far.result(end, tf.zeros([0]), tf.zeros([0])), times)
                exchanged, outcome = worker.exchange(index, step, columns, after([times.pushed_time], so_far.passed_on))
                outcomes.append(outcome)
                so_far, began = so_far._replace(passed_on=exchanged), now_after(exchanged)
            with tf.control_dependencies([so_far.passed_on]):
                settled = worker.own.settle(step, tf.stack(outcomes))
            return position + 1, after([settled], so_far.passed_on)

        begun = worker.begin(store, identity.worker, step_ids[0])
        loop = tf.while_loop(lambda position, _: position < tf.size(step_ids), body, (0, begun), parallel_iterations=1)
        return loop[1]

    return graph_of_dispatch(config, tf.TensorSpec([None], tf.int64), run_steps)
