"""Graphs that wait for a change, as threads of this process."""

import threading
from contextlib import contextmanager

import pytest
import tensorflow as tf

from ps_cluster.server.leftovers import new_leader_prefix, queue_named
from ps_cluster.training.modes.waiting import GraphCondition
from tests.helpers.processes import wait_until

pytestmark = pytest.mark.slow

WAIT = -1


class Gate:
    """A number that graphs wait for."""

    def __init__(self):
        self._section = tf.CriticalSection(shared_name=f"gate-{id(self)}")
        prefix = new_leader_prefix()
        self.queues = [queue_named(f"{prefix}/changed-{number}") for number in range(2)]
        self.condition = GraphCondition("/device:CPU:0", self._section, lambda queue: f"{prefix}/{queue}")
        self._number = tf.Variable(0)
        self.attempts = tf.Variable(0)
        self.opened = []
        # Traced here, or the first of the threads traces alone.
        self.wait_for.get_concrete_function(tf.constant(0))

    @tf.function(autograph=False)
    def wait_for(self, number):
        def attempt():
            with tf.control_dependencies([self.attempts.assign_add(1, read_value=False)]):
                now = self._number.read_value()
            return tf.where(now >= number, now, WAIT)

        return self.condition.wait_while(WAIT, attempt)

    @tf.function(autograph=False)
    def open(self, number, tell=True):
        def change():
            with tf.control_dependencies([self._number.assign(number, read_value=False)]):
                return self.condition.notify_all() if tell else tf.constant(0)

        return self._section.execute(change)

    def waiter(self, number):
        def wait():
            self.opened.append((number, int(self.wait_for(tf.constant(number)))))

        thread = threading.Thread(target=wait, daemon=True)
        thread.start()
        return thread

    def wait_until_waiting(self, count):
        wait_until(lambda: self.condition.waiting.numpy() == count)


@contextmanager
def waiters(gate, *numbers):
    """A thread for each number, all of which wait."""
    threads = [gate.waiter(number) for number in numbers]
    gate.wait_until_waiting(len(numbers))
    yield
    for thread in threads:
        thread.join(20)
    assert not any(thread.is_alive() for thread in threads), "one waits for ever"


def test_who_waits_makes_no_attempt_until_something_changes():
    gate = Gate()
    with waiters(gate, 1):
        for _ in range(25):  # half a second, in which looking every 2 ms would make 250
            gate.condition.waiting.numpy()
            threading.Event().wait(0.02)
        assert gate.attempts.numpy() == 1
        gate.open(tf.constant(1))
    assert gate.attempts.numpy() == 2 and gate.opened == [(1, 1)]


def test_a_notification_wakes_all_and_those_who_must_wait_on_do():
    gate = Gate()
    with waiters(gate, 1, 1, 2):
        gate.open(tf.constant(1))
        gate.wait_until_waiting(1)
        wait_until(lambda: len(gate.opened) == 2)
        gate.open(tf.constant(2))
    assert sorted(gate.opened) == [(1, 1), (1, 1), (2, 2)] and gate.attempts.numpy() == 3 + 3 + 1


def test_a_change_that_nobody_was_told_of_is_seen_at_the_next_notification():
    gate = Gate()
    with waiters(gate, 1):
        gate.open(tf.constant(1), tell=False)
        assert gate.condition.waiting.numpy() == 1
        gate.open(tf.constant(1))


def test_the_graph_of_a_dead_worker_takes_the_place_of_nobody():
    """It waits on, as TensorFlow leaves it, beside the graph of the process that came after it."""
    gate = Gate()
    left = gate.waiter(5)  # nobody hears what comes of it
    gate.wait_until_waiting(1)
    for number in range(1, 5):
        successor = gate.waiter(number)
        gate.wait_until_waiting(2)
        gate.open(tf.constant(number))
        successor.join(20)
        assert not successor.is_alive()
        gate.wait_until_waiting(1)
    gate.open(tf.constant(5))
    left.join(20)
    assert not left.is_alive()


def test_a_slow_graph_leaves_the_graphs_that_are_notified_after_it_their_elements():
    gate = Gate()
    for _ in range(3):
        gate.condition.waiting.assign_add(1)  # as a graph does that is counted and takes its element much later
        gate.open(tf.constant(1))
    assert [int(queue.size()) for queue in gate.queues] == [2, 1]


def test_many_changes_in_a_row_leave_nobody_behind():
    waiting = 8
    gate = Gate()
    changes = 100

    def follow():
        for number in range(1, changes + 1):
            gate.wait_for(tf.constant(number))

    threads = [threading.Thread(target=follow, daemon=True) for _ in range(waiting)]
    for thread in threads:
        thread.start()
    for number in range(1, changes + 1):
        gate.open(tf.constant(number))
    for thread in threads:
        thread.join(60)
    assert not any(thread.is_alive() for thread in threads)
