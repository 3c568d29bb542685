"""A mode that the package knows nothing of, with a setting of its own: its shard takes only each k-th gradient whole."""

from __future__ import annotations

from dataclasses import replace

from pydantic import Field

from ps_cluster.config import RunConfig
from ps_cluster.config.equations import Slots, UpdateParts
from ps_cluster.config.lazy import tf
from ps_cluster.config.modes import ModeSettings
from ps_cluster.config.optimizer_rules import RULES
from ps_cluster.server.initial_state import InitialState
from ps_cluster.server.ordering import after
from ps_cluster.server.shard import ParameterShard
from ps_cluster.training.modes.base import DefaultMode


class ToySettings(ModeSettings):
    every: int = Field(default=2, ge=1)


class CountingShard(ParameterShard):
    """Counts the gradients that it takes whole, and halves all others."""

    def __init__(self, device: str, start: InitialState, config: RunConfig, total_steps: int):
        super().__init__(device, start, config, total_steps)
        self._every = ToySettings.of(config).every
        with tf.device(device):
            self._whole = tf.Variable([0], dtype=tf.int64)

    @property
    def state(self) -> dict[str, tf.Variable]:
        return super().state | {"toy_whole": self._whole}

    def apply_gradient(
        self, gradient: tf.Tensor, learning_rate: tf.Tensor, fresh: tf.Tensor, gradient_scale: tf.Tensor | None = None
    ) -> tf.Tensor:
        whole = tf.equal(self.version.read_value() % self._every, 0)
        with tf.control_dependencies([self._whole.assign_add([tf.cast(whole, tf.int64)], read_value=False)]):
            scaled = after([], tf.where(whole, gradient, gradient / 2))
        return super().apply_gradient(scaled, learning_rate, fresh, gradient_scale)


class Toy(DefaultMode):
    Settings = ToySettings
    shard = CountingShard

    def label(self, config: RunConfig) -> str:
        return f"toy every={ToySettings.of(config).every}"

    def equation(self, config: RunConfig, parts: UpdateParts) -> Slots | None:
        if parts.updates_before % ToySettings.of(config).every:
            parts = replace(parts, gradient=parts.gradient / 2)
        return RULES[config.optimizer.rule].equation(config.optimizer, parts)
