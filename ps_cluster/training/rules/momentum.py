"""Optimizer rule momentum."""

from __future__ import annotations

from pydantic import Field

from ps_cluster.catalogue.lazily import tf
from ps_cluster.catalogue.rules import OptimizerRule, RuleSettings
from ps_cluster.catalogue.settings import Momentum
from ps_cluster.training.update_rules import LinearUpdate


class MomentumSettings(RuleSettings):
    momentum: Momentum = Field(default=0.9, description="Asynchrony adds momentum of its own.")


class MomentumUpdate(LinearUpdate):
    """v = momentum x v - learning rate x g; w += v."""

    slot_names = ("momentum",)
    looks_ahead = False

    def _step(self, gradient, learning_rate):
        return tf.raw_ops.ResourceApplyKerasMomentum(
            var=self._weights.handle,
            accum=self.slots["momentum"].handle,
            lr=learning_rate,
            grad=gradient,
            momentum=self._settings.momentum,
            use_nesterov=self.looks_ahead,
            use_locking=True,
        )


class WithMomentum(OptimizerRule):
    name = "momentum"
    Settings = MomentumSettings
    update = MomentumUpdate


MOMENTUM = WithMomentum()
