"""Run workers as threads of this process, which wait for each other in the graphs of a parameter store."""

import threading

import tensorflow as tf

from ps_cluster.runs.ledger import WORKER_COLUMNS
from ps_cluster.server.ordering import after
from ps_cluster.server.shard import DROPPED
from ps_cluster.server.store import StepPush
from ps_cluster.training.slow_down import sleep
from tests.helpers.stores import row


def run_workers(work, workers=3):
    together = threading.Barrier(workers)

    def start(worker):
        together.wait(60)
        work(worker)

    threads = [threading.Thread(target=start, args=(worker,), daemon=True) for worker in range(workers)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not any(thread.is_alive() for thread in threads), "a worker waits for ever"


def identity(number):
    return tf.constant(number, tf.int64)


def admit(store, worker, left=2):
    """Wait until the worker may begin a step. `left`: how many steps of its dispatch have not ended yet."""
    store.shards[0].admit(identity(worker), identity(left))


def bounded_step(store, seconds):
    """Return a step with the gradient of |w|^2 / 2 that takes `seconds(worker)` seconds.

    Every step is the first of a dispatch of two steps.
    """
    first = store.shards[0]

    @tf.function(autograph=False)
    def run(step, info, wait):
        worker = tf.cast(info[WORKER_COLUMNS.index("worker")], tf.int64)
        pulled = store.pull(worker, [first.admit(worker, identity(2))])
        with tf.control_dependencies([pulled.weights]):
            slept = sleep(wait)
        gradient = after([slept], pulled.weights)
        return store.push(StepPush(step, pulled.versions, gradient, pulled.statistics, info))[0]

    # Trace now. Otherwise the first worker would trace while the others wait.
    run.get_concrete_function(identity(0), row(worker=0), tf.constant(0.0, tf.float64))

    def until_taken(step, worker):
        while run(identity(step), row(worker=worker), tf.constant(seconds(worker), tf.float64)) == DROPPED:
            pass

    return until_taken
