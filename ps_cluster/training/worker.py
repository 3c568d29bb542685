"""The work of a run: dispatches of steps, which the chief hands out, and their graph, which runs in a worker's process.

    chief     dispatches ──step ids──►  any free worker, which runs `steps_graph` and for each step id:
    worker    pull ──►       all slices       weights, statistics, versions; once a dispatch
              compute        the batch of the step id, forward, backward (training/step.py), with the times for its row
              exchange ──►   all slices       push gradient, statistics, row; pull for the next step id of the dispatch

(Workers that wait are in modes/waiting.py, all-reduce in all_reduce.py, networks in parts in split_trainer.py.) The launcher
imports this module, to check modes: nothing here imports TensorFlow before a graph is built.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import TYPE_CHECKING, Protocol, TypeAlias

import numpy as np

from ps_cluster.config import RunConfig
from ps_cluster.config.lazy import tf
from ps_cluster.config.schema import (
    TASK_VARIATION,
    Stragglers,
    dispatch_size,
    machine_means,
    parse_stragglers,
)
from ps_cluster.runs.ledger import REMAINDER_COLUMNS, WORKER_COLUMNS
from ps_cluster.runs.run_dir import residual_files
from ps_cluster.server.ordering import after, now_after
from ps_cluster.server.shard import DROPPED, NO_STEP
from ps_cluster.server.store import Messages, ParameterStore, Pulled
from ps_cluster.training.step import WHOLE_PERIOD, PeriodLimits, StepResult, WorkerIdentity
from ps_cluster.training.worker_state import ErrorFeedback, KeepsState, Settle

if TYPE_CHECKING:  # imports what the launcher does not need
    from ps_cluster.training.run_progress import RunProgress


class Compute(Protocol):
    """Computes a step id: a `TrainStep`, or what a mode makes of it (`Mode.worker_step`)."""

    def __call__(
        self, step: tf.Tensor, weights: tf.Tensor, statistics: tf.Tensor, limits: PeriodLimits = WHOLE_PERIOD
    ) -> StepResult:
        """Compute a step.

        Args:
          step: int64 [], the step id.
          weights: [n], in the wire's dtype, or [vectors, n] where a pull returns several vectors.
          statistics: float32 [m].
          limits: of a period of local steps.
        """


class Dispatch(Protocol):
    """Runs a dispatch: the graph of a mode, in the process of a worker."""

    def __call__(self, what: tf.Tensor, scheduled: tf.Tensor, /) -> object:
        """Run it.

        Args:
          what: the step ids, int64 [k] with k at least 1; in rounds the version to reach, int64 [].
          scheduled: float64 [], unix seconds: when the chief handed it out.
        """


def worker_row(identity: WorkerIdentity, result: StepResult, **times: tf.Tensor | float) -> tf.Tensor:
    """Return the worker's part of a row, float64 [len(WORKER_COLUMNS)]. `times`: each column that is a time."""
    values = dict.fromkeys(REMAINDER_COLUMNS, 0.0) | vars(identity) | vars(result) | times
    return tf.stack([tf.cast(values[name], tf.float64) for name in WORKER_COLUMNS])


def with_remainders(row: tf.Tensor, norms: tf.Tensor) -> tf.Tensor:
    """Return a row with the norms of what pushes leave out. `norms`: float32 [2], as `ErrorFeedback` returns them."""
    places = [[WORKER_COLUMNS.index(name)] for name in REMAINDER_COLUMNS]
    return tf.tensor_scatter_nd_update(row, places, tf.cast(norms, tf.float64))


