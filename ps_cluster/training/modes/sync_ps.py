"""Mode sync-ps: rounds of synchronous training on the parameter server, with backup workers."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from pydantic import Field

from ps_cluster.config import RunConfig
from ps_cluster.config.lazy import tf
from ps_cluster.config.modes import ClusterShape, ModeSettings, Synchrony, Waits
from ps_cluster.config.tasks import ON_DEATH, WORKER, OnDeath
from ps_cluster.models.rows import Rows
from ps_cluster.runs.checkpoint_arrays import BY_WEIGHT
from ps_cluster.server.initial_state import InitialState
from ps_cluster.server.ordering import Needed, after, now_after
from ps_cluster.server.shard import APPLIED, Push, Tick
from ps_cluster.server.store import ParameterStore, Pulled
from ps_cluster.server.table_shard import PushedRows
from ps_cluster.training.devices import graph_of_dispatch
from ps_cluster.training.modes.base import DefaultMode
from ps_cluster.training.modes.waiting import WaitingShard
from ps_cluster.training.step import Compute, WorkerIdentity
from ps_cluster.training.step_source import StepSource
from ps_cluster.training.worker import DispatchGraph, TimedComputation

_NOT_YET = -1  # the result of an attempt that does not admit the worker, instead of a version


class SyncPsSettings(ModeSettings):
    backup_workers: int = Field(
        default=0,
        ge=0,
        le=999,
        description="Number of spare workers. An update does not wait for the gradients of this many workers; gradients "
        "that come too late are dropped.",
    )
    grace_seconds: float = Field(
        default=0.0,
        ge=0,
        le=3600,
        description="How long an update waits for late gradients after it has enough gradients. Gradients that arrive within "
        "this time count too. Needs mode.backup_workers.",
    )


class Admission(NamedTuple):
    """The admission of a worker to a round.

    The time when the worker asked and the time when it was admitted are in one tensor, because they travel in one
    message.
    """

    times: tf.Tensor  # float64 [2], when the worker asked and when it was admitted, in unix seconds of the ps
    version: tf.Tensor  # int64 [], the version to which the round belongs


class RoundStart(NamedTuple):
    """The parameters with which a worker begins a round. They are the loop variables of a dispatch's graph."""

    times: tf.Tensor  # as in `Admission`
    weights: tf.Tensor  # as in `Pulled`, like the other fields
    statistics: tf.Tensor
    versions: tf.Tensor
    rows: Rows


