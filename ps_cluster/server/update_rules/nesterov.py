"""Optimizer rule nesterov: SGD with Nesterov's momentum."""

from __future__ import annotations

from ps_cluster.config.equations import Slots, UpdateParts
from ps_cluster.server.update_rules.momentum import MomentumSettings, MomentumUpdate, WithMomentum


class NesterovUpdate(MomentumUpdate):
    """Nesterov's momentum: v = momentum * v - learning_rate * g; w += momentum * v - learning_rate * g."""

    looks_ahead = True


class Nesterov(WithMomentum):
    name = "nesterov"
    update = NesterovUpdate

    def equation(self, settings: MomentumSettings, parts: UpdateParts) -> Slots:
        """Return v and w + momentum * v - learning_rate * g, where v = momentum * v - learning_rate * g."""
        step = parts.learning_rate * parts.factors * parts.scaled_gradient
        velocity = super().equation(settings, parts)["momentum"]
        return {"momentum": velocity, "weights": parts.decayed_weights + settings.momentum * velocity - step}
