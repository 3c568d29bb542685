"""Make workers slower by waiting after the computation, so that two cores can emulate a cluster with slow machines."""

from __future__ import annotations

from ps_cluster.config.lazy import tf
from ps_cluster.config.stragglers import TASK_VARIATION, Stragglers, machine_means


class SlowDown:
    """Computes how much longer a slow worker's step takes, and waits that long."""

    def __init__(self, stragglers: Stragglers, workers: int, seed: int, parts: int = 1):
        """Compute the factor and the extra seconds of each worker.

        Args:
          parts: the number of waits in each step. Each wait takes an equal part of the step's extra seconds.
        """
        self._stragglers = stragglers
        self._seed = seed
        named = {slow.worker: slow for slow in stragglers.slow}
        self._factors = [named[w].factor if w in named else 1.0 for w in range(workers)]
        self._extras = [named[w].extra_s / parts if w in named else 0.0 for w in range(workers)]
        self._means = machine_means(workers, seed)

    def seconds(self, worker: tf.Tensor, step: tf.Tensor, own_seconds: tf.Tensor) -> tf.Tensor:
        """Return the seconds, float64 [], that a worker waits after a computation that took `own_seconds` (float64 [])."""
        if self._stragglers.gamma:
            shape = TASK_VARIATION**-2
            seed = tf.stack([tf.constant(self._seed, tf.int64), step])
            draw = tf.random.stateless_gamma([], seed, shape, shape, tf.float64)
            return tf.maximum(tf.gather(tf.constant(self._means), worker) * draw - 1, 0.0) * own_seconds
        factor = tf.gather(tf.constant(self._factors, tf.float64), worker)
        return (factor - 1) * own_seconds + tf.gather(tf.constant(self._extras, tf.float64), worker)

    def wait(self, worker: tf.Tensor, step: tf.Tensor, own_seconds: tf.Tensor) -> list[tf.Tensor]:
        """Return a list with the operation that waits, on which the push must depend; it is empty if no worker is slow."""
        if not self._stragglers:
            return []
        seconds = self.seconds(worker, step, own_seconds)
        return [tf.cond(seconds > 0, lambda: sleep(seconds), lambda: 0)]


def sleep(seconds: tf.Tensor) -> tf.Tensor:
    """Wait `seconds` (float64 []) without using a processor. Returns a tensor to depend on."""
    # TensorFlow has no operation that sleeps, but it has a dataset that does. Taking its only element calls the dataset twice
    # (for the element and for the end), and it sleeps both times.
    microseconds = tf.cast(tf.maximum(seconds, 0.0) * 1e6 / 2, tf.int64)
    element = tf.raw_ops.TensorDataset(components=[tf.constant(0)], output_shapes=[[]])
    slow = tf.raw_ops.SleepDataset(
        input_dataset=element, sleep_microseconds=microseconds, output_types=[tf.int32], output_shapes=[[]]
    )
    return tf.raw_ops.DatasetToSingleElement(dataset=slow, output_types=[tf.int32], output_shapes=[[]])[0]
