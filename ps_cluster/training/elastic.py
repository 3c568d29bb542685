"""Elastic averaging: each worker has weights of its own, and now and then they and the centre move towards each other.

Zhang, Choromanska, LeCun 2015, "Deep learning with elastic averaging SGD" (arXiv:1412.6651), algorithm 1 (asynchronous
EASGD). The workers' own weights are kept on the parameter server, so that a worker that dies loses nothing.
"""

from __future__ import annotations

import numpy as np
import tensorflow as tf

from ps_cluster.config import RunConfig
from ps_cluster.training.slice import APPLIED, Push, Slice
from ps_cluster.training.step import StepResult, TrainStep
from ps_cluster.training.update_rules import decay_rates
from ps_cluster.training.waiting import after


class ElasticSlice(Slice):
    """Holds the centre (the weights that are scored) and every worker's own weights.

    A push brings how far the worker has moved in its local steps. The exchange, with moving rate a:
    x_w ← x_w - a (x_w - centre); centre ← centre + a (x_w - centre), both with the x_w and centre of before.
    """

    def __init__(self, device, weights, statistics, factors, config: RunConfig, total_steps: int):
        super().__init__(device, weights, statistics, factors, config, total_steps)
        self._moving_rate = config.elastic.moving_rate
        with tf.device(device):
            self._own = tf.Variable(tf.tile(self._weights[None], [config.training_workers, 1]))

    @property
    def _slots(self) -> dict[str, tf.Variable]:
        return super()._slots | {"own": self._own}

    def _given_to(self, worker: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        return self._own.sparse_read(worker), self._version.read_value()

    def _apply(self, push: Push) -> tf.Tensor:
        stale = self._version.read_value() - push.version
        own = self._own.sparse_read(push.worker) + push.gradient
        pull = self._moving_rate * (own - self._weights.read_value())
        moved = [
            self._own.scatter_update(tf.IndexedSlices((own - pull)[None], push.worker[None])),
            self._weights.assign_add(pull, read_value=False),
            self._statistics.assign_add(push.delta, read_value=False),
        ]
        with tf.control_dependencies(moved):
            counted = self._rule.count()
        with tf.control_dependencies([counted]):
            version = self._version.assign_add(1)
        return after([self._record(push, version, stale)], APPLIED)


class LocalSteps:
    """`local_steps` steps of plain SGD that a worker takes by itself. A step id is one exchange."""

    def __init__(self, step: TrainStep, config: RunConfig, factors: np.ndarray):
        """`factors`: float32 [n], the learning-rate factor of each weight."""
        self._step = step
        self._decay = tf.constant(decay_rates(config.optimizer, factors))
        self._factors = 1.0 if np.all(factors == 1) else tf.constant(factors)
        self._local_steps = config.elastic.local_steps

    def __call__(self, step: tf.Tensor, weights: tf.Tensor, statistics: tf.Tensor) -> StepResult:
        """Like `TrainStep`, with the way moved in place of the gradient; loss and rate are means, correct is the sum."""

        def body(position, moved, delta, totals):
            # The worker adds up its way in float32: a step of SGD is lost in the rounding of bfloat16 weights.
            here = tf.cast(tf.cast(weights, tf.float32) + moved, weights.dtype)
            local = step * self._local_steps + tf.cast(position, tf.int64)
            result = self._step(local, here, statistics + delta)
            gradient = self._factors * tf.cast(result.gradient, tf.float32)
            moved -= result.learning_rate * (gradient + self._decay * tf.cast(here, tf.float32))
            added = tf.stack([result.loss, result.correct, result.learning_rate])
            return position + 1, moved, delta + result.statistics_delta, totals + added

        start = (0, tf.zeros_like(weights, tf.float32), tf.zeros_like(statistics), tf.zeros([3]))
        _, moved, delta, totals = tf.while_loop(
            lambda position, *_: position < self._local_steps, body, start, parallel_iterations=1
        )
        mean = totals / self._local_steps
        return StepResult(tf.cast(moved, weights.dtype), delta, mean[0], totals[1], mean[2])