class TimedComputation:
    """Computes a step from the pulled parameters, and its row; slow on purpose where stragglers are configured."""

    def __init__(self, compute: Compute, config: RunConfig, store: ParameterStore):
        self._compute, self._store = compute, store
        self._feedback = feedback_of(config, store)
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
    ) -> tuple[StepResult, tf.Tensor, Settle]:
        """Return the result, its row, float64 [len(WORKER_COLUMNS)], and what settles the worker's state after the push.

        The times given are copied into the row. A replay is not computed: its result is 0, and every slice will refuse it.
        """
        pulled_time = now_after(pulled.weights)
        result = self._computed(step_id, pulled, pulled_time)
        sent = None if self._feedback is None else self._feedback(step_id, result.gradient)
        if sent is not None:
            result = replace(result, gradient=sent.vector)
        computed_time = now_after(result.gradient)
        waited = self._slow_down.wait(identity.worker, step_id, computed_time - pulled_time)
        row = worker_row(
            identity, result,
            scheduled_time=scheduled, asked_time=asked, admitted_time=admitted, pulled_time=pulled_time,
            computed_time=computed_time, pushed_time=now_after(computed_time, *waited),
        )  # fmt: skip

        def settle(outcomes: tf.Tensor) -> list[tf.Tensor]:
            settled = [] if sent is None else sent.settle(outcomes)
            compute = self._compute
            return [*settled, compute.settle(step_id, outcomes)] if isinstance(compute, KeepsState) else settled

        return result, row if sent is None else with_remainders(row, sent.remainders), settle

    def _computed(self, step_id: tf.Tensor, pulled: Pulled, pulled_time: tf.Tensor) -> StepResult:
        def compute() -> dict[str, tf.Tensor]:
            first = self._store.slices[0]
            goes_on = partial(first.would_accept, pulled.versions[0]) if first.capabilities.stops else None
            limits = PeriodLimits(pulled.batches, goes_on)
            return vars(self._compute(step_id, pulled.weights, pulled.statistics, limits))

        def zero() -> dict[str, tf.Tensor]:
            numbers = {name: tf.zeros([]) for name in ("loss", "metric", "learning_rate")}
            numbers |= {name: tf.zeros([], tf.int64) for name in ("examples", "ids_checksum")}
            gradient = tf.zeros(pulled.weights.shape[-1:], pulled.weights.dtype)
            return {"gradient": gradient, "fresh": tf.zeros_like(pulled.statistics), **numbers}

        if pulled.is_replay is None:
            return StepResult(**compute())
        # TensorFlow may run all of a branch before it reads the time that was ready with the branch's inputs.
        return StepResult(**tf.cond(after([pulled_time], pulled.is_replay), zero, compute))


def feedback_of(config: RunConfig, store: ParameterStore) -> ErrorFeedback | None:
    """Return what keeps for a worker's next push what is left out of one; None where nothing is."""
    if not config.loses_of_pushes:
        return None
    # Written after each push: where they are seldom.
    files = residual_files(0) if config.mode_kind.promise.takes_local_steps else ()
    lengths = [part.length for part in store.slices]
    name = f"{store.session}/left-out"
    return ErrorFeedback(store.rounded, lengths, config.training.seed, files, name=name)


