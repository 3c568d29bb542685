"""Optimizer rules: apply one gradient to the weights of a parameter server, mostly with one locked TensorFlow kernel."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np
from pydantic import Field

from ps_cluster.config import RunConfig
from ps_cluster.config.equations import Slots, UpdateParts
from ps_cluster.config.lazy import tf
from ps_cluster.config.optimizer_rules import RULES, OptimizerRule, RuleSettings
from ps_cluster.config.schema import LookaheadSettings
from ps_cluster.config.setting_types import LARGEST_FACTOR, Momentum


class MakeVariable(Protocol):
    """Makes the variables of a rule beside its weights."""

    def __call__(self, name: str, value: np.ndarray | tf.Tensor, *, changes: bool) -> Any:
        """Return a variable of this value; where it never changes, a constant serves too."""


def on_this_device(name: str, value: np.ndarray | tf.Tensor, *, changes: bool) -> tf.Variable:
    """Make a variable on the current device, which is a slice's."""
    return tf.Variable(value, trainable=False)


class Matrix(NamedTuple):
    """The place of a matrix in the vector of all weights, row by row."""

    begin: int
    rows: int
    columns: int

    @property
    def size(self) -> int:
        return self.rows * self.columns


def make_rule(
    settings: RuleSettings,
    weights: tf.Variable,
    factors: np.ndarray,
    variable: MakeVariable = on_this_device,
    matrices: Sequence[Matrix] = (),
) -> UpdateRule:
    """Return the rule that `settings` choose. The other arguments are as for `UpdateRule`."""
    return RULES[settings.rule].update(settings, weights, factors, variable, matrices)


class UpdateRule(ABC):
    """One slice's optimizer: its slots, and the operations that apply a gradient. Create it on the slice's device.

    Weight decay is decoupled (Loshchilov and Hutter 2019, arXiv:1711.05101, algorithm 2). A weight's learning-rate
    factor scales the effect of its gradient but not its decay, as in airbench (Jordan 2024, arXiv:2404.00498): biases
    there learn 64 times as fast, and would vanish if they decayed as fast. A weight of factor 0 never changes.

    Attributes:
      slot_names: names of the vectors kept beside the weights, which start at 0.
    """

    slot_names: tuple[str, ...] = ()

    def __init__(
        self,
        settings: RuleSettings,
        weights: tf.Variable,
        factors: np.ndarray,
        variable: MakeVariable = on_this_device,
        matrices: Sequence[Matrix] = (),
    ):
        """Create the slots.

        Args:
          factors: float32 [n], the learning-rate factor of each weight.
          matrices: those among the weights that `optimizer.matrices` names, in order.
        """
        self._settings: Any = settings
        self._weights = weights
        self._matrices = matrices
        self._factors = None if np.all(factors == 1) else variable("factors", factors, changes=False)
        rates = decay_rates(settings, factors)
        self._decay = variable("decay", rates, changes=False) if settings.weight_decay else None
        self.slots = {name: variable(name, tf.zeros_like(weights), changes=True) for name in self.slot_names}

    def used_rate(self, learning_rate: tf.Tensor) -> tf.Tensor:
        """Return the rate of an update, float32 [], where the push came with this learning rate."""
        return learning_rate

    def apply(
        self, gradient: tf.Tensor, learning_rate: tf.Tensor, updates_before: tf.Tensor, share: tf.Tensor | None = None
    ) -> tf.Operation:
        """Apply one gradient.

        A share scales the effect of this gradient, now and, with momentum or Adam, in later steps; earlier gradients
        keep theirs. Adam scales the gradient in its mean but not in its mean square: scaled in both, the share would
        cancel out. The update's weight decay is scaled by the share too, so that the balance of gradients and decay
        does not depend on it.

        Args:
          gradient: float32 [n].
          learning_rate: float32 [].
          updates_before: int64 [], how many were applied to this slice before (adam's bias correction).
          share: float32 [] or [n], from 0 to 1; None is 1.
        """
        done: list[tf.Operation] = []
        if self._decay is not None:
            shrink = times(share, learning_rate * self._decay * self._weights.read_value())
            done.append(self._weights.assign_sub(shrink, read_value=False))
        with tf.control_dependencies(done):
            return self._change(gradient, learning_rate, updates_before, share)

    @abstractmethod
    def _change(
        self, gradient: tf.Tensor, learning_rate: tf.Tensor, updates_before: tf.Tensor, share: tf.Tensor | None
    ) -> tf.Operation:
        """Change the weights and the slots. Arguments as for `apply`."""


