"""The outer step of modes diloco and sync-diloco: Nesterov's momentum for the change of the weights in a period.

The synchronous form is by Douillard et al. 2023, "DiLoCo: Distributed Low-Communication Training of Language Models"
(arXiv:2311.08105), algorithm 1; the asynchronous form is by Liu et al. 2024, "Asynchronous Local-SGD Training for
Language Modeling" (arXiv:2401.09135), algorithm 3. From the pulled weights θ, a worker takes H steps of the run's
optimizer (the inner optimizer) to θ_w, and pushes the outer gradient g = θ - θ_w. The server applies Nesterov's
momentum to g. A push belongs to a step id with H batches, and is applied exactly once.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from pydantic import Field

from ps_cluster.config import RunConfig
from ps_cluster.config.equations import Slots, UpdateParts
from ps_cluster.config.lazy import tf
from ps_cluster.config.optimizer_rules import RuleSettings
from ps_cluster.config.setting_types import Momentum
from ps_cluster.server.initial_state import InitialState
from ps_cluster.server.update_rules.rule import Gradient, Step, UpdateRule
from ps_cluster.training.modes.local_steps import LocalMode, LocalSettings, LocalTraining
from ps_cluster.training.step import Compute, TrainStep

if TYPE_CHECKING:
    from ps_cluster.training.recomputed_steps import RecomputedSteps


class OuterSettings(LocalSettings):
    outer_rate: float = Field(default=0.7, gt=0, le=10, description="Learning rate of the outer step.")
    outer_momentum: Momentum = Field(default=0.9, description="Nesterov momentum of the outer step.")


class DelayedNesterov(UpdateRule[RuleSettings]):
    """The rule "delayed Nesterov" (Liu et al. 2024, algorithm 3).

    θ are the weights, and g is the outer gradient that a worker pushes. N is `every`, c is `spread`, ε is the outer
    rate, and β is the outer momentum. m and Δ are the slots.

      Δ ← Δ + g
      every N-th push:  m ← βm + Δ/N;  θ ← θ - ε [(1 - cN + c) βm + g/N];  Δ ← 0
      else:             θ ← θ - ε [cβm + g/N]

    With c = 0 this is the rule of a public implementation (`DelayedNesterovOptimizer` in
    github.com/jdinalt/forgather). With N = 1 it is Nesterov's momentum as in PyTorch, the usual outer step:
    m ← βm + g; θ ← θ - ε [βm + g].
    """

    slot_names = ("momentum", "delta")

    def __init__(self, config: RunConfig, settings: OuterSettings, weights: tf.Variable, *, every: int, spread: float):
        """Create the slots. `every` and `spread` are N and c in the docstring of the class."""
        # The inner steps have already applied the weight decay and the learning-rate factors.
        without_decay = config.optimizer.model_copy(update={"weight_decay": 0.0})
        super().__init__(without_decay, weights, np.ones(weights.shape, np.float32))
        self._rate, self._momentum = settings.outer_rate, settings.outer_momentum
        self._every, self._spread = every, spread

    def used_rate(self, learning_rate: tf.Tensor) -> tf.Tensor:
        """Return the outer rate. `learning_rate` is not used, because it is the rate of the worker's inner steps."""
        return tf.constant(self._rate)

    def step(self, gradient: Gradient) -> Step:
        momentum, delta = (self.slots[name].read_value() for name in self.slot_names)
        delta += gradient.scaled
        every, spread = self._every, self._spread
        due = tf.equal((gradient.updates_before + 1) % every, 0)
        momentum = tf.where(due, self._momentum * momentum + delta / every, momentum)
        weight = tf.where(due, 1 - spread * every + spread, spread) * self._momentum
        step = gradient.learning_rate * (weight * momentum + gradient.scaled / every)
        return Step(step, {"momentum": momentum, "delta": tf.where(due, tf.zeros_like(delta), delta)})


class OuterMode(LocalMode):
    """A mode whose workers take local steps with the run's optimizer, and whose server applies outer steps."""

    unused_settings = frozenset({"lookahead"})

    def momentum_period_and_spread(self, config: RunConfig) -> tuple[int, float]:
        """Return N and c of `DelayedNesterov`.

        The momentum changes with every N-th push. c is the share of the momentum that each push applies.
        """
        return 1, 0.0

    def worker_step(self, step: TrainStep, config: RunConfig, start: InitialState, keep: np.ndarray) -> Compute:
        return LocalTraining(step, config, start, keep)

    def server_rule(self, config: RunConfig, weights: tf.Variable, start: InitialState) -> UpdateRule[Any]:
        every, spread = self.momentum_period_and_spread(config)
        return DelayedNesterov(config, OuterSettings.of(config), weights, every=every, spread=spread)

    def recomputed_steps(self) -> type[RecomputedSteps]:
        from ps_cluster.training.recomputed_periods import RecomputedLocalPeriods

        return RecomputedLocalPeriods

    def equation(self, config: RunConfig, parts: UpdateParts) -> Slots:
        """Return the result of `DelayedNesterov`, computed with numpy.

        In a mode with rounds, the gradient is the mean of the gradients of a round.
        """
        settings, (every, spread) = OuterSettings.of(config), self.momentum_period_and_spread(config)
        beta, is_due = settings.outer_momentum, (parts.updates_before + 1) % every == 0
        gradient, momentum = parts.scaled_gradient, parts.slots["momentum"]
        delta = parts.slots["delta"] + gradient
        if is_due:
            momentum = beta * momentum + delta / every
        weight = beta * ((1 - spread * every + spread) if is_due else spread)
        step = settings.outer_rate * (weight * momentum + gradient / every)
        return {"weights": parts.weights - step, "momentum": momentum, "delta": 0 * delta if is_due else delta}

    def worker_vectors(self, config: RunConfig) -> int:
        return 1  # the worker's weights
