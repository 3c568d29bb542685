"""Mode `asynchronous`, whose workers a test can hold at a point of a step, to kill them there.

The variable HELD_STEPS says where: "<point>:<worker>:<step id>,…@<folder>". At its first step from that id on, the
worker writes its index and pid into `folder/point`, and waits until there is a file `folder/point.go_on`. The points
are `before_pull` (only in the first step of a dispatch), `computed` and `applied`.
"""

import os
from functools import partial
from pathlib import Path

from ps_cluster.config.lazy import tf
from ps_cluster.server.ordering import after
from ps_cluster.training.modes.asynchronous import Async
from ps_cluster.training.slow_down import sleep
from ps_cluster.training.step import Compute, WorkerIdentity

POLL_INTERVAL_S = 0.02


def held(points, folder):
    """Return the environment of a run that holds workers. `points`: point → (worker, first step id)."""
    return {
        "HELD_STEPS": f"{','.join(f'{point}:{worker}:{step}' for point, (worker, step) in points.items())}@{folder}"
    }


MODE = ("--mode", f"{Path(__file__).resolve()}:asynchronous")


def hold(point, step):
    """Return operations that hold the worker that runs them, if HELD_STEPS says so."""
    points, _, folder = os.environ["HELD_STEPS"].partition("@")
    places = {
        name: (int(worker), int(first)) for name, worker, first in (place.split(":") for place in points.split(","))
    }
    if point not in places:
        return []
    worker, first = places[point]
    marker = os.path.join(folder, point)

    def missing(path, now):
        # With a constant path, TensorFlow would look at the disk once and fold the result into a constant.
        changing = tf.strings.join([path, tf.strings.substr(tf.strings.as_string(now), 0, 0)])
        return tf.equal(tf.size(tf.io.matching_files(changing)), 0)

    def wait(count):
        with tf.control_dependencies([count]):
            return after([sleep(tf.constant(POLL_INTERVAL_S, tf.float64))], count + 1)

    def write_and_wait():
        content = tf.strings.reduce_join(tf.strings.as_string(WorkerIdentity.read().both()), separator=" ")
        with tf.control_dependencies([tf.io.write_file(marker, content)]):
            return tf.while_loop(lambda count: missing(f"{marker}.go_on", count), wait, [0])[0]

    is_here = (step >= first) & tf.equal(WorkerIdentity.read().worker, worker)
    return [tf.cond(is_here & missing(marker, step), write_and_wait, lambda: 0)]


class HeldStore:
    """A store whose pushes and exchanges end only when their worker is let go."""

    def __init__(self, store):
        self._store = store

    def __getattr__(self, name):
        return getattr(self._store, name)

    def push(self, push):
        pushed = self._store.push(push)
        with tf.control_dependencies([pushed]):
            return after(hold("applied", push.step), pushed)

    def exchange(self, push, *rest):
        messages = self._store.exchange(push, *rest)
        with tf.control_dependencies(tf.nest.flatten(messages)):
            held_step = hold("applied", push.step)
        return tf.nest.map_structure(partial(after, held_step), messages)


class HeldStep(Compute):
    """A step that ends only when its worker is let go."""

    def __init__(self, step):
        self._step = step

    def __call__(self, step, /, *given):
        result = self._step(step, *given)
        with tf.control_dependencies([result.gradient]):
            return result._replace(gradient=after(hold("computed", step), result.gradient))

    def rows(self, step, /):
        return self._step.rows(step)

    def settle(self, step, outcomes):
        return self._step.settle(step, outcomes)


class Held(Async):
    """Mode `async`, which holds its workers."""

    def dispatch(self, store, compute, config, *, repeats):
        run_steps = super().dispatch(HeldStore(store), HeldStep(compute), config, repeats=repeats)

        @tf.function(autograph=False, input_signature=[tf.TensorSpec([None], tf.int64), tf.TensorSpec([], tf.float64)])
        def run_when_let_go(step_ids, scheduled):
            with tf.control_dependencies(hold("before_pull", step_ids[0])):
                return run_steps(step_ids, scheduled)

        return run_when_let_go


asynchronous = Held()