class RoundShard(WaitingShard):
    """Synchronous training on the parameter server: an update is the mean of the first gradients of its round.

    There are W workers, b of them backup workers. Round v makes version v + 1 from version v. In this round, worker w
    takes step v * W + w. The first W - b gradients count; the gradients of the b slowest workers are dropped (Chen,
    Pan, Monga, Bengio, Jozefowicz 2016, arXiv:1604.00981, section 3: backup workers). With a grace period, the round
    stays open for this period after the first W - b gradients, or until all gradients have arrived. The shard learns
    only from the chief's periodic ticks how much time has passed, so the round may stay open for up to two ticks
    longer.
    """

    def __init__(self, device: str, start: InitialState, config: RunConfig, total_steps: int):
        super().__init__(device, start, config, total_steps)
        self._workers = config.steps_per_update
        self._needed, self._most = config.gradients_per_update, config.most_gradients_per_update
        self._grace_s = config.chosen_mode.grace_seconds(config)
        for table in self.tables:
            table.keep_sum()
        with tf.device(device):
            self._sum = tf.Variable(tf.zeros_like(self.weights))
            self._fresh_sum = tf.Variable(tf.zeros_like(self.statistics))
            self._summed = tf.Variable([0], dtype=tf.int64)  # the number of gradients in the open round
            self._rate = tf.Variable([0.0])  # the learning rate of the open round
            # The seconds that the open round has waited for late gradients, measured by the ticks.
            self._waited_s = tf.Variable(0.0, dtype=tf.float64)

    @property
    def state(self) -> dict[str, tf.Variable]:
        gradient_sum = {BY_WEIGHT.array_name("sum"): self._sum}
        sums = gradient_sum | {"fresh_sum": self._fresh_sum, "gradients_summed": self._summed}
        return super().state | sums | ({"round_rate": self._rate} if self._most > self._needed else {})

    def on_tick(self, tick: Tick) -> list[tf.Operation]:
        """Close the open round if its grace period is over."""
        if self._most == self._needed:
            return []

        def wait() -> tf.Tensor:
            # The (W - b)th gradient may have arrived just before the first tick, so the first tick does not count.
            waited_s = self._waited_s.assign_add(tick.seconds) - tick.seconds
            return tf.cond(waited_s >= self._grace_s, self._close, self.version.read_value)

        return [tf.cond(self._summed[0] >= self._needed, wait, self.version.read_value)]

    def admit_to_round(self, worker: tf.Tensor, end: tf.Tensor, needed: Needed) -> Admission:
        """Wait until `worker` is admitted to a round.

        The worker asks once everything in `needed` is done. It is admitted once a round is open in which it has not
        pushed a gradient yet.

        Args:
          end: the version at which the caller stops. At this version the worker is admitted although it has nothing to
            do.
        """
        worker, end = self.sent_to_server(worker, end)

        def attempt() -> tf.Tensor:
            now = self.version.read_value()
            has_pushed = tf.logical_and(now < end, self.has(tf.minimum(now, end - 1) * self._workers + worker))
            return tf.where(has_pushed, tf.constant(_NOT_YET, tf.int64), now)

        with tf.device(self.device):
            asked = now_after(*needed, worker, end)
            version = self.changed.wait_while(_NOT_YET, attempt, [asked], "int64")
            return Admission(tf.stack([asked, now_after(version)]), version)

    def refuse_or_apply(self, push: Push) -> tf.Tensor:
        late = push.version < self.version.read_value()
        return tf.cond(
            self.has(push.step), self.refuse, lambda: tf.cond(late, self.drop, lambda: self._contribute(push))
        )

    def _contribute(self, push: Push) -> tf.Tensor:
        now = self.version.read_value()
        added = [
            self._sum.assign_add(push.gradient, read_value=False),
            self._fresh_sum.assign_add(push.fresh, read_value=False),
            *(table.add_to_sum(*pushed) for table, *pushed in zip(self.tables, *push.rows, strict=True)),
        ]
        rate = tf.cast(push.from_worker.learning_rate, tf.float32)
        with tf.control_dependencies([now, *added, self._rate.assign(rate[None], read_value=False)]):
            complete = self._summed.assign_add([1])[0] >= self._most
        version = tf.cond(complete, self._close, lambda: now + 1)
        return after([self.record(push, version, now - push.version)], APPLIED)

    def _close(self) -> tf.Tensor:
        """Apply the round's update; return the new version."""
        count = tf.cast(self._summed[0], tf.float32)
        of_rows = [table.summed() for table in self.tables]
        rows = PushedRows([indices for indices, _ in of_rows], [total / count for _, total in of_rows])
        fresh = self._fresh_sum.read_value() / count
        version = self.apply_mean(self._sum.read_value() / count, self._rate[0], fresh, rows)
        with tf.control_dependencies([version]):
            of_round = (self._sum, self._fresh_sum, self._summed, self._waited_s)
            cleared = [v.assign(tf.zeros_like(v), read_value=False) for v in of_round]
            cleared += [table.clear_sum(indices) for table, indices in zip(self.tables, rows.indices)]
            return after([*cleared, self.changed.notify_all()], version)


class Rounds(StepSource):
    """Hands out the steps of one or more rounds at a time. Each worker gets its steps of these rounds as one dispatch.

    A dispatch is what the coordinator schedules. If a worker gets two dispatches, the second one does nothing.
    """

    def hand_out(self) -> Iterator[bool]:
        begin, total = self._progress.applied, self._progress.total
        while begin < total:
            size = self._size(self._progress.speed.updates_per_second, left=total - begin)
            end = self._progress.end_of_dispatch(begin, size)
            while end * self._config.steps_per_update > self._progress.end_of_window:
                yield False
            self._progress.note_scheduled(np.arange(begin, end))  # counted before it is sent, see `AsynchronousSteps`
            for _ in range(self._config.training_workers):
                self._schedule(self._graphs.first, end)
            begin = end
            self.ends = begin == total
            yield True