def steps_graph(store: ParameterStore, compute: Compute, config: RunConfig, *, repeats: bool = False) -> Dispatch:
    """Return the graph of a dispatch of step ids.

    Args:
      repeats: ask with each pull whether all slices have the step, and do not compute it again then. Only dispatches that
        are handed out anew ask: a computation that waits for the answer can't prepare its batch meanwhile, which costs
        some per cent. (A step that some slices lack is pushed to all of them all the same.)
    """
    computation = TimedComputation(compute, config, store)

    @tf.function(autograph=False, input_signature=[tf.TensorSpec([None], tf.int64), tf.TensorSpec([], tf.float64)])
    def run_steps(step_ids: tf.Tensor, scheduled: tf.Tensor) -> tf.Tensor:
        identity = WorkerIdentity.read()
        # A step that is dropped is the next one again: an answer follows the last step too, and says of no step whether
        # the slices have it.
        following = tf.concat([step_ids[1:], step_ids[-1:] if store.drops else [NO_STEP]], 0)
        asks = repeats and not store.drops

        def body(position: tf.Tensor, asked: tf.Tensor, messages: Messages) -> tuple[tf.Tensor, tf.Tensor, Messages]:
            pulled, step_id = store.pulled(messages, asks_for_step=asks), step_ids[position]
            result, row, settle = computation(step_id, pulled, identity, scheduled, asked, asked)
            answer = store.exchange(step_id, pulled.versions, result.gradient, result.fresh, row, following[position])
            outcomes = store.outcomes(answer)
            if settled := settle(outcomes):  # before the next step reads what the worker keeps
                answer = tf.nest.map_structure(partial(after, settled), answer)
            dropped = tf.reduce_any(tf.equal(outcomes, DROPPED)) if store.drops else tf.constant(False)
            position = tf.where(dropped, position, position + 1)
            return position, now_after(*tf.nest.flatten(answer)), answer

        asked = now_after(step_ids)
        answer = store.messages(identity.worker, [asked], step_ids[0])
        # A loop variable stays on the device of its first value. On the ps it would be sent to the worker and back.
        start = (0, asked, tf.nest.map_structure(tf.identity, answer))
        # The last answer is short, so lengths are free. With two iterations at a time, the next batch is prepared while an
        # answer is under way.
        shapes = (
            tf.TensorShape([]),
            tf.TensorShape([]),
            tf.nest.map_structure(lambda _: tf.TensorShape([None]), answer),
        )
        position, answered, _ = tf.while_loop(
            lambda position, *_: position < tf.size(step_ids),
            body,
            start,
            shape_invariants=shapes,
            parallel_iterations=2,
        )
        return after([answered], position)

    dispatch: Dispatch = run_steps
    return dispatch


# The chief's side: what is handed out, in which dispatches.


ScheduleDispatch: TypeAlias = Callable[[Dispatch, np.ndarray | int], None]
"""Sends a dispatch to any free worker: a graph, and its int64 argument (step ids, or a version)."""


@dataclass(frozen=True)
class Dispatches:
    """The two graphs that a run dispatches. Each is built when it is first used.

    Attributes:
      make: returns the graph of a dispatch. Its argument: whether steps are handed out a second time (`Mode.dispatch`).
    """

    make: Callable[[bool], Dispatch]

    @cached_property
    def first(self) -> Dispatch:
        """The graph for steps that are handed out for the first time."""
        return self.make(False)

    @cached_property
    def again(self) -> Dispatch:
        """The graph for steps that may have been applied already."""
        return self.make(True)


class StepSource(ABC):
    """The work of a run, in the dispatches of a mode.

    Attributes:
      handed_out: the last step id that was handed out, -1 before the first.
      ends: whether nothing more will be handed out.
      workers: how many work now; the chief keeps it up to date.
    """

    def __init__(
        self,
        config: RunConfig,
        progress: RunProgress,
        graphs: Dispatches,
        schedule: ScheduleDispatch,
    ):
        self.handed_out = -1
        self.ends = False
        self.workers = config.training_workers
        self._config = config
        self._progress = progress
        self._graphs = graphs
        self._schedule = schedule

    @abstractmethod
    def dispatches(self) -> Iterator[bool]:
        """Schedule a dispatch (or one for every worker) and yield True; yield False while the ledger has no room."""

    def repeat(self, steps: np.ndarray) -> None:
        """Give steps (int64 [k]) of a dispatch without news to another worker too; nothing where that is no use."""

    @property
    def two_dispatches_each(self) -> float:
        """The number of updates in two dispatches per worker, one under way and one waiting."""
        steps = 2 * self.workers * self._size(self._steps_per_second, left=math.inf)
        return steps / self._config.steps_per_update

    @property
    def _steps_per_second(self) -> float:
        """Steps per second of one worker."""
        return self._progress.updates_per_second() * self._config.steps_per_update / self.workers

    def _size(self, per_second: float, left: float) -> int:
        wanted = self._config.cluster.steps_per_dispatch
        return dispatch_size(wanted, workers=self.workers, per_second=per_second, left=left)


