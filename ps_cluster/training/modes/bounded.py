"""Mode bounded: asynchronous, with a bound on staleness, on how far a worker may be ahead, or on both."""

from __future__ import annotations

import math

from pydantic import Field

from ps_cluster.config import MOST_WORKERS_OF_A_CLUSTER, RunConfig
from ps_cluster.config.lazy import tf
from ps_cluster.config.modes import ClusterShape, ModeSettings, Synchrony, Waits
from ps_cluster.server.initial_state import InitialState
from ps_cluster.server.ordering import after, now_after
from ps_cluster.server.shard import APPLIED, DROPPED, NO_END, WAIT, Push, Tick
from ps_cluster.server.store import ParameterStore
from ps_cluster.training.devices import graph_of_dispatch
from ps_cluster.training.modes.base import DefaultMode
from ps_cluster.training.modes.waiting import WaitingShard, put
from ps_cluster.training.step import Compute, WorkerIdentity
from ps_cluster.training.worker import DispatchGraph, TimedComputation

DEFAULT_MAX_STALENESS = 3  # used if no bound is set
# A worker that has sent nothing for longer than this, and for longer than an update takes, counts as dead, and other
# workers stop waiting for it. If it pushes after all, its gradient is checked like any other.
LEASE_S = 20.0
_NOT_UNDER_WAY = -1  # stands for the pulled version of a worker without a step under way


class BoundedSettings(ModeSettings):
    max_staleness: int | None = Field(
        default=None,
        ge=0,
        le=1000,
        description="The largest staleness of an update. If neither this nor mode.max_clock_lag is set, the bound is "
        f"{DEFAULT_MAX_STALENESS}.",
    )
    max_clock_lag: int | None = Field(
        default=None,
        ge=0,
        le=1000,
        description="How many steps a worker may be ahead of the slowest one when it begins a step; 0: all workers take each "
        "step together.",
    )

    @property
    def bounds(self) -> tuple[int | None, int | None]:
        """The largest staleness of an update, and the most steps that a worker may be ahead; None: no bound."""
        staleness, lag = self.max_staleness, self.max_clock_lag
        return (DEFAULT_MAX_STALENESS if staleness is None and lag is None else staleness), lag


