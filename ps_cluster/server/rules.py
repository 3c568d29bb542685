"""Optimizer rule sgd."""

from __future__ import annotations

from pydantic import Field

from ps_cluster.config.registry import LARGEST_FACTOR, Momentum, tf
from ps_cluster.config.update_settings import OptimizerRule, RuleSettings
from ps_cluster.server.update_rules import LinearUpdate, UpdateRule, times


class SgdUpdate(LinearUpdate):
    """w -= learning rate x g."""

    def _step(self, gradient: tf.Tensor, learning_rate: tf.Tensor) -> tf.Operation:
        return tf.raw_ops.ResourceApplyGradientDescent(
            var=self._weights.handle, alpha=learning_rate, delta=gradient, use_locking=True
        )


class Sgd(OptimizerRule):
    name = "sgd"
    update = SgdUpdate


SGD = Sgd()


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
    update = MomentumUpdate


MOMENTUM = WithMomentum()


# Optimizer rule nesterov.


class NesterovUpdate(MomentumUpdate):
    """v as with `MomentumUpdate`; w += momentum x v - learning rate x g."""

    looks_ahead = True


class Nesterov(OptimizerRule):
    name = "nesterov"
    Settings = MomentumSettings
    update = NesterovUpdate


NESTEROV = Nesterov()


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
    update = AdamUpdate


ADAM = Adam()


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


RMSPROP = Rmsprop()


# Optimizer rule compiled: a placeholder for the optimizer that a user's network was compiled with.


class CompiledSettings(RuleSettings):
    learning_rate: float | None = Field(  # type: ignore[assignment]  # a number before anything is trained
        default=None, gt=0, le=LARGEST_FACTOR, description="The learning rate; null: that of compile()."
    )


class Compiled(OptimizerRule):
    """The rule, rate, weight decay and clipping of the network's compile(); without one, adam with 0.001.

    Other rules replace it before processes start (`cluster.local_run.complete_config`), so it has no update of its own.
    """

    name = "compiled"
    Settings = CompiledSettings
    usual_rate = None


COMPILED = Compiled()
