"""A mode that follows the signs of gradients alone: signSGD, Bernstein et al. 2018, arXiv:1802.04434, algorithm 1."""

import numpy as np
from pydantic import Field

from ps_cluster.config.lazy import tf
from ps_cluster.config.modes import ModeSettings, UsedSettings
from ps_cluster.server.ordering import after
from ps_cluster.server.shard import ParameterShard
from ps_cluster.training.modes.base import DefaultMode


class Settings(ModeSettings):
    scale: float = Field(default=1.0, gt=0, le=1000, description="A weight's step in learning rates.")


class SignShard(ParameterShard):
    """Keeps the signs of the last update, and adds up which share of them each update has turned."""

    def __init__(self, device, start, config, total_steps):
        super().__init__(device, start, config, total_steps)
        self._scale = config.mode.scale
        with tf.device(device):
            self._signs = tf.Variable(tf.zeros([self.length]))
            self._turned = tf.Variable(0.0)

    @property
    def slots(self):
        return super().slots | {"signs": self._signs, "turned": self._turned}

    def apply_gradient(self, gradient, learning_rate, fresh, share=None):
        signs = tf.sign(gradient)
        turned = tf.reduce_mean(tf.cast(signs * self._signs.read_value() < 0, tf.float32))
        with tf.control_dependencies([turned]):
            kept = [self._signs.assign(signs, read_value=False), self._turned.assign_add(turned, read_value=False)]
        return super().apply_gradient(after(kept, self._scale * signs), learning_rate, fresh, share)


class Majority(DefaultMode):
    Settings = Settings
    shard = SignShard
    uses = UsedSettings(own_rule="sgd")

    def label(self, config):
        return f"majority scale={config.mode.scale:g}"

    def equation(self, config, parts):
        signs = np.sign(parts.gradient)
        step = parts.learning_rate * parts.factors * config.mode.scale * signs
        return {"weights": parts.decayed_weights - step, "signs": signs}
