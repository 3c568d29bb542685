"""Slices that make workers wait for each other: rounds of synchronous training, and a bound on staleness.

Who may go on is decided in the slice's critical section, so these work with one parameter server.
"""

from __future__ import annotations

import tensorflow as tf

from ps_cluster.config import RunConfig
from ps_cluster.training.slice import APPLIED, WAIT, Push, Slice, Start
from ps_cluster.training.waiting import after, repeat_while

# A worker that pulled longer ago than this is taken for dead and no longer waited for. Should it push after all, its
# gradient is judged by its staleness like every other.
LEASE_S = 20.0
_NOT_YET = -1  # of a version that a worker may take part in
_NOT_UNDER_WAY = -1  # of a version that a worker has pulled


class RoundSlice(Slice):
    """Synchronous on the parameter server: an update is the mean of the first gradients computed from its version.

    Round v turns version v into v + 1. Worker w takes step v x W + w in it. The first W - b gradients count; those of the
    b slowest are dropped (Chen, Pan, Monga, Bengio, Jozefowicz 2016, arXiv:1604.00981, section 3: backup workers).
    """

    def __init__(self, device: str, start: Start, config: RunConfig, total_steps: int):
        super().__init__(device, start, config, total_steps)
        self._workers = config.steps_per_update
        self._needed = config.gradients_per_update
        with tf.device(device):
            self._sum = tf.Variable(tf.zeros_like(self._weights))
            self._fresh_sum = tf.Variable(tf.zeros_like(self._statistics))

    @property
    def _state(self) -> dict[str, tf.Variable]:
        return super()._state | {"slot_sum": self._sum, "fresh_sum": self._fresh_sum}

    def admit_to_round(self, worker: tf.Tensor, end: tf.Tensor) -> tf.Tensor:
        """int64 []: the round that `worker` may take part in, once it has not yet given its gradient to it.

        Args:
          end: the version at which the caller stops; it is admitted there without anything to do.
        """

        def attempt() -> tf.Tensor:
            now = self._version.read_value()
            given = tf.logical_and(now < end, self._has(tf.minimum(now, end - 1) * self._workers + worker))
            return tf.where(given, tf.constant(_NOT_YET, tf.int64), now)

        with tf.device(self._device):
            return repeat_while(_NOT_YET, lambda: self._section.execute(attempt))

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
            before = self._has(now * self._workers + tf.range(self._workers, dtype=tf.int64))
            complete = tf.math.count_nonzero(before) + 1 >= self._needed
        rate = tf.cast(push.value("learning_rate"), tf.float32)
        version = tf.cond(complete, lambda: self._close(rate), lambda: now + 1)
        return after([self._record(push, version, tf.constant(0, tf.int64))], APPLIED)

    def _close(self, learning_rate: tf.Tensor) -> tf.Tensor:
        """The round's update; returns the version it made."""
        version = self.update(
            self._sum.read_value() / self._needed, learning_rate, self._fresh_sum.read_value() / self._needed
        )
        with tf.control_dependencies([version]):
            cleared = [v.assign(tf.zeros_like(v), read_value=False) for v in (self._sum, self._fresh_sum)]
        return after(cleared, version)


class BoundedSlice(Slice):
    """Asynchronous, but no update is staler than `max_staleness` s (Ho et al. 2013, stale synchronous parallel).

    The paper bounds how many steps workers may be apart; here it is the version an update is applied to, less the
    version it was computed from. A worker waits before it pulls while s + 1 others are under way, and before it pushes
    while its update would leave somebody under way no order of pushes that keeps to the bound. The one who pulled first
    never waits, so there is always one who goes on. A gradient that is too stale all the same (its worker was taken for
    dead) is dropped and computed again.
    """

    repeats_dropped = True

    def __init__(self, device: str, start: Start, config: RunConfig, total_steps: int):
        super().__init__(device, start, config, total_steps)
        self._bound = config.training.max_staleness
        self._lease_s = max(LEASE_S, config.longest_update_seconds)
        with tf.device(device):
            self._under_way = tf.Variable(tf.fill([config.training_workers], tf.constant(_NOT_UNDER_WAY, tf.int64)))
            self._since = tf.Variable(tf.zeros([config.training_workers], tf.float64))

    def admit(self, worker: tf.Tensor) -> list[tf.Tensor]:

        def attempt() -> tf.Tensor:
            others = tf.math.count_nonzero(self._others(worker) != _NOT_UNDER_WAY)
            return tf.cond(others <= self._bound, lambda: self._let_in(worker), lambda: tf.constant(WAIT))

        with tf.device(self._device):
            return [repeat_while(WAIT, lambda: self._section.execute(attempt))]

    def _let_in(self, worker: tf.Tensor) -> tf.Tensor:
        now = self._version.read_value()
        entered = [
            self._under_way.scatter_update(tf.IndexedSlices(now[None], worker[None])),
            self._since.scatter_update(tf.IndexedSlices(tf.timestamp()[None], worker[None])),
        ]
        return after(entered, APPLIED)

    def _others(self, worker: tf.Tensor) -> tf.Tensor:
        """int64 [workers]: the versions that others under way have pulled, elsewhere _NOT_UNDER_WAY."""
        pulled = self._under_way.read_value()
        alive = tf.timestamp() - self._since.read_value() < self._lease_s
        other = tf.range(pulled.shape[0], dtype=tf.int64) != worker
        return tf.where(tf.logical_and(alive, other), pulled, tf.constant(_NOT_UNDER_WAY, tf.int64))

    def _take(self, push: Push) -> tf.Tensor:
        return repeat_while(WAIT, lambda: self._section.execute(lambda: self._enter(push)))

    def _receive(self, push: Push) -> tf.Tensor:
        now = self._version.read_value()
        too_stale = now - push.version > self._bound

        def leave(outcome) -> tf.Tensor:
            waiting = tf.constant([_NOT_UNDER_WAY], tf.int64)
            with tf.control_dependencies(
                [self._under_way.scatter_update(tf.IndexedSlices(waiting, push.worker[None]))]
            ):
                return outcome()

        def take() -> tf.Tensor:
            return tf.cond(
                self._fits(push.worker, now + 1), lambda: leave(lambda: self._apply(push)), lambda: tf.constant(WAIT)
            )

        return tf.cond(
            self._has(push.step),
            lambda: leave(self._refuse),
            lambda: tf.cond(too_stale, lambda: leave(self._drop), take),
        )

    def _fits(self, worker: tf.Tensor, version: tf.Tensor) -> tf.Tensor:
        """Whether the others, oldest first, could all push within the bound once `version` is reached."""
        pulled = tf.sort(self._others(worker))
        under_way = tf.boolean_mask(pulled, pulled != _NOT_UNDER_WAY)
        staleness = version + tf.range(tf.size(under_way, tf.int64)) - under_way
        return tf.reduce_all(staleness <= self._bound)
