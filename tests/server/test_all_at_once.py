"""What goes to several shards goes to all of them at once: here each waits until another one is reached too."""

import threading

import pytest
import tensorflow as tf

from ps_cluster.config.lazy import graph
from ps_cluster.server.shard import NO_END, ParameterShard
from ps_cluster.server.store import StepPush
from ps_cluster.system.limits import allowance
from tests.helpers.stores import make_store, pull, row

pytestmark = pytest.mark.skipif(
    allowance().processors < 2,
    reason="without a second core, TensorFlow has one thread, so the Python functions of two slices never run together",
)

BOTH = threading.Barrier(2)
MEETINGS = []  # each arrival at the barrier that ended with the other slice there too


def meet(*_):
    MEETINGS.append(BOTH.wait(10))
    return MEETINGS[-1]


def met(*inputs):
    return tf.numpy_function(meet, inputs, tf.int64)


class MeetingShard(ParameterShard):
    def values_for(self, worker):
        with tf.control_dependencies([met()]):
            return super().values_for(worker)

    def refuse_or_apply(self, push):
        with tf.control_dependencies([met()]):
            return super().refuse_or_apply(push)

    def counts(self):
        with tf.control_dependencies([met()]):
            return super().counts()

    @graph
    def tick(self, tick):
        return met(tick.seconds, tick.handed_out)


@pytest.fixture(scope="module")
def store():
    return make_store(2, kind=MeetingShard)


def push_a_step(store):
    def step():
        pulled = pull(store)
        return store.push(StepPush(tf.constant(0, tf.int64), pulled.versions, pulled.weights, pulled.statistics, row()))

    tf.function(step, autograph=False)()


def exchange_a_step(store):
    def step():
        pulled, step = pull(store), tf.constant(1, tf.int64)
        return store.exchange(StepPush(step, pulled.versions, pulled.weights, pulled.statistics, row()), step + 1)

    tf.function(step, autograph=False)()


@pytest.mark.parametrize(
    "reach",
    [
        push_a_step,
        exchange_a_step,
        lambda store: store.tick(1.0, handed_out=NO_END),
        lambda store: store.read_ledgers([0, 0]),
        lambda store: store.snapshot([0, 0], closed=0),
    ],
    ids=["pull and push", "exchange", "tick", "read ledgers", "snapshot"],
)
def test_all_slices_are_reached_at_once(store, reach):
    MEETINGS.clear()
    reach(store)
    assert MEETINGS and MEETINGS.count(0) == MEETINGS.count(1), "each slice has met the other one"