class LinearUpdate(UpdateRule):
    """A rule that is linear in the gradient: scaling the gradient scales the learning rate."""

    def _change(
        self, gradient: tf.Tensor, learning_rate: tf.Tensor, updates_before: tf.Tensor, share: tf.Tensor | None
    ) -> tf.Operation:
        return self._step(times(self._factors, times(share, gradient)), learning_rate)

    @abstractmethod
    def _step(self, gradient: tf.Tensor, learning_rate: tf.Tensor) -> tf.Operation:
        """Apply the scaled gradient."""


def times(factor: tf.Tensor | None, vector: tf.Tensor) -> tf.Tensor:
    """Return their product; `vector` itself where the factor is None."""
    return vector if factor is None else factor * vector


def decay_rates(settings: RuleSettings, factors: np.ndarray) -> np.ndarray:
    """Return the share of each weight that decay removes per unit of learning rate, float32 [n]; [] if all equal."""
    if np.all(factors != 0):
        return np.array(settings.weight_decay, np.float32)
    return np.where(factors == 0, 0, settings.weight_decay).astype(np.float32)


class SgdUpdate(LinearUpdate):
    """w -= learning rate x g."""

    def _step(self, gradient: tf.Tensor, learning_rate: tf.Tensor) -> tf.Operation:
        return tf.raw_ops.ResourceApplyGradientDescent(
            var=self._weights.handle, alpha=learning_rate, delta=gradient, use_locking=True
        )


class Sgd(OptimizerRule):
    name = "sgd"
    update = SgdUpdate

    def equation(self, settings: Any, parts: UpdateParts) -> Slots:
        """Return w - learning rate x g."""
        return {"weights": parts.decayed_weights - parts.learning_rate * parts.factors * parts.shared_gradient}


# Optimizer rule momentum.


class MomentumSettings(RuleSettings):
    momentum: Momentum = Field(default=0.9, description="Asynchrony adds momentum of its own.")


class MomentumUpdate(LinearUpdate):
    """v = momentum x v - learning rate x g; w += v."""

    slot_names = ("momentum",)
    looks_ahead = False

    def _step(self, gradient: tf.Tensor, learning_rate: tf.Tensor) -> tf.Operation:
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
    staleness_method_of_compile = "gap_aware"  # docs/results.md, "Parity with fit"
    update = MomentumUpdate

    def equation(self, settings: Any, parts: UpdateParts) -> Slots:
        """Return v and w + v, where v = momentum x v - learning rate x g (Polyak 1964)."""
        step = parts.learning_rate * parts.factors * parts.shared_gradient
        velocity = settings.momentum * parts.slots["momentum"] - step
        return {"momentum": velocity, "weights": parts.decayed_weights + velocity}


# Optimizer rule nesterov.


class NesterovUpdate(MomentumUpdate):
    """v as with `MomentumUpdate`; w += momentum x v - learning rate x g."""

    looks_ahead = True


class Nesterov(OptimizerRule):
    name = "nesterov"
    Settings = MomentumSettings
    staleness_method_of_compile = "gap_aware"
    update = NesterovUpdate

    def equation(self, settings: Any, parts: UpdateParts) -> Slots:
        """Return v as `WithMomentum` does, and w + momentum x v - learning rate x g."""
        step = parts.learning_rate * parts.factors * parts.shared_gradient
        velocity = settings.momentum * parts.slots["momentum"] - step
        return {"momentum": velocity, "weights": parts.decayed_weights + settings.momentum * velocity - step}


# Optimizer rule muon.

ORTHOGONALISING = (3.4445, -4.7750, 2.0315)  # Jordan et al. 2024
ORTHOGONALISING_STEPS = 5


class MuonSettings(MomentumSettings):
    momentum: Momentum = Field(default=0.9, description="Of the running sum of the gradients.")
    matrices: tuple[str, ...] = Field(
        default=("kernel",),
        strict=False,
        max_length=100,
        description="Parts of the paths of variables (*: any characters, ?: one) whose updates are made orthogonal. The "
        "others follow nesterov.",
    )


