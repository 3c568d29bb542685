"""Order and wait inside a TensorFlow graph: for time to pass, or for changes by other graphs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from ps_cluster.config.registry import tf

_UNBOUNDED = 2**31 - 1  # elements: an enqueue must never block, because it is in a critical section
_NOWHERE = -1  # in place of a queue's number: in no queue


def after(needed: Sequence[Any], value: tf.Tensor | int) -> tf.Tensor:
    """Return `value` once everything `needed` is done."""
    with tf.control_dependencies(needed):
        return tf.identity(value)


def now_after(*needed: Any) -> tf.Tensor:
    """Return the time when everything `needed` is done, float64 [], unix seconds."""
    with tf.control_dependencies(needed):
        return tf.timestamp()


def sleep(seconds: tf.Tensor) -> tf.Tensor:
    """Wait `seconds` (float64 []) without using a processor. Returns a tensor to depend on."""
    # TensorFlow has no operation that sleeps, but a dataset that does. Taking its only element asks it twice (for the
    # element and for the end), and it sleeps both times.
    microseconds = tf.cast(tf.maximum(seconds, 0.0) * 1e6 / 2, tf.int64)
    element = tf.raw_ops.TensorDataset(components=[tf.constant(0)], output_shapes=[[]])
    slow = tf.raw_ops.SleepDataset(
        input_dataset=element, sleep_microseconds=microseconds, output_types=[tf.int32], output_shapes=[[]]
    )
    return tf.raw_ops.DatasetToSingleElement(dataset=slow, output_types=[tf.int32], output_shapes=[[]])[0]


class Condition:
    """A condition variable on a parameter server: graphs wait there, at no cost, until another graph notifies them.

    It works like `threading.Condition`, with a critical section as the lock. A failed attempt is counted before the
    section is left. Then the graph dequeues an element, which blocks a callback and no thread. `notify_all` enqueues
    one element for each counted attempt, so no change is missed between an attempt and the wait. An element carries no
    state: the graph that gets one tries again.

    Two queues are used in turn. A graph that is counted after a notification dequeues from the other queue, so it can't
    take the element of a slower graph that was counted before.

    TensorFlow 2.21 does not cancel the part of a dead worker's graph that waits on a parameter server. That graph stays
    and gets its own element, so it takes no other graph's.

    Attributes:
      waiting: int32 [], how many graphs wait and were not yet notified.
    """

    def __init__(self, device: str, section: tf.CriticalSection):
        self._section = section
        with tf.device(device):
            self._queues = [tf.queue.FIFOQueue(_UNBOUNDED, tf.bool, []) for _ in range(2)]
            self._turn = tf.Variable(0)
            self.waiting = tf.Variable(0)

    def wait_while(
        self, value: int, attempt: Callable[[], tf.Tensor], needed: Sequence[Any] = (), dtype: str = "int32"
    ) -> tf.Tensor:
        """Run `attempt` in the critical section, and again after each notification while it returns `value`.

        There is no timeout: `notify_all` must be called now and then, as the chief does with each look.

        Args:
          value: the result that means "wait". attempt: returns `dtype` [].
          needed: the outside inputs of the attempt; the section is entered only when all have arrived.
        """

        def counted() -> tuple[tf.Tensor, tf.Tensor]:
            outcome = attempt()
            return outcome, tf.cond(tf.equal(outcome, value), self._count, lambda: tf.constant(_NOWHERE))

        def body(outcome: tf.Tensor, turn: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
            with tf.control_dependencies([self._taken(turn)]):
                return self._section.execute(counted)

        # Without `needed`, the section could be entered before the body's captured inputs arrive, and stay held.
        start = after(needed, tf.constant(value, dtype)), tf.constant(_NOWHERE)
        return tf.while_loop(lambda outcome, _: tf.equal(outcome, value), body, start, parallel_iterations=1)[0]

    def _taken(self, turn: tf.Tensor) -> tf.Tensor:
        """Take an element of queue number `turn`. The first attempt is in no queue and goes on at once."""

        def take() -> tf.Tensor:
            return tf.cond(tf.equal(turn, 0), self._queues[0].dequeue, self._queues[1].dequeue)

        return tf.cond(tf.equal(turn, _NOWHERE), lambda: tf.constant(False), take)

    def _count(self) -> tf.Tensor:
        """Count a waiting graph; return the number of the queue from which it takes its element, int32 []."""
        return after([self.waiting.assign_add(1, read_value=False)], self._turn.read_value())

    def notify_all(self) -> tf.Tensor:
        """Let all waiting graphs try again. Call it in the critical section, and let the result depend on it."""
        waiting = self.waiting.read_value()
        return tf.cond(waiting > 0, lambda: self._wake(waiting), lambda: tf.constant(0))

    def _wake(self, waiting: tf.Tensor) -> tf.Tensor:
        turn = self._turn.read_value()
        put = tf.cond(tf.equal(turn, 0), *(lambda queue=queue: _fill(queue, waiting) for queue in self._queues))
        with tf.control_dependencies([put]):
            return after([self._turn.assign(1 - turn, read_value=False)], self.waiting.assign(0))


def _fill(queue: tf.queue.FIFOQueue, count: tf.Tensor) -> tf.Tensor:
    """Fill the queue up to `count` elements. Leftovers in it were for graphs that ended before they took theirs."""
    missing = tf.maximum(count - queue.size(), 0)
    return after([queue.enqueue_many(tf.zeros([missing], tf.bool))], count)