class AsynchronousSteps(StepSource):
    """Dispatches of step ids, each for one worker. Steps that were under way before a resume come first."""

    def repeat(self, steps: np.ndarray) -> None:
        self._schedule(self._graphs.again, steps)

    def dispatches(self) -> Iterator[bool]:
        again, following, total = self._progress.missing_steps, self._progress.next_step, self._progress.total
        while left := len(again) + total - following:
            size = self._size(self._steps_per_second, left=left / self.workers)
            if len(again):  # not mixed with new ones, which may have to wait until these are done
                step_ids, again = np.split(again, [min(size, len(again))])
            else:
                step_ids = np.arange(following, min(total, following + size))
                following = int(step_ids[-1]) + 1
            while step_ids[-1] >= self._progress.end_of_window:
                yield False
            # First counted, then sent: a look in another thread may find its first update at once.
            self._progress.scheduled(step_ids)
            self._schedule(self._graphs.first, step_ids)
            self.handed_out = int(step_ids[-1])
            self.ends = not len(again) and following == total
            yield True


# Slow workers down by a wait after the computation, so that two cores can emulate a cluster with slow machines.


class SlowDown:
    """Computes how much longer a slow worker's step takes, and waits that long."""

    def __init__(self, stragglers: Stragglers, workers: int, seed: int, parts: int = 1):
        """Prepare. `parts`: a step waits so many times, a part of its extra seconds each."""
        self._stragglers = stragglers
        self._seed = seed
        named = {slow.worker: slow for slow in stragglers.slow}
        self._factors = [named[w].factor if w in named else 1.0 for w in range(workers)]
        self._extras = [named[w].extra_s / parts if w in named else 0.0 for w in range(workers)]
        self._means = machine_means(workers, seed)

    def seconds(self, worker: tf.Tensor, step: tf.Tensor, own_seconds: tf.Tensor) -> tf.Tensor:
        """Return the seconds, float64 [], that `worker` waits after a computation of `own_seconds` (float64 [])."""
        if self._stragglers.gamma:
            shape = TASK_VARIATION**-2
            seed = tf.stack([tf.constant(self._seed, tf.int64), step])
            draw = tf.random.stateless_gamma([], seed, shape, shape, tf.float64)
            return tf.maximum(tf.gather(tf.constant(self._means), worker) * draw - 1, 0.0) * own_seconds
        factor = tf.gather(tf.constant(self._factors, tf.float64), worker)
        return (factor - 1) * own_seconds + tf.gather(tf.constant(self._extras, tf.float64), worker)

    def wait(self, worker: tf.Tensor, step: tf.Tensor, own_seconds: tf.Tensor) -> list[tf.Tensor]:
        """Return the wait that must come before the push; empty where nobody is slow."""
        if not self._stragglers:
            return []
        seconds = self.seconds(worker, step, own_seconds)
        return [tf.cond(seconds > 0, lambda: sleep(seconds), lambda: 0)]


def sleep(seconds: tf.Tensor) -> tf.Tensor:
    """Wait `seconds` (float64 []) without using a processor. Returns a tensor to depend on."""
    # TensorFlow has no operation that sleeps, but a dataset that does. Taking its only element asks it twice (for the
    # element and for the end), and it sleeps both times.
    microseconds = tf.cast(tf.maximum(seconds, 0.0) * 1e6 / 2, tf.int64)
    element = tf.raw_ops.TensorDataset(components=[tf.constant(0)], output_shapes=[[]])
    slow = tf.raw_ops.SleepDataset(
        input_dataset=element, sleep_microseconds=microseconds, output_types=[tf.int32], output_shapes=[[]]
    )
    return tf.raw_ops.DatasetToSingleElement(dataset=slow, output_types=[tf.int32], output_shapes=[[]])[0]