class MuonUpdate(UpdateRule):
    """v = momentum x v + g; u = g + momentum x v; w -= learning rate x u, and for a matrix of m rows and n columns
    W -= learning rate x sqrt(max(1, n / m)) x orthogonal(U).

    Muon (Jordan et al. 2024, "Muon: An optimizer for hidden layers in neural networks",
    kellerjordan.github.io/posts/muon). There the other weights follow AdamW. The kernel of a convolution is a matrix with a
    column for each filter. A share of a gradient scales it in v and u alone: the step of a matrix keeps its size.
    """

    slot_names = ("momentum",)

    def _change(
        self, gradient: tf.Tensor, learning_rate: tf.Tensor, updates_before: tf.Tensor, share: tf.Tensor | None
    ) -> tf.Operation:
        momentum, gradient = self._settings.momentum, times(share, gradient)
        velocity = momentum * self.slots["momentum"].read_value() + gradient
        update = gradient + momentum * velocity
        parts, end = [], 0
        for matrix in self._matrices:
            parts.append(update[end : matrix.begin])
            end = matrix.begin + matrix.size
            whole = orthogonal(tf.reshape(update[matrix.begin : end], [matrix.rows, matrix.columns]))
            parts.append(tf.reshape(max(1.0, matrix.columns / matrix.rows) ** 0.5 * whole, [-1]))
        step = learning_rate * times(self._factors, tf.concat([*parts, update[end:]], axis=0))
        return tf.group(
            self.slots["momentum"].assign(velocity, read_value=False), self._weights.assign_sub(step, read_value=False)
        )


def orthogonal(matrix: tf.Tensor) -> tf.Tensor:
    """Return the orthogonal matrix that is nearest to `matrix`, float32 [m, n], roughly: singular values are 0.7 to 1.2.

    With X = matrix / its norm, five times X <- X (a I + b A + c A A), where A = X^T X (Jordan et al. 2024). Here only A
    changes, and the product of the brackets P: A <- P A P. That is the same in exact arithmetic, and takes 18 ms in place of
    42 for airbench's kernels on one core in float32 (28 in bfloat16), because A is the smaller one.
    """
    a, b, c = ORTHOGONALISING
    tall = matrix.shape[0] >= matrix.shape[1]
    x = tf.math.divide_no_nan(matrix, tf.norm(matrix))
    gram = tf.matmul(x, x, transpose_a=tall, transpose_b=not tall)
    identity = tf.eye(gram.shape[0])
    product = identity
    for _ in range(ORTHOGONALISING_STEPS):
        bracket = a * identity + b * gram + c * tf.matmul(gram, gram)
        product = tf.matmul(product, bracket)
        gram = tf.matmul(tf.matmul(bracket, gram), bracket)
    return tf.matmul(x, product) if tall else tf.matmul(product, x)


class Muon(OptimizerRule):
    name = "muon"
    Settings = MuonSettings
    usual_rate = 0.02  # the source's; Keras's Muon scales its steps in another way
    update = MuonUpdate

    def equation(self, settings: Any, parts: UpdateParts) -> Slots:
        """Return v = momentum x v + g alone: the step of a matrix can't be computed from some of its weights."""
        return {"momentum": settings.momentum * parts.slots["momentum"] + parts.shared_gradient}

    def check(self, config: RunConfig) -> None:
        mode = config.mode_kind
        if mode.shares_steps or config.shards > 1 and not mode.promise.takes_local_steps:
            raise ValueError(
                f"optimizer.rule: got 'muon', with weights in parts (mode {mode.name}, {config.shards} of them): it needs "
                "whole matrices: take cluster.parameter_servers 1, and not mode layers or width"
            )


# Optimizer rule adam.

SMALLEST_EPSILON = 1e-30


class AdamSettings(MomentumSettings):
    momentum: Momentum = Field(default=0.9, description="beta_1 of Adam.")
    beta_2: float = Field(default=0.999, ge=0, lt=1, description="beta_2 of Adam: of the running mean square.")
    epsilon: float = Field(
        default=1e-7,
        ge=SMALLEST_EPSILON,
        le=LARGEST_FACTOR,
        description="epsilon of Adam: keeps it from dividing by 0.",
    )


