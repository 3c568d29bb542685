"""A mode that follows the signs of gradients alone: signSGD, Bernstein et al. 2018, arXiv:1802.04434, algorithm 1."""

from __future__ import annotations

import numpy as np
from pydantic import Field

from ps_cluster.config import RunConfig
from ps_cluster.config.equations import Slots, UpdateParts
from ps_cluster.config.lazy import tf
from ps_cluster.config.modes import ModeSettings
from ps_cluster.server.initial_state import InitialState
from ps_cluster.server.ordering import after
from ps_cluster.server.shard import ParameterShard
from ps_cluster.training.modes.base import DefaultMode


class MajoritySettings(ModeSettings):
    scale: float = Field(default=1.0, gt=0, le=1000, description="A weight's step in learning rates.")


class SignShard(ParameterShard):
    """Keeps the signs of the last update, and adds up which share of them each update has turned."""

    def __init__(self, device: str, start: InitialState, config: RunConfig, total_steps: int):
        super().__init__(device, start, config, total_steps)
        self._scale = MajoritySettings.of(config).scale
        with tf.device(device):
            self._signs = tf.Variable(tf.zeros([self.length]))
            self._turned = tf.Variable(0.0)

    @property
    def slots(self) -> dict[str, tf.Variable]:
        return super().slots | {"signs": self._signs, "turned": self._turned}

    def apply_gradient(
        self, gradient: tf.Tensor, learning_rate: tf.Tensor, fresh: tf.Tensor, gradient_scale: tf.Tensor | None = None
    ) -> tf.Tensor:
        signs = tf.sign(gradient)
        turned = tf.reduce_mean(tf.cast(signs * self._signs.read_value() < 0, tf.float32))
        with tf.control_dependencies([turned]):
            kept = [self._signs.assign(signs, read_value=False), self._turned.assign_add(turned, read_value=False)]
        return super().apply_gradient(after(kept, self._scale * signs), learning_rate, fresh, gradient_scale)


class Majority(DefaultMode):
    Settings = MajoritySettings
    shard = SignShard
    own_rule = "sgd"

    def label(self, config: RunConfig) -> str:
        return f"majority scale={MajoritySettings.of(config).scale:g}"

    def equation(self, config: RunConfig, parts: UpdateParts) -> Slots | None:
        signs = np.sign(parts.gradient)
        step = parts.learning_rate * parts.factors * MajoritySettings.of(config).scale * signs
        return {"weights": parts.decayed_weights - step, "signs": signs}
