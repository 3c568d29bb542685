"""Staleness method ordered_momentum: a momentum that orders gradients by their pulls."""

from __future__ import annotations

from pydantic import Field

from ps_cluster.config.equations import ArrivedParts, CorrectedParts
from ps_cluster.config.lazy import tf
from ps_cluster.config.schema import RunConfig
from ps_cluster.config.setting_types import Momentum
from ps_cluster.config.staleness_methods import StalenessMethod, StalenessSettings
from ps_cluster.server.staleness.correction import Arrival, Corrected, Correction


class OrderedSettings(StalenessSettings):
    momentum: Momentum = Field(default=0.9, description="The momentum: beta of OrMo (arXiv:2407.19234).")


class OrderedMomentumCorrection(Correction[OrderedSettings]):
    """A momentum that orders the gradients by their pulls, not by their pushes.

    OrMo (Shi, Yang and Li 2024, "Ordered Momentum for Asynchronous SGD", arXiv:2407.19234). Gradients whose weights
    were pulled at K consecutive versions form a bucket. K is the number of workers, or of emulated workers with
    `mode.simulate_workers`. b is the number of the newest bucket, and d is b minus the number of the bucket to which
    gradient g belongs. w is the weights, u the momentum buffer, β the setting `momentum`, and η the learning rate:

      b grows:  w <- w - η β u,  u <- β u
      then:     u <- u + β^d g,  w <- w - η (1 + β + ... + β^d) g

    So once all gradients of all buckets have arrived, in any order, w has the value that momentum would compute if the
    sums of the buckets were applied one after the other. In the paper u includes the factor η, so a change of the rate
    does not affect earlier gradients in u. Here it affects them too, as with rule `adam`. The paper's text was not
    available. A test checks that the order of arrival does not matter.
    """

    def __init__(self, settings: OrderedSettings, weights: tf.Variable, workers: int, most_workers: int):
        super().__init__(settings, weights, workers, most_workers)
        self.slots = {"ordered": tf.Variable(tf.zeros_like(weights), trainable=False)}

    def correct(self, gradient: tf.Tensor, arrival: Arrival) -> Corrected:
        slot, beta = self.slots["ordered"], self._settings.momentum
        bucket = self._bucket(arrival.now)
        grows = bucket > self._bucket(arrival.now - 1)
        late = tf.cast(bucket - self._bucket(arrival.pulled), gradient.dtype)
        power = beta**late
        faded = tf.where(grows, beta, 1.0) * slot.read_value()
        moved = tf.where(grows, faded, tf.zeros_like(faded)) + (1 - beta * power) / (1 - beta) * gradient
        with tf.control_dependencies([slot.assign(faded + power * gradient, read_value=False)]):
            return tf.identity(moved), None

    def _bucket(self, version: tf.Tensor) -> tf.Tensor:
        """Return the index of the group of successive gradients to which a version belongs, int64 []."""
        return (version + self._workers - 1) // self._workers


class OrderedMomentumMethod(StalenessMethod[OrderedSettings]):
    name = "ordered_momentum"
    description = "momentum that orders gradients by their pulls, not by their pushes"
    Settings = OrderedSettings
    correction = OrderedMomentumCorrection

    def equation(self, settings: OrderedSettings, arrived: ArrivedParts) -> CorrectedParts:
        """Return both terms of the paper's update as one gradient, and the new value of the momentum buffer u."""

        def bucket(version: int) -> int:
            return -(-version // arrived.workers)

        beta, now = settings.momentum, arrived.updates_before
        grows = bucket(now) > bucket(now - 1)
        late = bucket(now) - bucket(now - arrived.staleness)
        ordered = (beta if grows else 1.0) * arrived.slots["ordered"]
        series = sum(beta**power for power in range(late + 1))
        moved = (ordered if grows else 0.0) + series * arrived.gradient
        return CorrectedParts(moved, slots={"ordered": ordered + beta**late * arrived.gradient})

    def check(self, config: RunConfig) -> None:
        if config.optimizer.rule != "sgd":
            raise ValueError(
                f"optimizer.rule: got '{config.optimizer.rule}': staleness.method ordered_momentum already adds "
                "momentum: choose sgd"
            )
