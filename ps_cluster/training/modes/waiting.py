"""Let workers wait for each other on a shard. Modes bounded, sync-ps and sync-diloco build on this module.

The shard's critical section decides which worker may continue, so these modes work with only one parameter server. A
worker waits in the part of its graph that runs on the parameter server:

1. The graph enters the critical section, where it tries to begin a step or to apply a push.
2. If the worker has to wait, the section counts it. Then the worker's graph dequeues an element from a queue, which
   blocks no thread.
3. Another push or the chief's tick calls `notify_all`, which enqueues an element for each counted worker. Each of these
   workers tries again.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from ps_cluster.config import RunConfig
from ps_cluster.config.lazy import tf
from ps_cluster.server.capabilities import Capabilities
from ps_cluster.server.initial_state import InitialState
from ps_cluster.server.leftovers import QUEUE, queue_named
from ps_cluster.server.ordering import Needed, after
from ps_cluster.server.shard import ParameterShard


class WaitingShard(ParameterShard):
    """A shard on which workers wait until another worker, or the passing of time, has changed its state."""

    capabilities = Capabilities(waits=True)

    def __init__(self, device: str, start: InitialState, config: RunConfig, total_steps: int):
        super().__init__(device, start, config, total_steps)
        self.changed = GraphCondition(device, self.section, partial(start.name, QUEUE))

    def sent_to_server(self, *numbers: tf.Tensor) -> list[tf.Tensor]:
        """Copy `numbers` (int64 [] each) to the ps, because otherwise every retry of a wait would fetch them again."""
        vector = tf.stack(numbers)
        with tf.device(self.device):
            arrived: list[tf.Tensor] = tf.unstack(tf.identity(vector))
            return arrived

    def wake(self) -> tf.Tensor:
        return self.changed.notify_all()


_NOWHERE = -1  # stands for a queue's number if a graph is in no queue


class GraphCondition:
    """A condition variable on a parameter server. A graph waits on it until another graph calls `notify_all`.

    The condition works like `threading.Condition`, with a critical section as the lock. A graph attempts, in the section,
    to do what it waits for. If the graph has to wait, it is counted before it leaves the section. Then it dequeues an
    element from a queue. While the queue is empty, the graph waits without blocking a thread. `notify_all` enqueues one
    element for each counted graph, so no change between an attempt and the wait is missed. An element carries no state:
    the graph that gets it tries again.

    Two queues are used in turn. A graph that is counted after a notification dequeues from the other queue, so it can't
    take the element of a slower graph that was counted before.

    TensorFlow 2.21 does not cancel the part of a dead worker's graph that waits on a parameter server. That part stays,
    but a separate element is enqueued for it, so it does not take the element of another graph. Each leader has
    separate queues, and the next leader closes the queues of an earlier leader (server/leftovers.py).

    Attributes:
      waiting: int32 [], the number of graphs that wait and were not yet notified.
    """

    def __init__(self, device: str, section: tf.CriticalSection, name: Callable[[str], str]):
        """Create the queues. `name`: turns "changed-0" and "changed-1" into names that no other leader uses."""
        self._section = section
        with tf.device(device):
            self._queues = [queue_named(name(f"changed-{number}")) for number in range(2)]
            self._turn = tf.Variable(0)
            self.waiting = tf.Variable(0)

    def wait_while(
        self, value: int, attempt: Callable[[], tf.Tensor], needed: Needed = (), dtype: str = "int32"
    ) -> tf.Tensor:
        """Run `attempt` in the critical section, and again after each notification while it returns `value`.

        There is no timeout, so `notify_all` must be called regularly. The chief's periodic tick does this.

        Args:
          value: the result that means "wait".
          attempt: returns a tensor of `dtype`, [].
          needed: the tensors from outside the section that the attempt uses. The graph enters the section only when all
            these tensors have arrived.
        """

        def counted() -> tuple[tf.Tensor, tf.Tensor]:
            outcome = attempt()
            return outcome, tf.cond(tf.equal(outcome, value), self._count, lambda: tf.constant(_NOWHERE))

        def body(outcome: tf.Tensor, turn: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
            with tf.control_dependencies([self._taken(turn)]):
                again: tuple[tf.Tensor, tf.Tensor] = self._section.execute(counted)
                return again

        # Without `needed`, the graph could enter the section before the body's captured inputs arrive, and hold the
        # lock.
        start = after(needed, tf.constant(value, dtype)), tf.constant(_NOWHERE)
        return tf.while_loop(lambda outcome, _: tf.equal(outcome, value), body, start, parallel_iterations=1)[0]

    def _taken(self, turn: tf.Tensor) -> tf.Tensor:
        """Take an element of queue number `turn`. Take none before the first attempt, when `turn` is _NOWHERE."""

        def take() -> tf.Tensor:
            return tf.cond(tf.equal(turn, 0), self._queues[0].dequeue, self._queues[1].dequeue)

        return tf.cond(tf.equal(turn, _NOWHERE), lambda: tf.constant(False), take)

    def _count(self) -> tf.Tensor:
        """Count a waiting graph; return the number of the queue from which it takes its element, int32 []."""
        return after([self.waiting.assign_add(1, read_value=False)], self._turn.read_value())

    def notify_all(self) -> tf.Tensor:
        """Let all waiting graphs try again.

        Call this inside the critical section, and make the section's result depend on the returned tensor.
        """
        waiting = self.waiting.read_value()
        return tf.cond(waiting > 0, lambda: self._wake(waiting), lambda: tf.constant(0))

    def _wake(self, waiting: tf.Tensor) -> tf.Tensor:
        turn = self._turn.read_value()
        # Elements that are still in the queue do not count, because slow graphs may yet take them. If such a graph has
        # ended, its element wakes another graph too early, which only costs an attempt.
        elements = tf.zeros([waiting], tf.bool)
        notified = tf.cond(
            tf.equal(turn, 0),
            *(lambda queue=queue: after([queue.enqueue_many(elements)], waiting) for queue in self._queues),
        )
        with tf.control_dependencies([notified]):
            return after([self._turn.assign(1 - turn, read_value=False)], self.waiting.assign(0))


def put(variable: tf.Variable, index: tf.Tensor, value: tf.Tensor) -> tf.Variable:
    """Write `value` into a variable at one index of its first axis."""
    return variable.scatter_update(tf.IndexedSlices(value[None], index[None]))