class AdamUpdate(UpdateRule):
    """Adam (Kingma and Ba 2015, arXiv:1412.6980, algorithm 1)."""

    slot_names = ("mean", "variance")

    def _change(
        self, gradient: tf.Tensor, learning_rate: tf.Tensor, updates_before: tf.Tensor, share: tf.Tensor | None
    ) -> tf.Operation:
        if share is None and self._factors is None:
            return self._fused(gradient, learning_rate, updates_before)
        return self._scaled(gradient, learning_rate, updates_before, share)

    def _fused(self, gradient: tf.Tensor, learning_rate: tf.Tensor, updates_before: tf.Tensor) -> tf.Operation:
        settings = self._settings
        count = tf.cast(updates_before + 1, tf.float32)
        return tf.raw_ops.ResourceApplyAdam(
            var=self._weights.handle,
            m=self.slots["mean"].handle,
            v=self.slots["variance"].handle,
            beta1_power=settings.momentum**count,
            beta2_power=settings.beta_2**count,
            lr=learning_rate,
            beta1=settings.momentum,
            beta2=settings.beta_2,
            epsilon=settings.epsilon,
            grad=gradient,
            use_locking=True,
        )

    def _scaled(
        self, gradient: tf.Tensor, learning_rate: tf.Tensor, updates_before: tf.Tensor, share: tf.Tensor | None
    ) -> tf.Operation:
        """Do what `_fused` does in single operations, since its kernel supports neither a share nor factors."""
        settings = self._settings
        count = tf.cast(updates_before + 1, tf.float64)  # float32 would lose three digits of 1 - 0.999^t
        correction = tf.sqrt(1 - settings.beta_2**count) / (1 - settings.momentum**count)
        rate = learning_rate * tf.cast(correction, tf.float32)
        new = {
            "mean": _mean(settings.momentum, self.slots["mean"], times(share, gradient)),
            "variance": _mean(settings.beta_2, self.slots["variance"], gradient * gradient),
        }
        step = times(self._factors, rate * new["mean"] / (tf.sqrt(new["variance"]) + settings.epsilon))
        slots = [self.slots[name].assign(value, read_value=False) for name, value in new.items()]
        return tf.group(*slots, self._weights.assign_sub(step, read_value=False))


def _mean(decay: float, slot: tf.Variable, value: tf.Tensor) -> tf.Tensor:
    before = slot.read_value()
    return before + (1 - decay) * (value - before)


class Adam(OptimizerRule):
    name = "adam"
    Settings = AdamSettings
    usual_rate = 0.001
    staleness_method = "predict"  # docs/results.md, "Async against sync"
    update = AdamUpdate

    def equation(self, settings: Any, parts: UpdateParts) -> Slots:
        """Return m, v and w by algorithm 1 of the paper; epsilon is added as in its section 2, to the uncorrected root."""
        count, beta_1, beta_2 = parts.updates_before + 1, settings.momentum, settings.beta_2
        mean = beta_1 * parts.slots["mean"] + (1 - beta_1) * parts.shared_gradient
        variance = beta_2 * parts.slots["variance"] + (1 - beta_2) * parts.gradient**2
        rate = parts.learning_rate * np.sqrt(1 - beta_2**count) / (1 - beta_1**count)
        step = parts.factors * rate * mean / (np.sqrt(variance) + settings.epsilon)
        return {"mean": mean, "variance": variance, "weights": parts.decayed_weights - step}


# Optimizer rule rmsprop.


class RmspropSettings(MomentumSettings):
    momentum: Momentum = Field(default=0.0, description="Of the scaled gradients; 0: none.")
    rho: float = Field(default=0.9, ge=0, lt=1, description="Of the running mean square.")
    epsilon: float = Field(
        default=1e-7,
        ge=SMALLEST_EPSILON,
        le=LARGEST_FACTOR,
        description="Added to the mean square: keeps the rule from dividing by 0.",
    )


class RmspropUpdate(UpdateRule):
    """s = rho x s + (1 - rho) x g^2; v = momentum x v + learning rate x g / sqrt(s + epsilon); w -= v.

    Tieleman and Hinton 2012, Lecture 6.5 of Neural Networks for Machine Learning, in the form of Keras and TensorFlow.
    """

    slot_names = ("mean_square", "momentum")

    def _change(
        self, gradient: tf.Tensor, learning_rate: tf.Tensor, updates_before: tf.Tensor, share: tf.Tensor | None
    ) -> tf.Operation:
        settings, slots = self._settings, self.slots
        if share is None and self._factors is None:
            return tf.raw_ops.ResourceApplyRMSProp(
                var=self._weights.handle,
                ms=slots["mean_square"].handle,
                mom=slots["momentum"].handle,
                lr=learning_rate,
                rho=settings.rho,
                momentum=settings.momentum,
                epsilon=settings.epsilon,
                grad=gradient,
                use_locking=True,
            )
        # The kernel supports neither a share nor factors. As in Adam, the mean square is of the whole gradient.
        before = slots["mean_square"].read_value()
        mean_square = before + (1 - settings.rho) * (gradient * gradient - before)
        step = times(share, learning_rate * gradient * tf.math.rsqrt(mean_square + settings.epsilon))
        velocity = settings.momentum * slots["momentum"].read_value() + step
        return tf.group(
            slots["mean_square"].assign(mean_square, read_value=False),
            slots["momentum"].assign(velocity, read_value=False),
            self._weights.assign_sub(times(self._factors, velocity), read_value=False),
        )


