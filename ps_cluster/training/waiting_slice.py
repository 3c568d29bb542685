"""The base class of slices that make workers wait for each other.

The slice's critical section decides who may go on, so these work with one parameter server only.
"""

from __future__ import annotations

from ps_cluster.catalogue.lazily import graph, tf
from ps_cluster.config import RunConfig
from ps_cluster.training.slice import Slice, Start
from ps_cluster.training.waiting import Condition


class WaitingSlice(Slice):
    """A slice where workers wait until another worker, or the passing of time, has changed something."""

    def __init__(self, device: str, start: Start, config: RunConfig, total_steps: int):
        super().__init__(device, start, config, total_steps)
        self._changed = Condition(device, self._section)

    def _sent(self, *numbers: tf.Tensor) -> list[tf.Tensor]:
        """Return `numbers` (int64 [] each) copied to the ps, else every retry of a wait would fetch them again."""
        vector = tf.stack(numbers)
        with tf.device(self._device):
            return tf.unstack(tf.identity(vector))

    @graph
    def tick(self, seconds: tf.Tensor, longest_update_s: tf.Tensor, last_step: tf.Tensor) -> tf.Tensor:
        def note() -> tf.Tensor:
            with tf.control_dependencies(self._on_tick(seconds, longest_update_s, last_step)):
                return self._changed.notify_all()

        with tf.device(self._device):
            return self._section.execute(note)

    def _on_tick(self, seconds: tf.Tensor, longest_update_s: tf.Tensor, last_step: tf.Tensor) -> list[tf.Operation]:
        return []
