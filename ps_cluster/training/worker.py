"""Build the graph of a dispatch, which the chief hands out and a worker's process runs.

    chief     dispatches ──step ids──►  any free worker, which runs `steps_graph`
    worker    pull ──►       all shards       weights, statistics, versions; once in a dispatch. Then for each step id:
              compute        the batch of the step id, forward, backward (training/step.py), with the times for its row
              exchange ──►   all shards       push gradient, statistics, row; pull for the next step id of the dispatch

Some modes have other graphs, in modes/sync_ps.py, modes/bounded.py, modes/fragments.py, all_reduce_graph.py and
split_trainer.py. The chief's process builds the graphs of this module; a worker's process serves (launch/serving.py) and
runs what the chief sends it. The launcher imports this module to check modes. So this module does not import TensorFlow
before a graph is built.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Protocol

from ps_cluster.config import RunConfig
from ps_cluster.config.lazy import tf
from ps_cluster.config.stragglers import parse_stragglers
from ps_cluster.models.rows import Rows
from ps_cluster.runs.ledger import WorkerColumns
from ps_cluster.runs.run_dir import residual_files
from ps_cluster.server.ordering import after, now_after
from ps_cluster.server.shard import DROPPED, NO_STEP
from ps_cluster.server.store import Messages, ParameterStore, Pulled, StepPush
from ps_cluster.training.devices import graph_of_dispatch
from ps_cluster.training.slow_down import SlowDown
from ps_cluster.training.step import Compute, PeriodLimits, StepResult, WorkerIdentity
from ps_cluster.training.worker_state import ErrorFeedback, Settle


class DispatchGraph(Protocol):
    """The graph of a mode, which runs a dispatch in a worker's process."""

    def __call__(self, what: tf.Tensor, scheduled: tf.Tensor, /) -> object:
        """Run the dispatch.

        Args:
          what: the step ids, int64 [k] with k at least 1; in modes with rounds, the version to reach, int64 [].
          scheduled: float64 [], unix seconds, the time at which the chief handed out the dispatch.
        """


@dataclass(frozen=True)
class StepTimes:
    """The times at which a worker reached each point of a step, float64 [] each, in unix seconds."""

    scheduled_time: tf.Tensor | float  # when the chief handed out the step
    asked_time: tf.Tensor  # when the worker asked for weights
    admitted_time: tf.Tensor  # when the worker was allowed to pull
    pulled_time: tf.Tensor  # when the weights had arrived
    computed_time: tf.Tensor  # when the gradient was computed
    pushed_time: tf.Tensor  # when the push began


def worker_columns(
    identity: WorkerIdentity,
    result: StepResult,
    times: StepTimes,
    rows: tuple[tf.Tensor | int, tf.Tensor | int] = (0, 0),
) -> WorkerColumns:
    """Return the worker's part of the columns of a ledger row. `stacked` turns these columns into a tensor.

    The columns for the remainders, which compression leaves out of pushes, are 0. `with_remainders` fills them in.

    Args:
      rows: how many rows of embedding tables the step has pulled, and how many numbers these rows hold, int64 [] each.
    """
    return WorkerColumns(
        worker=identity.worker,
        pid=identity.pid,
        examples=result.examples,
        ids_checksum=result.ids_checksum,
        metric=result.metric,
        loss=result.loss,
        learning_rate=result.learning_rate,
        remainder_before=0.0,
        remainder_after=0.0,
        rows=rows[0],
        row_values=rows[1],
        scheduled_time=times.scheduled_time,
        asked_time=times.asked_time,
        admitted_time=times.admitted_time,
        pulled_time=times.pulled_time,
        computed_time=times.computed_time,
        pushed_time=times.pushed_time,
    )


def with_remainders(columns: WorkerColumns, norms: tf.Tensor) -> WorkerColumns:
    """Return `columns` with the norms of the remainders that compression left out of pushes to one shard.

    `norms`: float32 [2], the norm of the remainder before this push, and of the remainder after it.
    """
    return columns._replace(remainder_before=norms[0], remainder_after=norms[1])


def stacked(columns: WorkerColumns) -> tf.Tensor:
    """Return the columns as the tensor that is pushed, float64 [len(WORKER_COLUMNS)]."""
    return tf.stack([tf.cast(value, tf.float64) for value in columns])


