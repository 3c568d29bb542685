"""Modes diloco and sync-diloco: workers train by themselves for many steps, then the server takes an outer step.

Douillard et al. 2023, "DiLoCo: Distributed Low-Communication Training of Language Models" (arXiv:2311.08105), algorithm 1;
asynchronously Liu et al. 2024, "Asynchronous Local-SGD Training for Language Modeling" (arXiv:2401.09135), algorithm 3. With
the weights θ that it pulled, a worker takes H steps of the run's optimizer (the inner one) to θ_w, and pushes the outer
gradient g = θ - θ_w. The server applies Nesterov's momentum to it. A push is a step id with H batches, applied exactly once.
"""

from __future__ import annotations

import numpy as np
from pydantic import Field

from ps_cluster.config import RunConfig
from ps_cluster.config.modes import ModeSettings
from ps_cluster.config.registry import Momentum, tf
from ps_cluster.server.shard import InitialState, ParameterShard, Push
from ps_cluster.server.update_rules import UpdateRule
from ps_cluster.training.modes.local_steps import LocalMode, LocalTraining, local_steps_field
from ps_cluster.training.modes.waiting import RoundShard, SyncPs, SyncPsSettings, put

HEARD_OF = 4  # a worker that pushed within so many pushes for each worker counts for the highest speed


class OuterSettings(ModeSettings):
    local_steps: int = local_steps_field(16)
    outer_rate: float = Field(default=0.7, gt=0, le=10, description="Learning rate of the outer step.")
    outer_momentum: Momentum = Field(default=0.9, description="Of the outer step, which is Nesterov's.")


class DilocoSettings(OuterSettings):
    dynamic_steps: bool = Field(
        default=False,
        description="A slower worker takes fewer local steps: local_steps x its speed / the highest speed, rounded down.",
    )
    momentum_every: int | None = Field(
        default=None,
        ge=1,
        le=1000,
        description="The momentum changes with every N-th push, by the mean of the N; null: N is cluster.workers.",
    )
    momentum_spread: float = Field(
        default=0.0,
        ge=0,
        le=1,
        description="c of the paper: this share of the momentum moves the weights with each push, not only every N-th. At "
        "most 1 / N.",
    )


class DelayedNesterov(UpdateRule):
    """Delayed Nesterov (Liu et al. 2024, algorithm 3), with N `every`, c `spread`, ε the rate and β `momentum`.

      Δ ← Δ + g
      every N-th push:  m ← βm + Δ/N;  θ ← θ - ε [(1 - cN + c) βm + g/N];  Δ ← 0
      else:             θ ← θ - ε [cβm + g/N]

    With N = 1 it is Nesterov's momentum as PyTorch has it: m ← βm + g; θ ← θ - ε [βm + g].
    """

    slot_names = ("momentum", "gathered")

    def __init__(self, config: RunConfig, weights: tf.Variable, *, every: int, spread: float):
        """Create the slots. `every`: N. `spread`: c."""
        # The inner steps have decayed the weights already, and gone by the factors.
        without_decay = config.optimizer.model_copy(update={"weight_decay": 0.0})
        super().__init__(without_decay, weights, np.ones(weights.shape, np.float32))
        self._momentum, self._every, self._spread = config.mode.outer_momentum, every, spread  # type: ignore[attr-defined]

    def _change(
        self, gradient: tf.Tensor, learning_rate: tf.Tensor, updates_before: tf.Tensor, share: tf.Tensor | None
    ) -> tf.Operation:
        momentum, gathered = (self.slots[name].read_value() for name in self.slot_names)
        gathered += gradient
        every, spread = self._every, self._spread
        due = tf.equal((updates_before + 1) % every, 0)
        momentum = tf.where(due, self._momentum * momentum + gathered / every, momentum)
        weight = tf.where(due, 1 - spread * every + spread, spread) * self._momentum
        return tf.group(
            self._weights.assign_sub(learning_rate * (weight * momentum + gradient / every), read_value=False),
            self.slots["momentum"].assign(momentum, read_value=False),
            self.slots["gathered"].assign(tf.where(due, tf.zeros_like(gathered), gathered), read_value=False),
        )


