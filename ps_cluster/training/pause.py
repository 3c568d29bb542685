"""Places in a step where a test can hold a worker, to kill it just there. Does nothing unless the environment says so."""

from __future__ import annotations

import os

import tensorflow as tf

# "<point>:<step id>,…@<folder>", read by the chief when it builds the workers' graph. Points: before_pull, computed, applied.
VARIABLE = "PS_CLUSTER_TEST_PAUSE"


class Pause:
    """The first worker that comes to a given point of a given step leaves a file there and goes no further."""

    def __init__(self, setting: str | None):
        places, _, self._folder = (setting or "").partition("@")
        self._steps = {
            point: int(step) for point, _, step in (place.partition(":") for place in places.split(",") if place)
        }

    @classmethod
    def from_environment(cls) -> Pause:
        return cls(os.environ.get(VARIABLE))

    def __call__(self, point: str, step: tf.Tensor, identity: tf.Tensor) -> list[tf.Operation]:
        """What has to come before the rest of the step. The file `folder/point` holds the worker's index and pid."""
        if point not in self._steps:
            return []
        marker = os.path.join(self._folder, point)

        def missing(path: str, now: tf.Tensor) -> tf.Tensor:
            # To TensorFlow a look at the disk is a constant when the path is one: it would look once for all steps.
            changing = tf.strings.join([path, tf.strings.substr(tf.strings.as_string(now), 0, 0)])
            return tf.equal(tf.size(tf.io.matching_files(changing)), 0)

        def hold() -> tf.Tensor:
            content = tf.strings.reduce_join(tf.strings.as_string(identity), separator=" ")
            with tf.control_dependencies([tf.io.write_file(marker, content)]):
                return tf.while_loop(lambda count: missing(f"{marker}.go_on", count), lambda count: count + 1, [0])[0]

        return [tf.cond(tf.equal(step, self._steps[point]) & missing(marker, step), hold, lambda: 0).op]
