"""Average the weights on the parameter server while training continues."""

from __future__ import annotations

from ps_cluster.config.lazy import tf
from ps_cluster.config.schema import LookaheadSettings
from ps_cluster.server.ordering import after


class Lookahead:
    """Keeps slow weights that follow the trained weights, and sets the trained weights to them every k updates.

    Lookahead (Zhang, Lucas, Ba, Hinton 2019, arXiv:1907.08610, algorithm 1): every k updates the slow weights s move
    towards the trained weights w by s += (1 - d) (w - s), and then w = s. As in airbench (Jordan 2024,
    arXiv:2404.00498, section 3.4), d = decay^k p^3, where p is the fraction of updates that are done. So at first,
    while the weights still change a lot, they are not averaged, and at the end they are averaged over many updates. The
    training ends with the slow weights even if the number of its updates is not a multiple of k. Airbench achieves this
    by setting d = 1 at the end.

    Create and use it on the shard's device.
    """

    def __init__(self, settings: LookaheadSettings, weights: tf.Variable, total_updates: int):
        self._every = settings.every_updates
        self._decay = settings.decay
        self._weights = weights
        self._total = total_updates
        self.slots = {"slow": tf.Variable(weights)} if self._every else {}

    def after_update(self, version: tf.Tensor) -> list[tf.Tensor]:
        """Return the operations to run after the update that made `version` (int64 [])."""
        if not self._every:
            return []
        is_due, is_last = tf.equal(version % self._every, 0), tf.equal(version, self._total)
        slow = self.slots["slow"]

        def return_to_slow() -> tf.Tensor:
            progress = tf.cast(version, tf.float32) / self._total
            decay = self._decay**self._every * progress**3
            with tf.control_dependencies([version]):
                fast, slow_before = self._weights.read_value(), slow.read_value()
            mean = fast + decay * (slow_before - fast)
            return after([variable.assign(mean, read_value=False) for variable in (self._weights, slow)], version)

        def end_with_slow() -> tf.Tensor:
            with tf.control_dependencies([version]):
                return after([self._weights.assign(slow.read_value(), read_value=False)], version)

        return [tf.cond(is_due, return_to_slow, lambda: tf.cond(is_last, end_with_slow, lambda: version))]