class BoundedShard(WaitingShard):
    """A shard that bounds the staleness of updates, the clock lag of workers, or both, in asynchronous training.

    `max_staleness` s: no update is applied to weights that are more than s versions newer than those from which it was
    computed. A worker is called under way from its pull to its push. It waits before its pull while s + 1 other workers
    are under way. It waits before its push if, after its update, another worker under way could not keep the bound.
    The worker that pulled first never waits to push.

    `max_clock_lag` s (Ho et al. 2013, "More effective distributed ML via a stale synchronous parallel parameter
    server", NIPS, section 2): a worker's clock is the number of its steps that have ended, either applied or refused as
    replays. A worker at clock c begins its next step only when all workers for which it waits are at c - s or later. So
    it sees every update made at a clock up to c - s - 1, including its own updates. With s = 0 training is
    bulk-synchronous: no worker begins step c + 1 before all have pushed step c. The slowest worker never waits for
    another worker's clock.

    A worker waits for all other workers with three exceptions:

    - Workers that the chief knows to be gone.
    - Workers that have sent nothing for `LEASE_S` seconds (or for the longest time that an update takes, if that is
      more).
    - Workers that have no step and will get none for now, because other workers already have all steps up to the end of
      training, or up to a checkpoint that has to be written before training continues.

    A worker that returns, or arrives late, continues at the lowest clock that the bound allows. If it pushes a step of
    a lower clock, the push is dropped: other workers have begun steps in which they should have seen its update. The
    worker then computes the gradient again, as it does after a push that is staler than `max_staleness`. So both bounds
    hold for every update, whichever worker died.
    """

    def __init__(self, device: str, start: InitialState, config: RunConfig, total_steps: int):
        super().__init__(device, start, config, total_steps)
        settings = BoundedSettings.of(config)
        staleness, lag = settings.bounds
        self._max_staleness = NO_END if staleness is None else staleness
        self._max_clock_lag = NO_END if lag is None else lag
        workers, spare = config.most_workers, config.most_workers - config.training_workers
        with tf.device(device):
            self._under_way = tf.Variable(tf.fill([workers], tf.constant(_NOT_UNDER_WAY, tf.int64)))
            # For each worker, the number of steps of its dispatch that have not ended.
            self._remaining = tf.Variable(tf.zeros([workers], tf.int64))
            # There are as many clocks as a cluster may ever have workers, because a resumed run may have more workers.
            self._clocks = tf.Variable(tf.zeros([MOST_WORKERS_OF_A_CLUSTER], tf.int64))
            # The time of each worker's last message, in seconds on the clock of the ticks. No worker waits for a worker
            # that has never been part of the cluster.
            self._heard = tf.Variable(tf.constant([0.0] * (workers - spare) + [-math.inf] * spare, tf.float64))
            self._lease_s = tf.Variable(LEASE_S, dtype=tf.float64)
            self._now = tf.Variable(0.0, dtype=tf.float64)  # seconds, the sum of the ticks
            self._handed_out = tf.Variable(NO_END, dtype=tf.int64)

    @property
    def state(self) -> dict[str, tf.Variable]:
        return super().state | {"clocks": self._clocks}

    def on_tick(self, tick: Tick) -> list[tf.Operation]:
        heard = tf.where(tick.is_present, self._heard.read_value(), tf.constant(-math.inf, tf.float64))
        return [
            self._heard.assign(heard, read_value=False),
            self._now.assign_add(tick.seconds, read_value=False),
            self._lease_s.assign(tf.maximum(tick.longest_update_s, LEASE_S), read_value=False),
            self._handed_out.assign(tick.handed_out, read_value=False),
        ]

    def admit(self, worker: tf.Tensor, remaining: tf.Tensor) -> tf.Tensor:
        """Wait until `worker` (int64 []) may pull; return the time of this moment, float64 [].

        The time is in unix seconds, by the clock of the parameter server.

        Args:
          remaining: int64 [], how many steps of its current dispatch the worker still has to do, including the step that
            it wants to begin.
        """
        worker, remaining = request = self.sent_to_server(worker, remaining)
        with tf.device(self.device):
            return now_after(self.changed.wait_while(WAIT, lambda: self._may_begin(worker, remaining), request))

    def _may_begin(self, worker: tf.Tensor, remaining: tf.Tensor) -> tf.Tensor:
        """If the worker may begin a step, count it as under way and return APPLIED; otherwise return WAIT."""
        # `remaining` is stored even if the worker has to wait. Otherwise all workers with the last steps could wait for
        # a worker that will get no step.
        with tf.control_dependencies([put(self._remaining, worker, remaining)]):
            clocks = tf.maximum(self._clocks_now(), self._lowest_clock())
            slowest = tf.reduce_min(self._of_others(worker, self._waited_for(), clocks, NO_END))
            clock = clocks[worker]
            few = tf.math.count_nonzero(self._pulled_by_others(worker) != _NOT_UNDER_WAY) <= self._max_staleness
            ready = tf.logical_and(few, slowest >= clock - self._max_clock_lag)
            return tf.cond(ready, lambda: self._enter(worker, clock), lambda: tf.constant(WAIT))

    def _enter(self, worker: tf.Tensor, clock: tf.Tensor) -> tf.Tensor:
        now = self.version.read_value()
        entered = [
            put(self._under_way, worker, now),
            put(self._clocks, worker, clock),
            put(self._heard, worker, self._now.read_value()),
        ]
        return after(entered, APPLIED)

    def _clocks_now(self) -> tf.Tensor:
        """Return the clocks of this run's workers, the numbers of steps that they have ended, int64 [workers]."""
        return self._clocks.read_value()[: self._under_way.shape[0]]

    def _lowest_clock(self) -> tf.Tensor:
        """Return the clock below which a push is dropped, int64 [].

        It is the highest clock at which a step has begun, less `max_clock_lag`.
        """
        begun = self._clocks_now() - tf.cast(self._under_way.read_value() == _NOT_UNDER_WAY, tf.int64)
        return tf.reduce_max(begun) - self._max_clock_lag

    def _waited_for(self) -> tf.Tensor:
        """Return for each worker whether other workers wait for it, bool [workers]."""
        alive, remaining = self._alive(), self._remaining.read_value()
        # Every update is one step, so the version says how many of the steps that were handed out have ended.
        # `remaining` does not count a dispatch that is on its way to a worker.
        unfinished = self._handed_out.read_value() - self.version.read_value()
        ending = tf.reduce_sum(tf.where(alive, remaining, 0)) >= unfinished
        return tf.logical_and(alive, tf.logical_or(remaining > 0, tf.logical_not(ending)))

    def _alive(self) -> tf.Tensor:
        """Return for each worker whether its last message is recent enough that it counts as alive, bool [workers]."""
        return self._now.read_value() - self._heard.read_value() < self._lease_s.read_value()

    def _pulled_by_others(self, worker: tf.Tensor) -> tf.Tensor:
        """Return the versions that the other workers have pulled for the steps that they compute now, int64 [workers].

        The value is _NOT_UNDER_WAY for `worker`, for workers that compute no step, and for workers that seem dead.
        """
        return self._of_others(worker, self._alive(), self._under_way.read_value(), _NOT_UNDER_WAY)

    @staticmethod
    def _of_others(worker: tf.Tensor, chosen: tf.Tensor, values: tf.Tensor, elsewhere: int) -> tf.Tensor:
        """Return `values`, int64 [workers], for all chosen workers except `worker`; for the rest, return `elsewhere`.

        `chosen`: whether each worker is chosen, bool [workers].
        """
        other = tf.range(values.shape[0], dtype=tf.int64) != worker
        return tf.where(tf.logical_and(chosen, other), values, tf.constant(elsewhere, tf.int64))

    def execute_push(self, push: Push) -> tf.Tensor:
        return self.changed.wait_while(WAIT, lambda: self.receive(push), push.tensors())

    def refuse_or_apply(self, push: Push) -> tf.Tensor:
        now = self.version.read_value()
        too_stale = tf.logical_or(
            now - push.version > self._max_staleness, self._clocks.sparse_read(push.worker) < self._lowest_clock()
        )

        def take() -> tf.Tensor:
            fits = self._fits(push.worker, now + 1)
            return tf.cond(fits, lambda: self._end_step(push, self.apply_push(push)), lambda: tf.constant(WAIT))

        return tf.cond(
            self.has(push.step),
            lambda: self._end_step(push, self.refuse()),
            lambda: tf.cond(too_stale, lambda: self._end_step(push, self.drop()), take),
        )

    def _end_step(self, push: Push, outcome: tf.Tensor) -> tf.Tensor:
        """End the worker's step; return `outcome`. The worker's clock advances by 1 unless its push was dropped."""
        with tf.control_dependencies([outcome]):
            ended = tf.cast(outcome != DROPPED, tf.int64)
            ended_step = [
                put(self._under_way, push.worker, tf.constant(_NOT_UNDER_WAY, tf.int64)),
                put(self._clocks, push.worker, self._clocks.sparse_read(push.worker) + ended),
                put(self._remaining, push.worker, tf.maximum(self._remaining.sparse_read(push.worker) - ended, 0)),
                put(self._heard, push.worker, self._now.read_value()),
            ]
        with tf.control_dependencies(ended_step):
            return after([self.changed.notify_all()], outcome)

    def _fits(self, worker: tf.Tensor, version: tf.Tensor) -> tf.Tensor:
        """Return whether all other workers could push their current steps within the staleness bound after this push.

        `worker` makes this push, and `version` is the version of the shard after it. It is assumed that the other
        workers push in the order in which they pulled.
        """
        pulled = tf.sort(self._pulled_by_others(worker))
        under_way = tf.boolean_mask(pulled, pulled != _NOT_UNDER_WAY)
        staleness = version + tf.range(tf.size(under_way, tf.int64)) - under_way
        return tf.reduce_all(staleness <= self._max_staleness)


