"""Order and waiting inside a graph, on a clock or on what others do."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import tensorflow as tf

_UNBOUNDED = 2**31 - 1  # elements: an enqueue must never block, it is done in a critical section
_NOWHERE = -1  # in place of the number of a queue


def after(needed: Sequence, value: tf.Tensor | int) -> tf.Tensor:
    """`value`, once everything `needed` is done."""
    with tf.control_dependencies(needed):
        return tf.identity(value)


def now_after(*needed) -> tf.Tensor:
    """float64 []: unix seconds at the moment when everything `needed` is there."""
    with tf.control_dependencies(needed):
        return tf.timestamp()


def sleep(seconds: tf.Tensor) -> tf.Tensor:
    """Waits `seconds` (float64 []) without using a processor. Returns a tensor to depend on."""
    # TensorFlow has no operation that sleeps, but a dataset that does. Taking its only element asks it twice, the second
    # time for its end, and it sleeps both times.
    microseconds = tf.cast(tf.maximum(seconds, 0.0) * 1e6 / 2, tf.int64)
    element = tf.raw_ops.TensorDataset(components=[tf.constant(0)], output_shapes=[[]])
    slow = tf.raw_ops.SleepDataset(
        input_dataset=element, sleep_microseconds=microseconds, output_types=[tf.int32], output_shapes=[[]]
    )
    return tf.raw_ops.DatasetToSingleElement(dataset=slow, output_types=[tf.int32], output_shapes=[[]])[0]


class Condition:
    """A condition variable on a parameter server: graphs wait there, at no cost, until somebody has changed something.

    It works like `threading.Condition`, under the critical section that guards what is waited for. An attempt that comes
    to nothing is counted before the section is left. Then the graph asks a queue for an element, which blocks a callback
    and no thread. `notify_all` puts in an element for each that was counted, so no change is missed between an attempt
    and the wait. An element is no state: whoever gets one tries again.

    There are two queues in turns. Who is counted after a notification takes from the other one, and not the element of
    somebody who was counted before it and is slower.

    TensorFlow 2.21 does not cancel what the graph of a dead worker waits for on a parameter server: the graph stays, gets
    its element like every other one, and takes nobody else's.

    Attributes:
      waiting: int32 [], the graphs that wait and were not notified since.
    """

    def __init__(self, device: str, section: tf.CriticalSection):
        self._section = section
        with tf.device(device):
            self._queues = [tf.queue.FIFOQueue(_UNBOUNDED, tf.bool, []) for _ in range(2)]
            self._turn = tf.Variable(0)
            self.waiting = tf.Variable(0)

    def wait_while(
        self, value: int, attempt: Callable[[], tf.Tensor], needed: Sequence = (), dtype: tf.DType = tf.int32
    ) -> tf.Tensor:
        """Make the attempt, `dtype` [], in the critical section, and again after each notification while it comes to `value`.

        `needed` is what the attempt takes from outside: the section is entered when all of it has arrived.

        Nothing bounds it here: somebody has to call `notify_all` now and then, as the chief does with each look.
        """

        def counted() -> tuple[tf.Tensor, tf.Tensor]:
            outcome = attempt()
            return outcome, tf.cond(tf.equal(outcome, value), self._count, lambda: tf.constant(_NOWHERE))

        def body(outcome: tf.Tensor, turn: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
            with tf.control_dependencies([self._taken(turn)]):
                return self._section.execute(counted)

        # Else the section in the body would be entered before what the body captures is there, and be held until it comes.
        start = after(needed, tf.constant(value, dtype)), tf.constant(_NOWHERE)
        return tf.while_loop(lambda outcome, _: tf.equal(outcome, value), body, start, parallel_iterations=1)[0]

    def _taken(self, turn: tf.Tensor) -> tf.Tensor:
        """An element of the queue of that number; what is there at once for the first attempt, which is in no queue."""

        def take() -> tf.Tensor:
            return tf.cond(tf.equal(turn, 0), self._queues[0].dequeue, self._queues[1].dequeue)

        return tf.cond(tf.equal(turn, _NOWHERE), lambda: tf.constant(False), take)

    def _count(self) -> tf.Tensor:
        """int32 []: the number of the queue from which the one who was counted takes its element."""
        return after([self.waiting.assign_add(1, read_value=False)], self._turn.read_value())

    def notify_all(self) -> tf.Tensor:
        """In the critical section: let all try again who wait. Returns what the section's result has to depend on."""
        waiting = self.waiting.read_value()
        return tf.cond(waiting > 0, lambda: self._wake(waiting), lambda: tf.constant(0))

    def _wake(self, waiting: tf.Tensor) -> tf.Tensor:
        turn = self._turn.read_value()
        put = tf.cond(tf.equal(turn, 0), *(lambda queue=queue: _fill(queue, waiting) for queue in self._queues))
        with tf.control_dependencies([put]):
            return after([self._turn.assign(1 - turn, read_value=False)], self.waiting.assign(0))


def _fill(queue: tf.queue.FIFOQueue, count: tf.Tensor) -> tf.Tensor:
    """Fill the queue up to `count` elements. What is in it was for a graph that ended before it took its element."""
    missing = tf.maximum(count - queue.size(), 0)
    return after([queue.enqueue_many(tf.zeros([missing], tf.bool))], count)
