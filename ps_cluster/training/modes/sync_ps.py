"""Mode sync-ps: rounds of synchronous training on the parameter server, with backup workers."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
from pydantic import Field

from ps_cluster.config import RunConfig
from ps_cluster.config.modes import ON_DEATH, WORKER, Mode, ModeSettings, OnDeath, Waits
from ps_cluster.config.registry import tf
from ps_cluster.server.shard import APPLIED, InitialState, Push, WaitingShard, after, now_after
from ps_cluster.server.store import ParameterStore, Pulled
from ps_cluster.training.worker import Compute, StepSource, TimedComputation, WorkerIdentity

_NOT_YET = -1  # in place of the version at which a worker is admitted


class SyncPsSettings(ModeSettings):
    backup_workers: int = Field(
        default=0,
        ge=0,
        le=999,
        description="An update takes the first workers - this many gradients; the late ones are dropped.",
    )


class RoundShard(WaitingShard):
    """Synchronous training on the parameter server: an update is the mean of the first gradients of its round.

    Round v turns version v into v + 1. Worker w takes step v x W + w in it. The first W - b gradients count; those of
    the b slowest workers are dropped (Chen, Pan, Monga, Bengio, Jozefowicz 2016, arXiv:1604.00981, section 3: backup
    workers).
    """

    def __init__(self, device: str, start: InitialState, config: RunConfig, total_steps: int):
        super().__init__(device, start, config, total_steps)
        self._workers = config.steps_per_update
        self._needed = config.gradients_per_update
        with tf.device(device):
            self._sum = tf.Variable(tf.zeros_like(self._weights))
            self._fresh_sum = tf.Variable(tf.zeros_like(self._statistics))
            self._summed = tf.Variable([0], dtype=tf.int64)  # gradients of the round that is open

    @property
    def _state(self) -> dict[str, tf.Variable]:
        sums = {"slot_sum": self._sum, "fresh_sum": self._fresh_sum, "gradients_summed": self._summed}
        return super()._state | sums

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

    def _receive(self, push: Push) -> tf.Tensor:
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
        with tf.control_dependencies(added):
            complete = self._summed.assign_add([1])[0] >= self._needed
        rate = tf.cast(push.value("learning_rate"), tf.float32)
        version = tf.cond(complete, lambda: self._close(rate), lambda: now + 1)
        return after([self._record(push, version, tf.constant(0, tf.int64))], APPLIED)

    def _close(self, learning_rate: tf.Tensor) -> tf.Tensor:
        """Apply the round's update; return the version it made."""
        version = self.update(
            self._sum.read_value() / self._needed, learning_rate, self._fresh_sum.read_value() / self._needed
        )
        with tf.control_dependencies([version]):
            of_round = (self._sum, self._fresh_sum, self._summed)
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
            self._progress.scheduled(np.arange(begin, end))  # before any can be done: see `Steps`
            for _ in range(self._config.training_workers):
                self._schedule(self._function, end)
            begin = end
            self.ends = begin == total
            yield True


def rounds_function(store: ParameterStore, compute: Compute, config: RunConfig) -> Callable[..., Any]:
    """Return the graph of one dispatch of rounds, which takes part in every round below version `end`, int64 [].

    Its other argument is when it was scheduled.
    """
    computation = TimedComputation(compute, config)
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
            result, row = computation(step_id, pulled, identity, scheduled, *tf.unstack(times))
            pushed = store.push(step_id, pulled.versions, result.gradient, result.fresh, row)
            return pull(identity, end, [pushed])

        start = pull(identity, end)
        return tf.while_loop(lambda *pulled: pulled[-1][0] < end, body, start, parallel_iterations=1)[-1]

    return run_rounds


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
        backups = self.settings(config).backup_workers
        if backups and backups >= config.cluster.workers:
            raise ValueError(f"mode.backup_workers: got {backups}: it needs more workers than that")

    def late_workers(self, config: RunConfig) -> int:
        return self.settings(config).backup_workers

    def label(self, config: RunConfig) -> str:
        return (
            f"{self.name} b={self.settings(config).backup_workers}"
            if self.settings(config).backup_workers
            else self.name
        )


SYNC_PS = SyncPs()