class SyncPs(DefaultMode):
    """Synchronous training on the parameter server, in rounds, with backup workers."""

    name = "sync-ps"
    description = "an update is the mean of a round's gradients, on the parameter server"
    Settings = SyncPsSettings
    has_tables = True
    cluster = ClusterShape(
        most_parameter_servers=1,  # a single place must decide which gradient came too late
        why_workers_are_fixed="every worker takes one step in each round",
        # A round has a place for every worker, so it would wait for ever for a worker that is not restarted.
        on_death={**ON_DEATH, WORKER: OnDeath(restarts=5, restarts_whole_cluster=False, dispensable=False)},
    )
    synchrony = Synchrony(waits=Waits.IN_ROUNDS, is_stale=False)
    shard = RoundShard
    step_source = Rounds

    def dispatch(self, store: ParameterStore, compute: Compute, config: RunConfig, *, repeats: bool) -> DispatchGraph:
        """Return the graph that a worker runs for a dispatch, a group of rounds.

        The graph's argument `what` is a version, int64 []. The worker takes part in each round until the shard reaches
        this version.
        """
        computation = TimedComputation(compute, config, store)
        shard = store.only_shard(RoundShard)

        def pull(identity: WorkerIdentity, end: tf.Tensor, needed: Needed = ()) -> RoundStart:
            """Wait for the next round, and pull its parameters.

            The wait and the pull run on the parameter server after a push, so the worker gets the next parameters
            without another request. With embedding tables, the worker gets the version first, and then asks for the
            rows of its step.
            """
            admitted = shard.admit_to_round(identity.worker, end, needed)
            rows = compute.rows(admitted.version * config.steps_per_update + identity.worker)
            pulled = store.pull(identity.worker, admitted, rows=rows)
            # With tables, the rows are those of the step of the admitted version. If that round has ended since, the
            # push has to count as late.
            versions = admitted.version[None] if shard.tables else pulled.versions
            # A loop variable stays on the device of its first value. On the ps, it would be sent to the worker and
            # back.
            return RoundStart(tf.identity(admitted.times), pulled.weights, pulled.statistics, versions, rows)

        def run_rounds(end: tf.Tensor, scheduled: tf.Tensor) -> tf.Tensor:
            identity = WorkerIdentity.read()

            def body(start: RoundStart) -> tuple[RoundStart]:
                pulled = Pulled(start.weights, start.statistics, start.versions, rows=start.rows)
                step_id = start.versions[0] * config.steps_per_update + identity.worker
                push, settle = computation(step_id, pulled, identity, scheduled, *tf.unstack(start.times))
                outcomes = store.push(push)
                return (pull(identity, end, [outcomes, *settle(outcomes)]),)

            first = pull(identity, end)
            shapes = tf.nest.map_structure(lambda one: one.shape, first)
            if shard.tables:  # the number of rows differs from step to step
                shapes = shapes._replace(weights=tf.TensorShape([None]))
            loop: tuple[RoundStart] = tf.while_loop(
                lambda start: start.versions[0] < end, body, (first,), (shapes,), parallel_iterations=1
            )
            return loop[0].versions

        return graph_of_dispatch(config, tf.TensorSpec([], tf.int64), run_rounds)

    def check(self, config: RunConfig) -> None:
        super().check(config)
        backups = self.late_workers(config)
        if backups and backups >= config.cluster.workers:
            raise ValueError(f"mode.backup_workers: got {backups}: it has to be less than cluster.workers")
        if (grace_s := self.grace_seconds(config)) and not backups:
            raise ValueError(f"mode.grace_seconds: got {grace_s:g}: it needs mode.backup_workers of at least 1")

    def late_workers(self, config: RunConfig) -> int:
        return SyncPsSettings.of(config).backup_workers

    def grace_seconds(self, config: RunConfig) -> float:
        return SyncPsSettings.of(config).grace_seconds

    def label(self, config: RunConfig) -> str:
        backups, grace_s = self.late_workers(config), self.grace_seconds(config)
        return self.name + f" b={backups}" * bool(backups) + f" grace={grace_s:g}s" * bool(grace_s)
