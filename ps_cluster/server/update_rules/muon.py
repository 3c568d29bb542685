"""Optimizer rules muon and muon_adam: momentum, with orthogonal steps for matrices."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeVar

import numpy as np
from pydantic import Field

from ps_cluster.config.equations import Matrix, Slots, UpdateParts
from ps_cluster.config.lazy import tf
from ps_cluster.config.optimizer_rules import OptimizerRule, RuleSettings
from ps_cluster.config.schema import RunConfig
from ps_cluster.config.setting_types import Factor, Momentum
from ps_cluster.config.staleness_methods import METHODS
from ps_cluster.server.staleness.correction import Correction
from ps_cluster.server.update_rules.adam import AdamSettings, bias_correction
from ps_cluster.server.update_rules.momentum import MomentumSettings
from ps_cluster.server.update_rules.row_rule import RowsByFormula
from ps_cluster.server.update_rules.rule import (
    ON_THIS_DEVICE,
    Gradient,
    RuleVariables,
    Step,
    UpdateRule,
    running_mean,
)

ORTHOGONALISING = (3.4445, -4.7750, 2.0315)  # Jordan et al. 2024


class MatrixSettings(MomentumSettings):
    """The settings that all rules with orthogonal steps have in common."""

    matrices: tuple[str, ...] = Field(
        default=("kernel",),
        strict=False,
        max_length=100,
        description="The update of a variable is made orthogonal if the variable's path contains one of these patterns "
        "(*: any characters, ?: one character). All other variables follow the rule nesterov if the rule is muon, and "
        "the rule adam if it is muon_adam.",
    )
    fixed_norm_every: int = Field(
        default=0,
        ge=0,
        le=1_000_000,
        description="Before the first update and before every n-th update after it, scale each matrix so that its norm "
        "is the square root of its number of columns; 0: never. With local steps, a worker's steps count instead of "
        "updates. Use this for matrices whose scale has no effect because a normalisation follows them.",
    )
    orthogonal_steps: int = Field(
        default=5, ge=1, le=20, description="Number of iterations that make an update orthogonal; fewer take less time."
    )

    @property
    def matrix_patterns(self) -> tuple[str, ...]:
        return self.matrices

    @property
    def factor_of_others(self) -> float:
        """The learning rate of the weights outside of matrices, divided by the learning rate of the matrices."""
        raise NotImplementedError


class MuonSettings(MatrixSettings):
    momentum: Momentum = Field(default=0.9, description="Decay of the running sum of the gradients.")
    rate_of_nesterov: Factor = Field(
        default=1.0,
        description="The learning rate of the variables that follow rule nesterov, divided by that of the matrices.",
    )

    @property
    def factor_of_others(self) -> float:
        return self.rate_of_nesterov


class MuonAdamSettings(AdamSettings, MatrixSettings):
    momentum: Momentum = Field(
        default=0.9,
        description="For matrices, the decay of the running sum of the gradients; for all other variables, beta_1 of Adam.",
    )
    rate_of_adam: Factor = Field(
        default=0.1,
        description="The learning rate of the variables that follow rule adam, divided by that of the matrices.",
    )

    @property
    def factor_of_others(self) -> float:
        return self.rate_of_adam


MuonsSettings = TypeVar("MuonsSettings", bound=MatrixSettings)


class MuonUpdate(UpdateRule[MuonsSettings]):
    """Muon: Nesterov's momentum, with an orthogonal step for each matrix.

      v = momentum * v + g;  u = g + momentum * v
      a matrix of m rows and n columns:  W -= learning_rate * sqrt(max(1, n / m)) * orthogonal(U)
      all other weights:                 w -= learning_rate * `rate_of_nesterov` * u

    U is the part of u that belongs to the matrix W. With `fixed_norm_every`, W is first scaled to a norm of sqrt(n), as
    in airbench94_muon (github.com/KellerJordan/cifar10-airbench).

    Muon (Jordan et al. 2024, "Muon: An optimizer for hidden layers in neural networks",
    kellerjordan.github.io/posts/muon). In that source, AdamW updates the other weights: see `MuonAdamUpdate`. The
    kernel of a convolution is a matrix with a column for each filter. The gradient scale (see `Gradient`) scales only
    the gradient in v and u, so the step of a matrix keeps its size.
    """

    slot_names: tuple[str, ...] = ("momentum",)

    def __init__(
        self,
        settings: MuonsSettings,
        weights: tf.Variable,
        factors: np.ndarray,
        variables: RuleVariables = ON_THIS_DEVICE,
        matrices: Sequence[Matrix] = (),
    ):
        trained = [matrix for matrix in matrices if factors[matrix.begin : matrix.end].any()]
        super().__init__(settings, weights, factors, variables, trained)

    def change(self, gradient: Gradient) -> tf.Operation:
        every = self.settings.fixed_norm_every
        if not every or not self.matrices:
            return super().change(gradient)
        with tf.control_dependencies([tf.cond(gradient.updates_before % every == 0, self._fix_norms, tf.no_op)]):
            return super().change(gradient)

    def step(self, gradient: Gradient) -> Step:
        others, slots = super().step(gradient)
        update = gradient.scaled + self.settings.momentum * slots["momentum"]
        parts, end = [], 0
        for matrix in self.matrices:
            parts.append(others[end : matrix.begin])
            end = matrix.end
            shaped = tf.reshape(update[matrix.begin : end], [matrix.rows, matrix.columns])
            direction = orthogonal(shaped, self.settings.orthogonal_steps)
            size = max(1.0, matrix.columns / matrix.rows) ** 0.5
            parts.append(gradient.learning_rate * tf.reshape(size * direction, [-1]))
        return Step(tf.concat([*parts, others[end:]], axis=0), slots)

    @classmethod
    def formula(cls, settings: MuonsSettings, gradient: Gradient, slots: Mapping[str, tf.Tensor]) -> Step:
        """Return the step of weights outside of matrices. The new slot "momentum" is v, also in matrices."""
        velocity = settings.momentum * slots["momentum"] + gradient.scaled
        update = gradient.scaled + settings.momentum * velocity
        return Step(gradient.learning_rate * (settings.factor_of_others * update), {"momentum": velocity})

    def _fix_norms(self) -> tf.Operation:
        """Scale each matrix to a norm of sqrt(columns)."""
        weights, parts, end = self.weights.read_value(), [], 0
        for matrix in self.matrices:
            parts.append(weights[end : matrix.begin])
            end = matrix.end
            whole = weights[matrix.begin : end]
            parts.append(tf.math.divide_no_nan(whole * matrix.columns**0.5, tf.norm(whole)))
        return self.weights.assign(tf.concat([*parts, weights[end:]], axis=0), read_value=False)


class MuonAdamUpdate(MuonUpdate[MuonAdamSettings]):
    """Muon for matrices, as in `MuonUpdate`, and Adam for all other weights, as in Muon's source (Jordan et al. 2024).

    v is the momentum buffer of `MuonUpdate`. Adam's running mean of the gradients is (1 - momentum) * v. For all other
    weights, the step is that of Adam (Kingma and Ba 2015, arXiv:1412.6980, algorithm 1), with `rate_of_adam` times the
    learning rate.
    """

    slot_names = ("momentum", "variance")

    @classmethod
    def formula(cls, settings: MuonAdamSettings, gradient: Gradient, slots: Mapping[str, tf.Tensor]) -> Step:
        velocity = settings.momentum * slots["momentum"] + gradient.scaled
        variance = running_mean(settings.beta_2, slots["variance"], gradient.values * gradient.values)
        mean = (1 - settings.momentum) * velocity
        step = bias_correction(settings, gradient.updates_before) * mean / (tf.sqrt(variance) + settings.epsilon)
        slots = {"momentum": velocity, "variance": variance}
        return Step(gradient.learning_rate * (settings.rate_of_adam * step), slots)


def orthogonal(matrix: tf.Tensor, steps: int = 5) -> tf.Tensor:
    """Return an approximation of the orthogonal matrix nearest to `matrix`, float32 [m, n].

    The singular values of the result are between 0.7 and 1.2.

    Jordan et al. 2024 start with X = matrix / its norm, and compute X <- X P `steps` times, where P = a I + b A + c A A
    and A = X^T X. Here only A <- P A P and the product of all P are computed, and X is multiplied by this product at
    the end. In exact arithmetic the result is the same. This takes 18 ms instead of 42 ms for airbench's kernels on one
    core in float32 (28 ms in bfloat16), because A is smaller than X.
    """
    a, b, c = ORTHOGONALISING
    tall = matrix.shape[0] >= matrix.shape[1]
    x = tf.math.divide_no_nan(matrix, tf.norm(matrix))
    gram = tf.matmul(x, x, transpose_a=tall, transpose_b=not tall)
    identity = tf.eye(gram.shape[0])
    product = identity
    for _ in range(steps):
        bracket = a * identity + b * gram + c * tf.matmul(gram, gram)
        product = tf.matmul(product, bracket)
        gram = tf.matmul(tf.matmul(bracket, gram), bracket)
    return tf.matmul(x, product) if tall else tf.matmul(product, x)


def orthogonal_in_numpy(matrix: np.ndarray, steps: int) -> np.ndarray:
    """Return the same as `orthogonal`, in float64 and by the iteration of Jordan et al. 2024.

    The iteration is X <- a X + (b A + c A A) X, where A = X X^T. `matrix`: float64 [m, n]; it is transposed first if
    m > n.
    """
    if matrix.shape[0] > matrix.shape[1]:
        return orthogonal_in_numpy(matrix.T, steps).T
    a, b, c = ORTHOGONALISING
    x: np.ndarray = matrix / (np.linalg.norm(matrix) or 1.0)
    for _ in range(steps):
        gram = x @ x.T
        x = a * x + (b * gram + c * gram @ gram) @ x
    return x


class Muon(OptimizerRule[MuonsSettings]):
    name = "muon"
    Settings: type[RuleSettings] = MuonSettings
    usual_rate = 0.02  # as in the source; Keras's Muon scales its steps differently
    update: type[UpdateRule[MuonsSettings]] = MuonUpdate

    def equation(self, settings: MuonsSettings, parts: UpdateParts) -> Slots:
        """Return the result of `MuonUpdate`. Orthogonal steps are computed by `orthogonal_in_numpy`, in float64."""
        velocity = settings.momentum * parts.slots["momentum"] + parts.scaled_gradient
        update = parts.scaled_gradient + settings.momentum * velocity
        others, slots = self._step_of_others(settings, parts, velocity, update)
        weights, step = parts.decayed_weights, settings.factor_of_others * others
        scales = settings.fixed_norm_every and parts.updates_before % settings.fixed_norm_every == 0
        for matrix in parts.matrices:
            place = slice(matrix.begin, matrix.end)
            if not parts.factors[place].any():
                continue
            shaped = update[place].reshape(matrix.rows, matrix.columns)
            whole = orthogonal_in_numpy(shaped, settings.orthogonal_steps)
            step[place] = max(1.0, matrix.columns / matrix.rows) ** 0.5 * whole.reshape(-1)
            if scales and (norm := np.linalg.norm(weights[place])):
                weights[place] *= matrix.columns**0.5 / norm
        weights = weights - parts.learning_rate * parts.factors * step
        return {"weights": weights, "momentum": velocity, **slots}

    def _step_of_others(
        self, settings: MuonsSettings, parts: UpdateParts, velocity: np.ndarray, update: np.ndarray
    ) -> tuple[np.ndarray, Slots]:
        """Return the step of weights outside of matrices, divided by their learning rate, and the new slots but v."""
        return update, {}

    def check(self, config: RunConfig) -> None:
        mode = config.chosen_mode
        if mode.shares_steps:
            raise ValueError(
                f"optimizer.rule: got '{self.name}': it needs whole matrices, but mode {mode.name} divides the network among "
                "the workers: choose another mode, or another rule"
            )
        settings = config.optimizer
        assert isinstance(settings, MatrixSettings)
        corrects = METHODS[config.staleness.method].correction is not Correction
        uses_method = "staleness" not in mode.unused_settings and not mode.synchrony.takes_local_steps
        if settings.fixed_norm_every and corrects and uses_method:
            raise ValueError(
                f"optimizer.fixed_norm_every: got {settings.fixed_norm_every}: staleness method "
                f"{config.staleness.method} would treat the scaling of a matrix as a step: choose 0, or "
                "staleness.method none"
            )


class MuonAdam(Muon[MuonAdamSettings]):
    name = "muon_adam"
    Settings = MuonAdamSettings
    update = MuonAdamUpdate
    row_update = RowsByFormula

    def _step_of_others(
        self, settings: MuonAdamSettings, parts: UpdateParts, velocity: np.ndarray, update: np.ndarray
    ) -> tuple[np.ndarray, Slots]:
        variance = settings.beta_2 * parts.slots["variance"] + (1 - settings.beta_2) * parts.gradient**2
        count = parts.updates_before + 1
        rate = (1 - settings.beta_2**count) ** 0.5 / (1 - settings.momentum**count)
        step = rate * (1 - settings.momentum) * velocity / (np.sqrt(variance) + settings.epsilon)
        return step, {"variance": variance}
