"""Optimizer rule sgd."""

from __future__ import annotations

from ps_cluster.catalogue.lazily import tf
from ps_cluster.catalogue.rules import OptimizerRule
from ps_cluster.training.update_rules import LinearUpdate


class SgdUpdate(LinearUpdate):
    """w -= learning rate x g."""

    def _step(self, gradient, learning_rate):
        return tf.raw_ops.ResourceApplyGradientDescent(
            var=self._weights.handle, alpha=learning_rate, delta=gradient, use_locking=True
        )


class Sgd(OptimizerRule):
    name = "sgd"
    update = SgdUpdate


SGD = Sgd()