class Rmsprop(OptimizerRule):
    name = "rmsprop"
    Settings = RmspropSettings
    usual_rate = 0.001
    update = RmspropUpdate

    def equation(self, settings: Any, parts: UpdateParts) -> Slots:
        """Return s, v and w as the docstring of `RmspropUpdate` has them."""
        mean_square = settings.rho * parts.slots["mean_square"] + (1 - settings.rho) * parts.gradient**2
        step = parts.learning_rate * parts.shared_gradient / np.sqrt(mean_square + settings.epsilon)
        velocity = settings.momentum * parts.slots["momentum"] + step
        return {
            "mean_square": mean_square,
            "momentum": velocity,
            "weights": parts.decayed_weights - parts.factors * velocity,
        }


# Optimizer rule compiled: a placeholder for the optimizer that a user's network was compiled with.


class CompiledSettings(RuleSettings):
    learning_rate: float | None = Field(  # type: ignore[assignment]  # a number before anything is trained
        default=None, gt=0, le=LARGEST_FACTOR, description="The learning rate; null: that of compile()."
    )


class Compiled(OptimizerRule):
    """The rule, rate, weight decay and clipping of the network's compile(); without one, adam with 0.001.

    Other rules replace it before processes start (`launch.local_run.complete_config`), so it has no update of its own, and
    its staleness method stands for theirs.
    """

    name = "compiled"
    Settings = CompiledSettings
    usual_rate = None
    staleness_method = "predict"


# Weight averaging on the parameter server while training goes on.


class Lookahead:
    """Slow weights that follow the trained ones, which are then reset to them. Create and use it on the slice's device.

    Lookahead (Zhang, Lucas, Ba, Hinton 2019, arXiv:1907.08610, algorithm 1): every k updates the slow weights s move by
    s += (1 - d) (w - s), and then w = s. d grows with the cube of p, the share of the updates that are done:
    d = decay^k p^3, as in airbench (Jordan 2024, arXiv:2404.00498, section 3.4). So there is no averaging at first,
    when the weights still change a lot, and a long mean at the end. The training ends with the slow weights, also where the
    number of its updates is no multiple of k, as airbench does with a last decay of 1.
    """

    def __init__(self, settings: LookaheadSettings, weights: tf.Variable, total_updates: int):
        self._every = settings.every_updates
        self._decay = settings.decay
        self._weights = weights
        self._total = total_updates
        self.slots = {"slow": tf.Variable(weights)} if self._every else {}

    def after_update(self, version: tf.Tensor) -> list[tf.Tensor]:
        """Return the operations to run after the update that made `version` (int64 [])."""
        if not self._every:
            return []
        due, is_last = tf.equal(version % self._every, 0), tf.equal(version, self._total)
        return [
            tf.cond(
                due,
                lambda: self._return_to_slow(version),
                lambda: tf.cond(is_last, lambda: self._end_with_slow(version), lambda: version),
            )
        ]

    def _end_with_slow(self, version: tf.Tensor) -> tf.Tensor:
        with tf.control_dependencies([version]):
            ended = self._weights.assign(self.slots["slow"].read_value(), read_value=False)
        with tf.control_dependencies([ended]):
            return tf.identity(version)

    def _return_to_slow(self, version: tf.Tensor) -> tf.Tensor:
        progress = tf.cast(version, tf.float32) / self._total
        decay = self._decay**self._every * progress**3
        with tf.control_dependencies([version]):
            fast, slow = self._weights.read_value(), self.slots["slow"].read_value()
        mean = fast + decay * (slow - fast)
        assigned = [variable.assign(mean, read_value=False) for variable in (self._weights, self.slots["slow"])]
        with tf.control_dependencies(assigned):
            return tf.identity(version)