class Bounded(DefaultMode):
    """Asynchronous training with a bound on staleness, on how far a worker may be ahead, or on both.

    The mode guarantees that no update is staler than `max_staleness`. It also guarantees that a worker begins a step
    only if it has finished at most `max_clock_lag` steps more than the slowest worker for which it waits. Both bounds
    hold for every update, whichever worker dies: a push that would exceed a bound is dropped, and its gradient is
    computed again. The proof, the check of the ledger after a run, covers `max_staleness`, but not `max_clock_lag`.
    """

    name = "bounded"
    description = "asynchronous, with a bound on staleness or on how far a worker is ahead"
    Settings = BoundedSettings
    has_tables = True
    cluster = ClusterShape(most_parameter_servers=1)  # a single place must decide which worker may continue
    synchrony = Synchrony(waits=Waits.FOR_A_BOUND)
    shard = BoundedShard

    def dispatch(self, store: ParameterStore, compute: Compute, config: RunConfig, *, repeats: bool) -> DispatchGraph:
        """Return the graph that a worker runs for a dispatch, a group of steps.

        The worker may have to wait before it pulls and before it pushes. If a push was dropped, it pulls again and
        computes the step again. See also `steps_graph`.
        """
        computation = TimedComputation(compute, config, store)
        shard = store.only_shard(BoundedShard)

        def run_steps(step_ids: tf.Tensor, scheduled: tf.Tensor) -> tf.Tensor:
            identity = WorkerIdentity.read()

            def body(position: tf.Tensor) -> tf.Tensor:
                step_id, remaining = step_ids[position], tf.cast(tf.size(step_ids) - position, tf.int64)
                # The pull has no input from this iteration, so without this dependency it could run before the previous
                # push.
                asked = now_after(step_id)
                # After a wait, the ps continues with the pull without a message to the worker.
                admitted = shard.admit(identity.worker, after([asked], remaining))
                rows = compute.rows(step_id)
                pulled = store.pull(identity.worker, [admitted], step_id, asks_for_step=repeats, rows=rows)
                push, settle = computation(step_id, pulled, identity, scheduled, asked, admitted)
                outcomes = store.push(push)
                with tf.control_dependencies(settle(outcomes)):
                    return tf.where(tf.equal(outcomes[0], DROPPED), position, position + 1)

            return tf.while_loop(lambda position: position < tf.size(step_ids), body, [0], parallel_iterations=1)

        return graph_of_dispatch(config, tf.TensorSpec([None], tf.int64), run_steps)

    def most_staleness(self, config: RunConfig) -> int | None:
        return BoundedSettings.of(config).bounds[0]

    def label(self, config: RunConfig) -> str:
        bounds = zip(("s", "lag"), BoundedSettings.of(config).bounds, strict=True)
        return " ".join([self.name, *(f"{name}={bound}" for name, bound in bounds if bound is not None)])
