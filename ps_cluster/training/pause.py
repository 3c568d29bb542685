"""Points in a step where a test can hold a worker, to kill it there. Active only if the environment variable is set."""

from __future__ import annotations

import os

from ps_cluster.catalogue.lazily import tf
from ps_cluster.training.waiting import after, sleep

# "<point>:<step id>,…@<folder>", read by the chief when it builds the workers' graph. Points: before_pull, computed,
# applied.
VARIABLE = "PS_CLUSTER_TEST_PAUSE"
_LOOK_EVERY_S = 0.02


class Pause:
    """Holds the first worker that comes to a given point of a given step, which writes a file and waits."""

    def __init__(self, setting: str | None):
        places, _, self._folder = (setting or "").partition("@")
        self._steps = {
            point: int(step) for point, _, step in (place.partition(":") for place in places.split(",") if place)
        }

    @classmethod
    def from_environment(cls) -> Pause:
        return cls(os.environ.get(VARIABLE))

    def __call__(self, point: str, step: tf.Tensor, identity: tf.Tensor) -> list[tf.Operation]:
        """Return operations to run before the rest of the step. `folder/point` gets the worker's index and pid."""
        if point not in self._steps:
            return []
        marker = os.path.join(self._folder, point)

        def missing(path: str, now: tf.Tensor) -> tf.Tensor:
            # With a constant path TensorFlow would fold the look at the disk into a constant: one look for all steps.
            changing = tf.strings.join([path, tf.strings.substr(tf.strings.as_string(now), 0, 0)])
            return tf.equal(tf.size(tf.io.matching_files(changing)), 0)

        def wait(count: tf.Tensor) -> tf.Tensor:
            with tf.control_dependencies([count]):
                return after([sleep(tf.constant(_LOOK_EVERY_S, tf.float64))], count + 1)

        def hold() -> tf.Tensor:
            content = tf.strings.reduce_join(tf.strings.as_string(identity), separator=" ")
            with tf.control_dependencies([tf.io.write_file(marker, content)]):
                return tf.while_loop(lambda count: missing(f"{marker}.go_on", count), wait, [0])[0]

        return [tf.cond(tf.equal(step, self._steps[point]) & missing(marker, step), hold, lambda: 0).op]