class TimedComputation:
    """Computes a step and its row in the ledger from the pulled parameters. Configured stragglers wait after each step."""

    def __init__(self, compute: Compute, config: RunConfig, store: ParameterStore):
        self._compute, self._store = compute, store
        self._feedback: ErrorFeedback | None = None  # None: pushes lose nothing
        if config.compresses_pushes:
            # The files are written after each push, so only modes with infrequent pushes have them.
            files = residual_files(0) if config.chosen_mode.synchrony.takes_local_steps else ()
            lengths, name = [part.length for part in store.shards], f"{store.leader_prefix}/left-out"
            self._feedback = ErrorFeedback(store.rounded, lengths, config.training.seed, files, name=name)
        self._slow_down = SlowDown(
            parse_stragglers(config.cluster.straggler), config.most_workers, config.training.seed
        )

    def __call__(
        self,
        step_id: tf.Tensor,
        pulled: Pulled,
        identity: WorkerIdentity,
        scheduled: tf.Tensor | float,
        asked: tf.Tensor,
        admitted: tf.Tensor,
    ) -> tuple[StepPush, Settle]:
        """Return what the worker pushes, and a function that keeps or restores the worker's local state after the push.

        The arguments `scheduled`, `asked` and `admitted` are times for the row, float64 [], unix seconds. A replay (a
        step that every shard already has) is not computed: its result is 0, and every shard will refuse it. Call the
        returned function with the outcomes of the push.
        """
        pulled_time = now_after(pulled.weights)
        result = self._computed(step_id, pulled, pulled_time)
        sent = None if self._feedback is None else self._feedback(step_id, result.gradient)
        if sent is not None:
            result = result._replace(gradient=sent.vector)
        computed_time = now_after(result.gradient)
        waited = self._slow_down.wait(identity.worker, step_id, computed_time - pulled_time)
        pushed_time = now_after(computed_time, *waited)
        times = StepTimes(scheduled, asked, admitted, pulled_time, computed_time, pushed_time)
        of_all = worker_columns(identity, result, times, self._store.row_counts(pulled.rows))
        if sent is None:
            columns = stacked(of_all)
        else:
            of_shards = [with_remainders(of_all, norms) for norms in tf.unstack(sent.remainders)]
            columns = tf.stack([stacked(of_shard) for of_shard in of_shards])

        def settle(outcomes: tf.Tensor) -> list[tf.Tensor]:
            settled = [] if sent is None else sent.settle(outcomes)
            return [*settled, *self._compute.settle(step_id, outcomes)]

        push = StepPush(step_id, pulled.versions, result.gradient, result.fresh, columns, pulled.rows)
        return push, settle

    def _computed(self, step_id: tf.Tensor, pulled: Pulled, pulled_time: tf.Tensor) -> StepResult:
        def compute() -> StepResult:
            first = self._store.shards[0]
            may_continue = partial(first.would_accept, pulled.versions[0]) if first.capabilities.stops else None
            limits = PeriodLimits(pulled.batches, may_continue)
            return self._compute(step_id, pulled.weights, pulled.statistics, limits, pulled.rows)

        def zero() -> StepResult:
            none = tf.zeros([], tf.int64)
            return StepResult(
                gradient=tf.zeros(tf.shape(pulled.weights)[-1:], pulled.weights.dtype),
                fresh=tf.zeros_like(pulled.statistics),
                loss=tf.zeros([]),
                metric=tf.zeros([]),
                learning_rate=tf.zeros([]),
                examples=none,
                ids_checksum=none,
            )

        if pulled.is_replay is None:
            return compute()
        # Without this dependency, TensorFlow might run the whole branch before it reads `pulled_time`.
        computed: StepResult = tf.cond(after([pulled_time], pulled.is_replay), zero, compute)
        return computed


def steps_graph(store: ParameterStore, compute: Compute, config: RunConfig, *, repeats: bool = False) -> DispatchGraph:
    """Return the graph of a dispatch of step ids.

    Args:
      repeats: whether the steps are handed out a second time. If so, each pull asks whether all shards already have
        the step, and such a step is not computed again. (A step that only some shards lack is still pushed to all
        shards.) Pulls do not ask this if pushes may be dropped. They also do not ask it when steps are handed out for
        the first time, because training would be a few percent slower: a worker can't prepare a batch while it waits
        for the answer.
    """
    computation = TimedComputation(compute, config, store)

    def run_steps(step_ids: tf.Tensor, scheduled: tf.Tensor) -> tf.Tensor:
        identity = WorkerIdentity.read()
        # The worker retries a dropped step, so if pushes may be dropped, the last step also gets an answer with parameters.
        # Such an answer does not say whether the shards already have a step.
        following = tf.concat([step_ids[1:], step_ids[-1:] if store.drops else [NO_STEP]], 0)
        asks = repeats and not store.drops

        def body(
            position: tf.Tensor, asked: tf.Tensor, messages: Messages, rows: Rows
        ) -> tuple[tf.Tensor, tf.Tensor, Messages, Rows]:
            pulled, step_id = store.read_messages(messages, asks_for_step=asks, rows=rows), step_ids[position]
            next_rows = compute.rows(following[position])
            push, settle = computation(step_id, pulled, identity, scheduled, asked, asked)
            answer = store.exchange(push, following[position], next_rows)
            outcomes = store.outcomes(answer)
            if settled := settle(outcomes):  # before the next step reads the worker's state
                answer = tf.nest.map_structure(partial(after, settled), answer)
            dropped = tf.reduce_any(tf.equal(outcomes, DROPPED)) if store.drops else tf.constant(False)
            position = tf.where(dropped, position, position + 1)
            return position, now_after(*tf.nest.flatten(answer)), answer, next_rows

        asked = now_after(step_ids)
        rows = compute.rows(step_ids[0])
        answer = store.pull_messages(identity.worker, [asked], step_ids[0], rows)
        # A loop variable stays on the device of its first value. On the ps, it would be sent to the worker and back.
        start = (0, asked, tf.nest.map_structure(tf.identity, answer), rows)
        # The lengths of the answers are not fixed, because the last answer is short. With two parallel iterations, the
        # next batch is prepared while an answer is under way.
        of_answer = tf.nest.map_structure(lambda _: tf.TensorShape([None]), answer)
        of_rows = tf.nest.map_structure(lambda one: one.shape, rows)
        shapes = tf.TensorShape([]), tf.TensorShape([]), of_answer, of_rows
        position, answered, *_ = tf.while_loop(
            lambda position, *_: position < tf.size(step_ids), body, start, shapes, parallel_iterations=2
        )
        return after([answered], position)

    return graph_of_dispatch(config, tf.TensorSpec([None], tf.int64), run_steps)
