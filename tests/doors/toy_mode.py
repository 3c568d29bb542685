"""A mode that the package knows nothing of, with a setting of its own: its shard takes only each k-th gradient whole."""

from dataclasses import replace

from pydantic import Field

from ps_cluster.config.lazy import tf
from ps_cluster.config.modes import ModeSettings
from ps_cluster.config.optimizer_rules import RULES
from ps_cluster.server.ordering import after
from ps_cluster.server.shard import ParameterShard
from ps_cluster.training.modes.base import DefaultMode


class Settings(ModeSettings):
    every: int = Field(default=2, ge=1)


class CountingShard(ParameterShard):
    """Counts the gradients that it takes whole, and halves all others."""

    def __init__(self, device, start, config, total_steps):
        super().__init__(device, start, config, total_steps)
        self._every = config.mode.every
        with tf.device(device):
            self._whole = tf.Variable([0], dtype=tf.int64)

    @property
    def state(self):
        return super().state | {"toy_whole": self._whole}

    def apply_gradient(self, gradient, learning_rate, fresh, share=None):
        whole = tf.equal(self.version.read_value() % self._every, 0)
        with tf.control_dependencies([self._whole.assign_add([tf.cast(whole, tf.int64)], read_value=False)]):
            scaled = after([], tf.where(whole, gradient, gradient / 2))
        return super().apply_gradient(scaled, learning_rate, fresh, share)


class Toy(DefaultMode):
    Settings = Settings
    shard = CountingShard

    def label(self, config):
        return f"toy every={config.mode.every}"

    def equation(self, config, parts):
        if parts.updates_before % config.mode.every:
            parts = replace(parts, gradient=parts.gradient / 2)
        return RULES[config.optimizer.rule].equation(config.optimizer, parts)
