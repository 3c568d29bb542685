"""Modes in which workers wait for each other: bounded (a bound on staleness or clocks), and sync-ps (rounds).

The slice's critical section decides who may go on, so they work with one parameter server only. A worker that has to wait
does so in its graph's part on the parameter server:

    admit or push ──►  attempt, in the critical section ── WAIT ──► counted; dequeue, which blocks no thread
                         ▲                                            │
                         └──── again ◄── one element for each counted ◄── notify_all: another push, or the chief's tick
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import numpy as np
from pydantic import Field

from ps_cluster.config import MOST_WORKERS_OF_A_CLUSTER, RunConfig
from ps_cluster.config.modes import ON_DEATH, WORKER, Mode, ModeSettings, OnDeath, Waits
from ps_cluster.config.registry import graph, tf
from ps_cluster.server.leftovers import QUEUE, queue_named
from ps_cluster.server.shard import APPLIED, DROPPED, NO_END, WAIT, InitialState, ParameterShard, Push, after, now_after
from ps_cluster.server.store import ParameterStore, Pulled
from ps_cluster.training.step import WorkerIdentity
from ps_cluster.training.worker import AsynchronousSteps, Compute, StepSource, TimedComputation


class WaitingShard(ParameterShard):
    """A slice where workers wait until another worker, or the passing of time, has changed something."""

    def __init__(self, device: str, start: InitialState, config: RunConfig, total_steps: int):
        super().__init__(device, start, config, total_steps)
        self._changed = GraphCondition(device, self._section, partial(start.name, QUEUE))

    def _sent(self, *numbers: tf.Tensor) -> list[tf.Tensor]:
        """Return `numbers` (int64 [] each) copied to the ps, else every retry of a wait would fetch them again."""
        vector = tf.stack(numbers)
        with tf.device(self._device):
            arrived: list[tf.Tensor] = tf.unstack(tf.identity(vector))
            return arrived

    @graph
    def tick(
        self, seconds: tf.Tensor, longest_update_s: tf.Tensor, last_step: tf.Tensor, is_present: tf.Tensor
    ) -> tf.Tensor:
        def note() -> tf.Tensor:
            with tf.control_dependencies(self._on_tick(seconds, longest_update_s, last_step, is_present)):
                return self._changed.notify_all()

        with tf.device(self._device):
            return self._section.execute(note)

    def _on_tick(
        self, seconds: tf.Tensor, longest_update_s: tf.Tensor, last_step: tf.Tensor, is_present: tf.Tensor
    ) -> list[tf.Operation]:
        return []


_NOWHERE = -1  # in place of a queue's number: in no queue


class GraphCondition:
    """A condition variable on a parameter server: graphs wait there, at no cost, until another graph notifies them.

    It works like `threading.Condition`, with a critical section as the lock. A failed attempt is counted before the
    section is left. Then the graph dequeues an element, which blocks a callback and no thread. `notify_all` enqueues
    one element for each counted attempt, so no change is missed between an attempt and the wait. An element carries no
    state: the graph that gets one tries again.

    Two queues are used in turn. A graph that is counted after a notification dequeues from the other queue, so it can't
    take the element of a slower graph that was counted before.

    TensorFlow 2.21 does not cancel the part of a dead worker's graph that waits on a parameter server. That graph stays
    and gets its own element, so it takes no other graph's. A graph of an earlier leader waits for queues of its own, which
    the next leader closes (server/leftovers.py).

    Attributes:
      waiting: int32 [], how many graphs wait and were not yet notified.
    """

    def __init__(self, device: str, section: tf.CriticalSection, name: Callable[[str], str]):
        """Make the queues. `name`: returns a name that no other leader has, for "changed-0" and "changed-1"."""
        self._section = section
        with tf.device(device):
            self._queues = [queue_named(name(f"changed-{number}")) for number in range(2)]
            self._turn = tf.Variable(0)
            self.waiting = tf.Variable(0)

    def wait_while(
        self, value: int, attempt: Callable[[], tf.Tensor], needed: Sequence[Any] = (), dtype: str = "int32"
    ) -> tf.Tensor:
        """Run `attempt` in the critical section, and again after each notification while it returns `value`.

        There is no timeout: `notify_all` must be called now and then, as the chief does with each look.

        Args:
          value: the result that means "wait". attempt: returns `dtype` [].
          needed: the outside inputs of the attempt; the section is entered only when all have arrived.
        """

        def counted() -> tuple[tf.Tensor, tf.Tensor]:
            outcome = attempt()
            return outcome, tf.cond(tf.equal(outcome, value), self._count, lambda: tf.constant(_NOWHERE))

        def body(outcome: tf.Tensor, turn: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
            with tf.control_dependencies([self._taken(turn)]):
                again: tuple[tf.Tensor, tf.Tensor] = self._section.execute(counted)
                return again

        # Without `needed`, the section could be entered before the body's captured inputs arrive, and stay held.
        start = after(needed, tf.constant(value, dtype)), tf.constant(_NOWHERE)
        return tf.while_loop(lambda outcome, _: tf.equal(outcome, value), body, start, parallel_iterations=1)[0]

    def _taken(self, turn: tf.Tensor) -> tf.Tensor:
        """Take an element of queue number `turn`. The first attempt is in no queue and goes on at once."""

        def take() -> tf.Tensor:
            return tf.cond(tf.equal(turn, 0), self._queues[0].dequeue, self._queues[1].dequeue)

        return tf.cond(tf.equal(turn, _NOWHERE), lambda: tf.constant(False), take)

    def _count(self) -> tf.Tensor:
        """Count a waiting graph; return the number of the queue from which it takes its element, int32 []."""
        return after([self.waiting.assign_add(1, read_value=False)], self._turn.read_value())

    def notify_all(self) -> tf.Tensor:
        """Let all waiting graphs try again. Call it in the critical section, and let the result depend on it."""
        waiting = self.waiting.read_value()
        return tf.cond(waiting > 0, lambda: self._wake(waiting), lambda: tf.constant(0))

    def _wake(self, waiting: tf.Tensor) -> tf.Tensor:
        turn = self._turn.read_value()
        put = tf.cond(tf.equal(turn, 0), *(lambda queue=queue: _fill(queue, waiting) for queue in self._queues))
        with tf.control_dependencies([put]):
            return after([self._turn.assign(1 - turn, read_value=False)], self.waiting.assign(0))


def _fill(queue: tf.queue.FIFOQueue, count: tf.Tensor) -> tf.Tensor:
    """Fill the queue up to `count` elements. Leftovers in it were for graphs that ended before they took theirs."""
    missing = tf.maximum(count - queue.size(), 0)
    return after([queue.enqueue_many(tf.zeros([missing], tf.bool))], count)


# Mode bounded: asynchronous, with a bound on staleness, on how far a worker may be ahead, or on both.

DEFAULT_MAX_STALENESS = 3  # where no bound is given
# A worker that was not heard of for longer, and for longer than an update takes, counts as dead, and the others stop
# waiting for it. If it pushes after all, its gradient is checked like every other.
LEASE_S = 20.0
_NOT_UNDER_WAY = -1  # in place of the version pulled, for a worker without a step


class BoundedSettings(ModeSettings):
    max_staleness: int | None = Field(
        default=None,
        ge=0,
        le=1000,
        description=f"No update is staler than this; {DEFAULT_MAX_STALENESS} where no bound is given.",
    )
    max_clock_lag: int | None = Field(
        default=None,
        ge=0,
        le=1000,
        description="No worker begins a step when it has ended so many more than another; 0: all in step.",
    )

    @property
    def bounds(self) -> tuple[int | None, int | None]:
        """The versions that an update may lag behind, and the steps that a worker may be ahead; None: any number."""
        staleness, lag = self.max_staleness, self.max_clock_lag
        return (DEFAULT_MAX_STALENESS if staleness is None and lag is None else staleness), lag


class BoundedShard(WaitingShard):
    """Asynchronous, with a bound on the version lag of updates, on the clock lag of workers, or on both.

    `max_staleness` s: no update is applied to a version more than s newer than the one it was computed from. A worker
    waits before its pull while s + 1 others are under way. It waits before its push while its update would leave no
    order of the other workers' pushes that keeps the bound. The worker that pulled first never waits to push.

    `max_clock_lag` s (Ho et al. 2013, "More effective distributed ML via a stale synchronous parallel parameter
    server", NIPS, section 2): a worker's clock is the number of its steps that have ended, applied or refused as
    replays. A worker at clock c begins its next step only when all workers waited for are at c - s or later. So it sees
    every update made at a clock up to c - s - 1, its own included. With s = 0 training is bulk-synchronous: nobody
    begins step c + 1 before all have pushed step c. The slowest worker never waits for a clock.

    Workers wait for all others except those that the chief knows to be gone, those not heard of for `LEASE_S` and, once
    the workers together have every step that is left, those without one. A worker that comes back (or late) goes on at
    the lowest clock that the bound allows. If it was under way, others should already have seen its update: its gradient
    is dropped and computed again, like one that is staler than `max_staleness`. So both bounds hold for every update,
    whoever died.
    """

    def __init__(self, device: str, start: InitialState, config: RunConfig, total_steps: int):
        super().__init__(device, start, config, total_steps)
        settings: BoundedSettings = config.mode_kind.settings(config)
        staleness, lag = settings.bounds
        self._max_staleness = NO_END if staleness is None else staleness
        self._max_clock_lag = NO_END if lag is None else lag
        workers, spare = config.most_workers, config.most_workers - config.training_workers
        with tf.device(device):
            self._under_way = tf.Variable(tf.fill([workers], tf.constant(_NOT_UNDER_WAY, tf.int64)))
            # Steps of its dispatch that have not ended.
            self._left = tf.Variable(tf.zeros([workers], tf.int64))
            # For as many workers as there may ever be: a run may be resumed with another number of them.
            self._clocks = tf.Variable(tf.zeros([MOST_WORKERS_OF_A_CLUSTER], tf.int64))
            # Seconds, on the clock of the ticks. Nobody waits for a worker that was never there.
            self._heard = tf.Variable(tf.constant([0.0] * (workers - spare) + [-math.inf] * spare, tf.float64))
            self._lease_s = tf.Variable(LEASE_S, dtype=tf.float64)
            self._now = tf.Variable(0.0, dtype=tf.float64)  # seconds, the sum of the ticks
            self._last_step = tf.Variable(NO_END, dtype=tf.int64)

    @property
    def _state(self) -> dict[str, tf.Variable]:
        return super()._state | {"clocks": self._clocks}

    def _on_tick(
        self, seconds: tf.Tensor, longest_update_s: tf.Tensor, last_step: tf.Tensor, is_present: tf.Tensor
    ) -> list[tf.Operation]:
        heard = tf.where(is_present, self._heard.read_value(), tf.constant(-math.inf, tf.float64))
        return [
            self._heard.assign(heard, read_value=False),
            self._now.assign_add(seconds, read_value=False),
            self._lease_s.assign(tf.maximum(longest_update_s, LEASE_S), read_value=False),
            self._last_step.assign(last_step, read_value=False),
        ]

    def admit(self, worker: tf.Tensor, left: tf.Tensor) -> tf.Tensor:
        """Return when `worker` (int64 []) may pull, once it may: float64 [], unix s of the ps.

        Args:
          left: int64 [], how many steps of its dispatch have not ended, with the one that it wants to begin.
        """
        worker, left = request = self._sent(worker, left)
        with tf.device(self._device):
            return now_after(self._changed.wait_while(WAIT, lambda: self._may_begin(worker, left), request))

    def _may_begin(self, worker: tf.Tensor, left: tf.Tensor) -> tf.Tensor:
        """Return APPLIED, and count the worker as under way, or return WAIT."""
        # If only the steps of a worker that was let in counted, those with the last ones could all wait for a worker that
        # will get none.
        with tf.control_dependencies([put(self._left, worker, left)]):
            clocks = tf.maximum(self._clocks_now(), self._lowest_clock())
            slowest = tf.reduce_min(self._of_others(worker, self._waited_for(), clocks, NO_END))
            clock = clocks[worker]
            few = tf.math.count_nonzero(self._pulled_by_others(worker) != _NOT_UNDER_WAY) <= self._max_staleness
            ready = tf.logical_and(few, slowest >= clock - self._max_clock_lag)
            return tf.cond(ready, lambda: self._let_in(worker, clock), lambda: tf.constant(WAIT))

    def _let_in(self, worker: tf.Tensor, clock: tf.Tensor) -> tf.Tensor:
        now = self._version.read_value()
        entered = [
            put(self._under_way, worker, now),
            put(self._clocks, worker, clock),
            put(self._heard, worker, self._now.read_value()),
        ]
        return after(entered, APPLIED)

    def _clocks_now(self) -> tf.Tensor:
        """Return the clocks of this run's workers, int64 [workers]."""
        return self._clocks.read_value()[: self._under_way.shape[0]]

    def _lowest_clock(self) -> tf.Tensor:
        """Return the lowest clock, int64 [], at which an update keeps the bound for every step begun so far."""
        begun = self._clocks_now() - tf.cast(self._under_way.read_value() == _NOT_UNDER_WAY, tf.int64)
        return tf.reduce_max(begun) - self._max_clock_lag

    def _waited_for(self) -> tf.Tensor:
        """Return which workers the others wait for, bool [workers]."""
        alive, left = self._alive(), self._left.read_value()
        # Every update is one step, so the version is how many of the steps 0 to `_last_step` have ended. A dispatch that
        # is on its way to a worker is in no worker's `left`.
        unfinished = self._last_step.read_value() + 1 - self._version.read_value()
        ending = tf.reduce_sum(tf.where(alive, left, 0)) >= unfinished
        return tf.logical_and(alive, tf.logical_or(left > 0, tf.logical_not(ending)))

    def _alive(self) -> tf.Tensor:
        """Return which workers were heard of within the lease, bool [workers]."""
        return self._now.read_value() - self._heard.read_value() < self._lease_s.read_value()

    def _pulled_by_others(self, worker: tf.Tensor) -> tf.Tensor:
        """Return the versions pulled by other workers under way, int64 [workers]; _NOT_UNDER_WAY for the rest."""
        return self._of_others(worker, self._alive(), self._under_way.read_value(), _NOT_UNDER_WAY)

    @staticmethod
    def _of_others(worker: tf.Tensor, chosen: tf.Tensor, values: tf.Tensor, elsewhere: int) -> tf.Tensor:
        """Return `values` of the chosen workers except `worker`, and `elsewhere` for the rest, int64 [workers]."""
        other = tf.range(values.shape[0], dtype=tf.int64) != worker
        return tf.where(tf.logical_and(chosen, other), values, tf.constant(elsewhere, tf.int64))

    def _execute_push(self, push: Push) -> tf.Tensor:
        arrived = [part for part in vars(push).values() if part is not None]
        return self._changed.wait_while(WAIT, lambda: self._receive(push), arrived)

    def _refuse_or_apply(self, push: Push) -> tf.Tensor:
        now = self._version.read_value()
        too_stale = tf.logical_or(
            now - push.version > self._max_staleness,
            self._clocks.sparse_read(push.worker) < self._lowest_clock(),
        )

        def take() -> tf.Tensor:
            fits = self._fits(push.worker, now + 1)
            return tf.cond(fits, lambda: self._leave(push, self._apply_push(push)), lambda: tf.constant(WAIT))

        return tf.cond(
            self._has(push.step),
            lambda: self._leave(push, self._refuse()),
            lambda: tf.cond(too_stale, lambda: self._leave(push, self._drop()), take),
        )

    def _leave(self, push: Push, outcome: tf.Tensor) -> tf.Tensor:
        """Return `outcome` after the worker is no longer under way. Its clock advances unless its push was dropped."""
        with tf.control_dependencies([outcome]):
            ended = tf.cast(outcome != DROPPED, tf.int64)
            left = [
                put(self._under_way, push.worker, tf.constant(_NOT_UNDER_WAY, tf.int64)),
                put(self._clocks, push.worker, self._clocks.sparse_read(push.worker) + ended),
                put(self._left, push.worker, tf.maximum(self._left.sparse_read(push.worker) - ended, 0)),
                put(self._heard, push.worker, self._now.read_value()),
            ]
        with tf.control_dependencies(left):
            return after([self._changed.notify_all()], outcome)

    def _fits(self, worker: tf.Tensor, version: tf.Tensor) -> tf.Tensor:
        """Return whether the others under way, oldest first, could all push within the bound from `version` on."""
        pulled = tf.sort(self._pulled_by_others(worker))
        under_way = tf.boolean_mask(pulled, pulled != _NOT_UNDER_WAY)
        staleness = version + tf.range(tf.size(under_way, tf.int64)) - under_way
        return tf.reduce_all(staleness <= self._max_staleness)


def put(table: tf.Variable, index: tf.Tensor, value: tf.Tensor) -> tf.Variable:
    """Write one element of a vector."""
    return table.scatter_update(tf.IndexedSlices(value[None], index[None]))


def bounded_function(
    store: ParameterStore, compute: Compute, config: RunConfig, *, repeats: bool = False
) -> Callable[..., Any]:
    """Return the graph of a dispatch: (step ids int64 [k], when it was scheduled). `repeats`: as for `steps_function`."""
    computation = TimedComputation(compute, config, store)
    (first,) = store.slices

    @tf.function(autograph=False, input_signature=[tf.TensorSpec([None], tf.int64), tf.TensorSpec([], tf.float64)])
    def run_steps(step_ids: tf.Tensor, scheduled: tf.Tensor) -> tf.Tensor:
        identity = WorkerIdentity.read()

        def body(position: tf.Tensor) -> tf.Tensor:
            step_id, left = step_ids[position], tf.cast(tf.size(step_ids) - position, tf.int64)
            # The pull has no input from this iteration, so without the dependency it could run before the last push.
            asked = now_after(step_id)
            # After a wait the ps goes on to the pull by itself.
            admitted = first.admit(identity.worker, after([asked], left))  # type: ignore[attr-defined]  # of this mode
            pulled = store.pull(identity.worker, [admitted], step_id, asks_for_step=repeats)
            result, row, settle = computation(step_id, pulled, identity, scheduled, asked, admitted)
            outcomes = store.push(step_id, pulled.versions, result.gradient, result.fresh, row)
            with tf.control_dependencies(settle(outcomes)):
                return tf.where(tf.equal(outcomes[0], DROPPED), position, position + 1)

        return tf.while_loop(lambda position: position < tf.size(step_ids), body, [0], parallel_iterations=1)

    dispatch: Callable[..., Any] = run_steps
    return dispatch


class BoundedSteps(AsynchronousSteps):
    """Steps that may have to wait before they pull; one whose push was dropped is pulled and computed again."""

    graph = staticmethod(bounded_function)


class Bounded(Mode):
    name = "bounded"
    says = "asynchronous, with a bound on staleness or on how far a worker is ahead"
    Settings = BoundedSettings
    most_parameter_servers = 1  # a single place must decide which worker may go on
    waits = Waits.FOR_A_BOUND
    slice = BoundedShard
    work = BoundedSteps

    def most_staleness(self, config: RunConfig) -> int | None:
        settings: BoundedSettings = self.settings(config)
        return settings.bounds[0]

    def label(self, config: RunConfig) -> str:
        bounds = zip(("s", "lag"), self.settings(config).bounds, strict=True)
        return " ".join([self.name, *(f"{name}={bound}" for name, bound in bounds if bound is not None)])


# Mode sync-ps: rounds of synchronous training on the parameter server, with backup workers.

_NOT_YET = -1  # in place of the version at which a worker is admitted


class SyncPsSettings(ModeSettings):
    backup_workers: int = Field(
        default=0,
        ge=0,
        le=999,
        description="An update takes the first workers - this many gradients; the late ones are dropped.",
    )
    grace_seconds: float = Field(
        default=0.0,
        ge=0,
        le=3600,
        description="Those that come so soon after the first ones count too. Needs mode.backup_workers.",
    )


class RoundShard(WaitingShard):
    """Synchronous training on the parameter server: an update is the mean of the first gradients of its round.

    Round v turns version v into v + 1. Worker w takes step v x W + w in it. The first W - b gradients count; those of
    the b slowest workers are dropped (Chen, Pan, Monga, Bengio, Jozefowicz 2016, arXiv:1604.00981, section 3: backup
    workers). With a grace period the round is open for so long after the first W - b, or until all have come. The chief's
    ticks tell the time, so it takes up to two of them more.
    """

    def __init__(self, device: str, start: InitialState, config: RunConfig, total_steps: int):
        super().__init__(device, start, config, total_steps)
        self._workers = config.steps_per_update
        self._needed, self._most = config.gradients_per_update, config.most_gradients_per_update
        self._grace_s = config.mode_kind.grace_seconds(config)
        with tf.device(device):
            self._sum = tf.Variable(tf.zeros_like(self._weights))
            self._fresh_sum = tf.Variable(tf.zeros_like(self._statistics))
            self._summed = tf.Variable([0], dtype=tf.int64)  # gradients of the round that is open
            self._rate = tf.Variable([0.0])  # its learning rate
            self._waited_s = tf.Variable(0.0, dtype=tf.float64)  # for late gradients, on the clock of the ticks

    @property
    def _state(self) -> dict[str, tf.Variable]:
        sums = {"slot_sum": self._sum, "fresh_sum": self._fresh_sum, "gradients_summed": self._summed}
        return super()._state | sums | ({"round_rate": self._rate} if self._most > self._needed else {})

    def _on_tick(
        self, seconds: tf.Tensor, longest_update_s: tf.Tensor, last_step: tf.Tensor, is_present: tf.Tensor
    ) -> list[tf.Operation]:
        """Close the round whose grace period is over."""
        if self._most == self._needed:
            return []

        def wait() -> tf.Tensor:
            # The (W - b)th gradient may have come just before the first tick, so that one counts for nothing.
            waited_s = self._waited_s.assign_add(seconds) - seconds
            return tf.cond(waited_s >= self._grace_s, self._close, self._version.read_value)

        return [tf.cond(self._summed[0] >= self._needed, wait, self._version.read_value)]

    def admit_to_round(self, worker: tf.Tensor, end: tf.Tensor, needed: Sequence[Any]) -> tf.Tensor:
        """Return when `worker` asked and when it was admitted, float64 [2], in unix seconds of the parameter server.

        It asks once everything `needed` is done. It is admitted once a round is open to which it has not yet given a
        gradient.

        Args:
          end: the version at which the caller stops; the worker is then admitted with nothing to do.
        """
        worker, end = self._sent(worker, end)

        def attempt() -> tf.Tensor:
            now = self._version.read_value()
            has_pushed = tf.logical_and(now < end, self._has(tf.minimum(now, end - 1) * self._workers + worker))
            return tf.where(has_pushed, tf.constant(_NOT_YET, tf.int64), now)

        with tf.device(self._device):
            asked = now_after(*needed, worker, end)
            admitted = now_after(self._changed.wait_while(_NOT_YET, attempt, [asked], "int64"))
            return tf.stack([asked, admitted])

    def _refuse_or_apply(self, push: Push) -> tf.Tensor:
        late = push.version < self._version.read_value()
        return tf.cond(
            self._has(push.step), self._refuse, lambda: tf.cond(late, self._drop, lambda: self._contribute(push))
        )

    def _contribute(self, push: Push) -> tf.Tensor:
        now = self._version.read_value()
        added = [
            self._sum.assign_add(push.gradient, read_value=False),
            self._fresh_sum.assign_add(push.fresh, read_value=False),
        ]
        rate = tf.cast(push.value("learning_rate"), tf.float32)
        with tf.control_dependencies([*added, self._rate.assign(rate[None], read_value=False)]):
            complete = self._summed.assign_add([1])[0] >= self._most
        version = tf.cond(complete, self._close, lambda: now + 1)
        return after([self._record(push, version, tf.constant(0, tf.int64))], APPLIED)

    def _close(self) -> tf.Tensor:
        """Apply the round's update; return the version it made."""
        count = tf.cast(self._summed[0], tf.float32)
        version = self.apply_mean(self._sum.read_value() / count, self._rate[0], self._fresh_sum.read_value() / count)
        with tf.control_dependencies([version]):
            of_round = (self._sum, self._fresh_sum, self._summed, self._waited_s)
            cleared = [v.assign(tf.zeros_like(v), read_value=False) for v in of_round]
            return after([*cleared, self._changed.notify_all()], version)


class Rounds(StepSource):
    """Rounds of synchronous training: one dispatch for every worker. A worker that gets a second one finds it done."""

    def function(self, store: ParameterStore, compute: Compute) -> Callable[..., Any]:
        return rounds_function(store, compute, self._config)

    def dispatches(self) -> Iterator[bool]:
        begin, total = self._progress.applied, self._progress.total
        while begin < total:
            end = min(total, begin + self._size(self._progress.updates_per_second(), left=total - begin))
            while end * self._config.steps_per_update > self._progress.end_of_window:
                yield False
            self._progress.scheduled(np.arange(begin, end))  # before any can be done: see `AsynchronousSteps`
            for _ in range(self._config.training_workers):
                self._schedule(self._function, end)
            begin = end
            self.ends = begin == total
            yield True


def rounds_function(store: ParameterStore, compute: Compute, config: RunConfig) -> Callable[..., Any]:
    """Return the graph of one dispatch of rounds, which takes part in every round below version `end`, int64 [].

    Its other argument is when it was scheduled.
    """
    computation = TimedComputation(compute, config, store)
    (first,) = store.slices

    def pull(identity: WorkerIdentity, end: tf.Tensor, needed: Sequence[Any] = ()) -> list[tf.Tensor]:
        """Wait for the next round and pull, all on the ps: the answer to a push is the next parameters."""
        times = first.admit_to_round(identity.worker, end, needed)  # type: ignore[attr-defined]  # a slice of rounds
        pulled = store.pull(identity.worker, [times])
        # A loop variable stays on the device of its first value. On the ps it would be sent to the worker and back.
        return [tf.identity(times), pulled.weights, pulled.statistics, pulled.versions]

    @tf.function(autograph=False, input_signature=[tf.TensorSpec([], tf.int64), tf.TensorSpec([], tf.float64)])
    def run_rounds(end: tf.Tensor, scheduled: tf.Tensor) -> tf.Tensor:
        identity = WorkerIdentity.read()

        def body(times: tf.Tensor, *parameters: tf.Tensor) -> list[tf.Tensor]:
            pulled = Pulled(*parameters)
            step_id = pulled.versions[0] * config.steps_per_update + identity.worker
            result, row, settle = computation(step_id, pulled, identity, scheduled, *tf.unstack(times))
            outcomes = store.push(step_id, pulled.versions, result.gradient, result.fresh, row)
            return pull(identity, end, [outcomes, *settle(outcomes)])

        start = pull(identity, end)
        return tf.while_loop(lambda *pulled: pulled[-1][0] < end, body, start, parallel_iterations=1)[-1]

    dispatch: Callable[..., Any] = run_rounds
    return dispatch


class SyncPs(Mode):
    name = "sync-ps"
    says = "an update is the mean of a round's gradients, on the parameter server"
    Settings = SyncPsSettings
    most_parameter_servers = 1  # a single place must decide which gradient came too late
    waits = Waits.IN_ROUNDS
    is_stale = False
    fixed_workers = "a round has a place for each of them"
    # A round has a place for every worker and would wait for ever for one that was given up.
    on_death = {**ON_DEATH, WORKER: OnDeath(restarts=5, whole_cluster=False, dispensable=False)}
    is_simulated = True
    slice = RoundShard
    work = Rounds

    def check(self, config: RunConfig) -> None:
        super().check(config)
        backups = self.late_workers(config)
        if backups and backups >= config.cluster.workers:
            raise ValueError(f"mode.backup_workers: got {backups}: it needs more workers than that")
        if (grace_s := self.grace_seconds(config)) and not backups:
            raise ValueError(f"mode.grace_seconds: got {grace_s:g}: it needs mode.backup_workers, 1 or more")

    def late_workers(self, config: RunConfig) -> int:
        settings: SyncPsSettings = self.settings(config)
        return settings.backup_workers

    def grace_seconds(self, config: RunConfig) -> float:
        settings: SyncPsSettings = self.settings(config)
        return settings.grace_seconds

    def label(self, config: RunConfig) -> str:
        backups, grace_s = self.late_workers(config), self.grace_seconds(config)
        return " ".join(
            [self.name, *([f"b={backups}"] if backups else []), *([f"grace={grace_s:g}s"] if grace_s else [])]
        )