class OuterShard(ParameterShard):
    """A slice that takes outer steps."""

    def __init__(self, device: str, start: InitialState, config: RunConfig, total_steps: int):
        self._outer_rate = config.mode.outer_rate  # type: ignore[attr-defined]
        super().__init__(device, start, config, total_steps)

    def _rule_of(self, config: RunConfig, factors: np.ndarray) -> UpdateRule:
        settings: DilocoSettings = config.mode_kind.settings(config)
        every = settings.momentum_every or config.cluster.workers
        return DelayedNesterov(config, self._weights, every=every, spread=settings.momentum_spread)

    def update(
        self, gradient: tf.Tensor, learning_rate: tf.Tensor, fresh: tf.Tensor, share: tf.Tensor | None = None
    ) -> tf.Tensor:
        return super().update(gradient, tf.constant(self._outer_rate), fresh, share)


class AsynchronousOuterShard(OuterShard):
    """A slice that takes an outer step with each push, and with `dynamic_steps` measures the speed of each worker.

    Dynamic local updates (Liu et al. 2024, section 5): worker w takes ⌊v_w / v_max · H⌋ steps, at least one. v is the steps
    per second of its newest period; v_max is the highest of the workers heard of lately.
    """

    def __init__(self, device: str, start: InitialState, config: RunConfig, total_steps: int):
        self._local_steps = config.batches_per_step
        self._batch_size = config.training.batch_size_per_worker
        self.limits_batches = config.mode_kind.takes_fewer_batches(config)
        super().__init__(device, start, config, total_steps)
        if self.limits_batches:
            self._lately = HEARD_OF * config.most_workers
            with tf.device(device):
                self._speeds = tf.Variable(tf.zeros([config.most_workers], tf.float64))
                self._heard = tf.Variable(tf.zeros([config.most_workers], tf.int64))  # the version of its newest push

    def _apply(self, push: Push) -> tf.Tensor:
        if not self.limits_batches:
            return super()._apply(push)
        steps, seconds = (
            push.value("examples") / self._batch_size,
            push.value("pushed_time") - push.value("pulled_time"),
        )
        with tf.control_dependencies([put(self._speeds, push.worker, tf.math.divide_no_nan(steps, seconds))]):
            heard = put(self._heard, push.worker, self._version.read_value())
        with tf.control_dependencies([heard]):
            return super()._apply(push)

    def _batches_for(self, worker: tf.Tensor) -> tf.Tensor:
        speeds = self._speeds.read_value()
        lately = self._version.read_value() - self._heard.read_value() <= self._lately
        share = tf.math.divide_no_nan(speeds[worker], tf.reduce_max(tf.where(lately, speeds, 0.0)))
        steps = tf.cast(tf.floor(share * self._local_steps), tf.int64)
        # Of a worker without a period nothing is known yet.
        return tf.where(speeds[worker] > 0, tf.clip_by_value(steps, 1, self._local_steps), self._local_steps)


class OuterRoundShard(OuterShard, RoundShard):
    """A slice that takes an outer step with the mean of each round's outer gradients."""

    def _rule_of(self, config: RunConfig, factors: np.ndarray) -> UpdateRule:
        return DelayedNesterov(config, self._weights, every=1, spread=0.0)


class Diloco(LocalMode):
    name = "diloco"
    says = "workers train by themselves for many steps; each such period is one outer step, as it arrives"
    Settings = DilocoSettings
    pins_workers = True
    rated_as = "single"
    unlabelled = frozenset({"outer_rate", "outer_momentum", "momentum_every", "momentum_spread"})
    slice = AsynchronousOuterShard
    step = LocalTraining

    def check(self, config: RunConfig) -> None:
        super().check(config)
        settings: DilocoSettings = self.settings(config)
        every = settings.momentum_every or config.cluster.workers
        if settings.momentum_spread > 1 / every:
            raise ValueError(
                f"mode.momentum_spread: got {settings.momentum_spread:g}: at most 1 / mode.momentum_every, 1 / {every}"
            )

    def takes_fewer_batches(self, config: RunConfig) -> bool:
        settings: DilocoSettings = self.settings(config)
        return settings.dynamic_steps

    def label(self, config: RunConfig) -> str:
        dynamic = " dynamic" if self.takes_fewer_batches(config) else ""
        return f"{self.name} H={config.batches_per_step}{dynamic}"


class SyncDilocoSettings(OuterSettings, SyncPsSettings):
    """As for diloco, in rounds."""


class SyncDiloco(LocalMode, SyncPs):
    name = "sync-diloco"
    says = "workers train by themselves for many steps; the mean of a round's periods is one outer step"
    Settings = SyncDilocoSettings
    rated_as = Diloco.rated_as
    unlabelled = Diloco.unlabelled
    is_simulated = False
    slice = OuterRoundShard
    step = LocalTraining

    def label(self, config: RunConfig) -> str:
        return f"{super().label(config)} H={config.batches_per_step}"
