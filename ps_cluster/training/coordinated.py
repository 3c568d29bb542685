"""Slices that make workers wait for each other: their common base, and rounds of synchronous training.

The slice's critical section decides who may go on, so these work with one parameter server only.
"""

from __future__ import annotations

from collections.abc import Sequence

import tensorflow as tf

from ps_cluster.config import RunConfig
from ps_cluster.training.slice import APPLIED, Push, Slice, Start
from ps_cluster.training.waiting import Condition, after, now_after

_NOT_YET = -1  # in place of the version at which a worker is admitted


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

    @tf.function(autograph=False)
    def tick(self, seconds: tf.Tensor, last_step: tf.Tensor) -> tf.Tensor:
        def note() -> tf.Tensor:
            with tf.control_dependencies(self._on_tick(seconds, last_step)):
                return self._changed.notify_all()

        with tf.device(self._device):
            return self._section.execute(note)

    def _on_tick(self, seconds: tf.Tensor, last_step: tf.Tensor) -> list[tf.Operation]:
        return []


class RoundSlice(WaitingSlice):
    """Synchronous training on the parameter server: an update is the mean of the first gradients of its round.

    Round v turns version v into v + 1. Worker w takes step v x W + w in it. The first W - b gradients count; those of
    the b slowest workers are dropped (Chen, Pan, Monga, Bengio, Jozefowicz 2016, arXiv:1604.00981, section 3: backup
    workers).
    """

    def __init__(self, device: str, start: Start, config: RunConfig, total_steps: int):
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

    def admit_to_round(self, worker: tf.Tensor, end: tf.Tensor, needed: Sequence) -> tf.Tensor:
        """Return when `worker` asked and when it was admitted, float64 [2], in unix seconds of the parameter server.

        It asks once everything `needed` is done. It is admitted once a round is open to which it has not yet given a
        gradient.

        Args:
          end: the version at which the caller stops; the worker is then admitted with nothing to do.
        """
        worker, end = self._sent(worker, end)

        def attempt() -> tf.Tensor:
            now = self._version.read_value()
            given = tf.logical_and(now < end, self._has(tf.minimum(now, end - 1) * self._workers + worker))
            return tf.where(given, tf.constant(_NOT_YET, tf.int64), now)

        with tf.device(self._device):
            asked = now_after(*needed, worker, end)
            admitted = now_after(self._changed.wait_while(_NOT_YET, attempt, [asked], tf.int64))
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
