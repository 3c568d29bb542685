"""Staleness methods: what a parameter server does with a gradient that comes late.

It asks its method at these points, all in its critical section (`server/shard.py`). At a pull: `given`, which weights the
worker gets. At a push: `accepts`, whether the gradient counts at all; `correct`, how, and for how much; and with `gathers`
above 1 it changes the weights only with every so many gradients. Notation: w are the weights now, w_bak those of the
worker's last pull, g its gradient.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
from pydantic import Field

from ps_cluster.config import RunConfig
from ps_cluster.config.equations import ArrivedParts, CorrectedParts, Slots
from ps_cluster.config.lazy import tf
from ps_cluster.config.optimizer_rules import RuleSettings
from ps_cluster.config.setting_types import Factor, Fraction, Momentum
from ps_cluster.config.staleness_methods import StalenessMethod, StalenessSettings
from ps_cluster.runs.ledger import HEARD_OF, RATE_RETURNS_OVER
from ps_cluster.server.capabilities import Capabilities

Corrected = tuple["tf.Tensor", "tf.Tensor | None"]
"""(gradient float32 [n], the share that it counts for, see `UpdateRule.apply`)."""


class Arrival(NamedTuple):
    """A gradient that arrives."""

    worker: tf.Tensor  # int64 [], who pushes it
    pulled: tf.Tensor  # int64 [], the slice's version that it was computed from
    now: tf.Tensor  # int64 [], the slice's version now: the gradients that were accepted so far

    @property
    def staleness(self) -> tf.Tensor:
        """The gradients that this slice accepted between the pull and now, int64 [], 0 or more."""
        return self.now - self.pulled


class Correction:
    """Corrects nothing; the base class of the corrections. Create it on the slice's device.

    Call all methods in the slice's critical section. The section's result must depend on the operations that `on_pull`
    and `after_update` return.

    Attributes:
      capabilities: of this correction. `accepts` is asked only where it `drops`.
      gathers: with every so many accepted gradients the weights change, by their mean.
      needs_step: whether `after_update` has something to do.
      slots: the state for checkpoints, name → float32 [n], [workers, n], or [] for one number of the slice.
      of_version: variables [n] that belong to a version as the weights do; `given` gets those of the version that is pulled.
      backups: the weights of the workers' last pulls, name → [workers, n]; they are not in checkpoints.
      pull_state: what `given` depends on beside the weights, name → [n], or [workers] for a number of each worker.
    """

    capabilities = Capabilities()
    needs_step = False
    gathers = 1

    def __init__(self, settings: StalenessSettings, weights: tf.Variable, workers: int, places: int):
        """Create the state.

        Args:
          weights: float32 [n], which the update rule changes.
          workers: W, whose staleness is usual: as many as train, or are emulated.
          places: the most workers that there may be, each with a row of its own in a table.
        """
        self._settings: Any = settings
        self._weights = weights
        self._workers = workers
        self.slots: dict[str, tf.Variable] = {}
        self.of_version: Sequence[tf.Variable] = ()
        self.backups: dict[str, tf.Variable] = {}
        self.pull_state: dict[str, tf.Variable] = {}

    def given(self, worker: tf.Tensor, weights: tf.Tensor, *of_version: tf.Tensor) -> tf.Tensor:
        """Return what a worker that pulls gets in place of the weights, float32 [n].

        Args:
          worker: int64 [].
          weights: float32 [n].
        """
        return weights

    def on_pull(self, worker: tf.Tensor, given: tf.Tensor) -> list[tf.Operation]:
        """Remember the weights that a worker pulled.

        Args:
          worker: int64 [].
          given: float32 [n]. Not rounded to the wire's dtype: a rounding error would count as staleness.
        """
        return []

    def correct(self, gradient: tf.Tensor, arrival: Arrival) -> Corrected:
        """Return the gradient to apply, and the share by which it counts.

        The returned gradient depends on everything that the method reads and writes, so the update comes after that.

        Args:
          gradient: float32 [n].
        """
        return gradient, None

    def accepts(self, arrival: Arrival) -> tf.Tensor:
        """Return whether the gradient counts, bool []. It is asked only of a correction that drops gradients."""
        raise NotImplementedError

    def after_update(self, before: tf.Tensor, learning_rate: tf.Tensor) -> list[tf.Operation]:
        """Learn from the step that an update took.

        Call it under a control dependency on the update, which itself must depend on the read of `before`.

        Args:
          before: float32 [n], the weights before the update.
          learning_rate: float32 [], that of the update.
        """
        return []


class WithBackups(Correction):
    """The base of methods that need w - w_bak.

    The pulled weights are not in checkpoints: after a restore, a worker's gradients are not corrected until its next
    pull.
    """

    capabilities = Capabilities(vectors_per_worker=1)

    def __init__(self, settings: StalenessSettings, weights: tf.Variable, workers: int, places: int):
        super().__init__(settings, weights, workers, places)
        self._backups = tf.Variable(tf.zeros([places, *weights.shape]), trainable=False)
        # It is not enough to start the rows with the weights: a restore changes the weights, and a gradient computed
        # before the parameter server's restart can arrive before its worker's next pull.
        self._pulled = tf.Variable(tf.zeros([places], tf.bool), trainable=False)
        self.backups = {"pulled": self._backups}

    def on_pull(self, worker: tf.Tensor, given: tf.Tensor) -> list[tf.Operation]:
        return [
            self._backups.scatter_update(tf.IndexedSlices(given[None], worker[None])),
            self._pulled.scatter_update(tf.IndexedSlices(tf.constant([True]), worker[None])),
        ]

    def correct(self, gradient: tf.Tensor, arrival: Arrival) -> Corrected:
        moved = self._weights.read_value() - self._backups.sparse_read(arrival.worker)
        moved = tf.where(self._pulled.sparse_read(arrival.worker), moved, tf.zeros_like(moved))
        return self._corrected(gradient, moved, arrival.worker)

    def _corrected(self, gradient: tf.Tensor, moved: tf.Tensor, worker: tf.Tensor) -> Corrected:
        """Return the same as `correct`. `gradient` and `moved` (w - w_bak): float32 [n]."""
        raise NotImplementedError


# More workers than training was begun with. This is beside the methods: it works with each of them.


NEVER = math.inf


class RateOfMoreWorkers:
    """Lowers the learning rate while more workers take part than training was begun with.

    W workers have a mean staleness of W - 1, and which weights are stable depends on learning rate x (staleness + 1): for
    large delays the rate that keeps the same minima is inversely proportional to them (Giladi et al. 2020, "At Stability's
    Edge", arXiv:1909.12340). The rate of a run suits the W workers that it was begun with. With more workers the loss jumps
    and stays higher. So while n > W workers take part, the rate is multiplied by (W / n)^2: W / n was not enough, and a
    factor that returns to 1 only puts the damage off (docs/results.md).

    The factor falls at once, with the first gradient of a newcomer. When workers leave it grows by the share 1 /
    RATE_RETURNS_OVER with each update, up to what suits those that are left. With W workers or fewer it is 1. A worker takes
    part until all together have pushed HEARD_OF gradients for each worker that there ever was, and it none.

    Create it on the slice's device, and call it in the slice's critical section.
    """

    def __init__(self, workers: int, places: int):
        """Create the state.

        Args:
          workers: W, with which training begins.
          places: the most workers that there may be.
        """
        self._begun = tf.Variable(float(workers), trainable=False)
        self._factor = tf.Variable(1.0, trainable=False)
        self._ages = tf.Variable(tf.fill([places], NEVER), trainable=False)  # updates since the newest of each worker
        self.slots = {"begun_with": self._begun, "rate_factor": self._factor, "ages": self._ages}

    def factor(self, worker: tf.Tensor) -> tf.Tensor:
        """Return the factor of the learning rate of this worker's update, float32 [], and count the update.

        Args:
          worker: int64 [].
        """
        places = self._ages.shape[0]
        ages = tf.where(tf.range(places, dtype=tf.int64) == worker, 0.0, self._ages.read_value() + 1)
        begun = self._begun.read_value()
        ever = tf.reduce_sum(tf.cast(ages < NEVER, tf.float32))
        take_part = tf.reduce_sum(tf.cast(ages < HEARD_OF * tf.maximum(begun, ever), tf.float32))
        factor = factor_of_rate(begun, take_part, self._factor.read_value())
        kept = [self._ages.assign(ages, read_value=False), self._factor.assign(factor, read_value=False)]
        with tf.control_dependencies(kept):
            return tf.identity(factor)


def factor_of_rate(begun: tf.Tensor, workers: tf.Tensor, before: tf.Tensor) -> tf.Tensor:
    """Return the factor of the learning rate of an update, float32 []; see `RateOfMoreWorkers`.

    Args:
      begun, workers: how many training was begun with, and how many take part now, float32 [].
      before: the factor of the update before, float32 [].
    """
    suits = tf.square(tf.minimum(1.0, begun / workers))
    return tf.minimum(suits, before * (1 + 1 / RATE_RETURNS_OVER))


class NoCorrection(StalenessMethod):
    name = "none"
    says = "stale gradients are applied as they are"
    correction = Correction
    takes_periods = True

    def equation(self, settings: Any, arrived: ArrivedParts) -> CorrectedParts:
        """Return the gradient as it is."""
        return CorrectedParts(arrived.gradient)


# Staleness method inverse.


class InverseSettings(StalenessSettings):
    fades_over: int | None = Field(
        default=None,
        ge=1,
        le=10**9,
        description="Over so many updates the scaling fades, and is gone after them; null: it stays.",
    )


class InverseStaleness(Correction):
    """Scales a gradient by 1 / staleness; one with staleness 0 counts whole.

    Zhang, Gupta, Lian and Liu 2016, "Staleness-aware Async-SGD for Distributed Deep Learning", arXiv:1511.05950: plain
    SGD with the learning rate of each gradient divided by its own staleness. (The paper's text was not available; this
    is its rule as others quote it.) What it means for other rules and for weight decay is this project's choice: see
    `UpdateRule.apply`. At a constant staleness it equals dividing the learning rate by the staleness, with every rule.

    With `fades_over` K it is 1 / staleness^p, where p falls from 1 to 0 within K updates (PipeMare, Yang et al. 2021,
    arXiv:1910.05124, technique 1, there with the fixed delays of a pipeline). PipeMare's correction, technique 2, is of
    forward and backward passes at different weights: here both are at those of the pull.
    """

    def correct(self, gradient: tf.Tensor, arrival: Arrival) -> Corrected:
        delay = tf.cast(tf.maximum(arrival.staleness, 1), gradient.dtype)
        if (updates := self._settings.fades_over) is None:
            return gradient, 1 / delay
        power = tf.maximum(0.0, 1 - tf.cast(arrival.now, gradient.dtype) / updates)
        return gradient, delay**-power


class Inverse(StalenessMethod):
    name = "inverse"
    says = "a gradient counts for 1 / staleness"
    takes_periods = True
    Settings = InverseSettings
    correction = InverseStaleness

    def equation(self, settings: Any, arrived: ArrivedParts) -> CorrectedParts:
        """Return the gradient with the share 1 / staleness^p, where p falls from 1 to 0 if `fades_over` is set."""
        power = 1.0
        if settings.fades_over is not None:
            power = max(0.0, 1 - arrived.updates_before / settings.fades_over)
        return CorrectedParts(arrived.gradient, max(1, arrived.staleness) ** -power)


# Staleness method delay_adaptive.


class DelayAdaptive(Correction):
    """Scales a gradient by W / max(W, τ + 1): those that are no later than usual with W workers count whole.

    Mishchenko, Bach, Even and Woodworth 2022, "Asynchronous SGD Beats Minibatch SGD Under Arbitrary Delays",
    arXiv:2206.07638, in the form of the authors' experiments (github.com/konstmish/asynchronous_sgd): learning rate x W /
    max(W, delay), where a delay of 1 is a staleness of 0. Koloskova, Stich and Jaggi 2022, arXiv:2206.08307, also keep the
    rate up to the mean number of gradients under way, and divide it by the delay beyond that.
    """

    def correct(self, gradient: tf.Tensor, arrival: Arrival) -> Corrected:
        delay = tf.cast(arrival.staleness + 1, gradient.dtype)
        return gradient, self._workers / tf.maximum(delay, self._workers)


class AdaptiveToDelay(StalenessMethod):
    name = "delay_adaptive"
    says = "a gradient that is later than the number of workers counts for less"
    takes_periods = True
    correction = DelayAdaptive

    def equation(self, settings: Any, arrived: ArrivedParts) -> CorrectedParts:
        """Return the gradient with the share W / max(W, staleness + 1)."""
        return CorrectedParts(arrived.gradient, arrived.workers / max(arrived.workers, arrived.staleness + 1))


# Staleness method gap_aware.

STEP_DECAY = 0.999  # of the running average of the step


class GapScaling(WithBackups):
    """Scales a gradient by 1 / (1 + |w - w_bak| / C), elementwise; C is the size of a step at the highest rate.

    Barkai, Hakimi and Schuster 2020, "Gap-Aware Mitigation of Gradient Staleness", arXiv:1909.10802. The paper's text
    was not available; the form is that of an implementation by colleagues of its authors (github.com/saareliad/FTPipe,
    `GapAware`):

      C = R sqrt(V / (1 - 0.999^t)),  V = 0.999 V + 0.001 (step / rate)^2,  V = 0 at t = 0

    R is the highest learning rate so far. So C does not fall with the learning rate: a gradient's error depends on how
    far the weights have moved since it was computed, and late in a schedule they hardly move.

    Here `step` is the change that the t-th update made to the weight, and `rate` that update's learning rate. In FTPipe
    step / rate is the momentum buffer (the gradient, without momentum). For plain SGD and momentum these are equal,
    except for weight decay and for a rate that changes within the buffer's memory; this form also works for Adam.
    FTPipe keeps C above 0 with 1e-8 R; here a weight with C = 0, as all have before the first update, is not corrected.
    Weight decay is scaled too, as in FTPipe.
    """

    needs_step = True

    def __init__(self, settings: StalenessSettings, weights: tf.Variable, workers: int, places: int):
        super().__init__(settings, weights, workers, places)
        # "updates" is 1 - 0.999^t, computed as the same running average of ones.
        zeros = {"step_square": tf.zeros_like(weights), "updates": tf.zeros([]), "highest_rate": tf.zeros([])}
        self.slots = {name: tf.Variable(value, trainable=False) for name, value in zeros.items()}

    def _corrected(self, gradient: tf.Tensor, moved: tf.Tensor, worker: tf.Tensor) -> Corrected:
        square, updates, highest = (variable.read_value() for variable in self.slots.values())
        step = highest * tf.sqrt(tf.math.divide_no_nan(square, updates))
        share = 1 / (tf.math.divide_no_nan(tf.abs(moved), step) + 1)
        with tf.control_dependencies([share]):
            return tf.identity(gradient), share

    def after_update(self, before: tf.Tensor, learning_rate: tf.Tensor) -> list[tf.Operation]:
        step = tf.math.divide_no_nan(self._weights.read_value() - before, learning_rate)
        highest = self.slots["highest_rate"]
        return [
            self._average("step_square", step * step),
            self._average("updates", tf.ones([])),
            highest.assign(tf.maximum(highest.read_value(), learning_rate), read_value=False),
        ]

    def _average(self, name: str, value: tf.Tensor) -> tf.Operation:
        slot = self.slots[name]
        return slot.assign(STEP_DECAY * slot.read_value() + (1 - STEP_DECAY) * value, read_value=False)


class GapAware(StalenessMethod):
    name = "gap_aware"
    says = "a gradient counts for less, the further the weights have moved since its pull"
    correction = GapScaling

    def equation(self, settings: Any, arrived: ArrivedParts) -> CorrectedParts:
        """Return the gradient with the share 1 / (1 + |w - w_bak| / C) of each weight."""
        square, updates = arrived.slots["step_square"], float(arrived.slots["updates"][0])
        usual = float(arrived.slots["highest_rate"][0]) * np.sqrt(square / updates if updates else 0 * square)
        gap = np.divide(np.abs(arrived.moved), usual, out=np.zeros_like(usual), where=usual > 0)
        return CorrectedParts(arrived.gradient, 1 / (1 + gap))


# Staleness method dc_constant.


class ConstantSettings(StalenessSettings):
    # The paper's value (Zheng et al. 2017, arXiv:1609.08326).
    strength: Factor = Field(default=0.04, description="lambda of the paper")


class ConstantDelayCompensation(WithBackups):
    """DC-ASGD-c: g + lambda g*g*(w - w_bak), elementwise; lambda is `strength`.

    Zheng et al. 2017, "Asynchronous Stochastic Gradient Descent with Delay Compensation", arXiv:1609.08326,
    algorithm 2.
    """

    def _corrected(self, gradient: tf.Tensor, moved: tf.Tensor, worker: tf.Tensor) -> tf.Tensor:
        return gradient + self._settings.strength * gradient * gradient * moved, None


class DcConstant(StalenessMethod):
    name = "dc_constant"
    says = "delay compensation with a constant lambda"
    Settings = ConstantSettings
    correction = ConstantDelayCompensation

    def equation(self, settings: Any, arrived: ArrivedParts) -> CorrectedParts:
        """Return g + lambda g*g*(w - w_bak)."""
        return CorrectedParts(arrived.gradient + settings.strength * arrived.gradient**2 * arrived.moved)


# Staleness method dc_adaptive.

EPSILON = 1e-7


class AdaptiveSettings(StalenessSettings):
    strength: Factor = Field(default=2.0, description="lambda_0 of the paper")
    decay: Fraction = Field(default=0.95, description="of the running mean square of the gradients")


class AdaptiveDelayCompensation(WithBackups):
    """DC-ASGD-a: as DC-ASGD-c with a lambda of each weight, lambda_0 / sqrt(MeanSquare + 1e-7); lambda_0 is `strength`.

    MeanSquare = m MeanSquare + (1 - m) g*g, one for each worker, from 0 and without a bias correction; m is `decay`. It
    already includes the gradient being corrected. Zheng et al. 2017, arXiv:1609.08326; checked against the authors'
    code (Microsoft's DC-ASGD for Multiverso, dcasgda_updater.h), which keeps one for each worker.
    """

    capabilities = replace(WithBackups.capabilities, slots_per_worker=1)

    def __init__(self, settings: StalenessSettings, weights: tf.Variable, workers: int, places: int):
        super().__init__(settings, weights, workers, places)
        self.slots = {"mean_square": tf.Variable(tf.zeros([places, *weights.shape]), trainable=False)}

    def _corrected(self, gradient: tf.Tensor, moved: tf.Tensor, worker: tf.Tensor) -> tf.Tensor:
        slot, decay, square = self.slots["mean_square"], self._settings.decay, gradient * gradient
        mean_square = decay * slot.sparse_read(worker) + (1 - decay) * square
        with tf.control_dependencies([slot.scatter_update(tf.IndexedSlices(mean_square[None], worker[None]))]):
            return gradient + self._settings.strength * tf.math.rsqrt(mean_square + EPSILON) * square * moved, None


class DcAdaptive(StalenessMethod):
    name = "dc_adaptive"
    says = "delay compensation with a lambda of each weight"
    Settings = AdaptiveSettings
    correction = AdaptiveDelayCompensation

    def equation(self, settings: Any, arrived: ArrivedParts) -> CorrectedParts:
        """Return g + lambda_0 / sqrt(MeanSquare + 1e-7) g*g*(w - w_bak), and the worker's new MeanSquare."""
        square = arrived.gradient**2
        mean_square = settings.decay * arrived.slots["mean_square"] + (1 - settings.decay) * square
        strength = settings.strength / np.sqrt(mean_square + EPSILON)
        return CorrectedParts(arrived.gradient + strength * square * arrived.moved, slots={"mean_square": mean_square})


# Staleness method momentum.


class CorrectedMomentum(StalenessMethod):
    name = "momentum"
    says = "the optimizer's momentum is lowered by what asynchrony adds"
    correction = Correction

    def equation(self, settings: Any, arrived: ArrivedParts) -> CorrectedParts:
        """Return the gradient as it is: the method changes the settings of the rule."""
        return CorrectedParts(arrived.gradient)

    def check(self, config: RunConfig) -> None:
        if not hasattr(config.optimizer, "momentum"):
            raise ValueError(
                f"staleness.method: got 'momentum': optimizer.rule {config.optimizer.rule} has none to correct"
            )

    def optimizer(self, config: RunConfig) -> RuleSettings:
        workers = config.mode_kind.emulated_workers(config)
        return config.optimizer.model_copy(
            update={"momentum": corrected_momentum(config.optimizer.momentum, workers)}  # type: ignore[attr-defined]
        )


def corrected_momentum(momentum: float, workers: int) -> float:
    """Return max(0, momentum - (1 - 1/M)), since asynchrony adds about 1 - 1/M of momentum.

    Mitliagkas, Zhang, Hadjis and Re 2016, "Asynchrony begets Momentum", arXiv:1605.09774: if the step times of M
    workers are independent and exponentially distributed, the staleness is geometric, and in expectation

      w[t+1] - w[t] = (1 - 1/M) (w[t] - w[t-1]) - (learning rate / M) grad(w[t])

    With an explicit momentum mu, and s = 1 - 1/M, the steps d[t] = w[t+1] - w[t] follow

      d[t] = (mu + s) d[t-1] - mu s d[t-2] - (learning rate / M) grad(w[t])

    This sets the leading coefficient mu + s to `momentum` and neglects the term of d[t-2]. It does not undo the factor
    1/M of the learning rate. Where s is above `momentum`, no momentum of 0 or more can make up for it.

    Args:
      momentum: 0..1, the total momentum wanted.
      workers: M, 1 or more, with about the same speed.
    """
    return max(0.0, momentum - (1 - 1 / workers))


# Staleness method ordered_momentum.


class OrderedSettings(StalenessSettings):
    momentum: Momentum = Field(default=0.9, description="beta of the paper")


class OrderedMomentum(Correction):
    """Momentum in which a gradient has the place of its pull, not of its push.

    OrMo (Shi, Yang and Li 2024, "Ordered Momentum for Asynchronous SGD", arXiv:2407.19234). The gradients of K versions in a
    row are a bucket, with K the number of workers. b is the newest bucket, d how many buckets ago the gradient g was pulled:

      b grows:  w <- w - η β u,  u <- β u
      then:     u <- u + β^d g,  w <- w - η (1 + β + ... + β^d) g

    So once all gradients of all buckets have come, w is what momentum makes of the sum of each bucket, in whatever order
    they came. In the paper u has the factor η, so a rate that changes leaves what u holds as it was; here it acts on
    that too, as with rule `momentum`. The paper's text was not available: the test checks that order of arrival does not count.
    """

    def __init__(self, settings: StalenessSettings, weights: tf.Variable, workers: int, places: int):
        super().__init__(settings, weights, workers, places)
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
        return (version + self._workers - 1) // self._workers


class Ordered(StalenessMethod):
    name = "ordered_momentum"
    says = "momentum of its own, in which a late gradient has the place of its pull"
    Settings = OrderedSettings
    correction = OrderedMomentum

    def equation(self, settings: Any, arrived: ArrivedParts) -> CorrectedParts:
        """Return both terms of the paper's update as one gradient, and the new u."""

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
        emulated = config.mode_kind.emulated_workers(config)
        if emulated != config.training_workers:
            raise ValueError(
                f"mode.simulate_workers: got {emulated}: the buckets of staleness.method ordered_momentum are of real workers: "
                "leave it out"
            )
        if config.optimizer.rule != "sgd":
            raise ValueError(
                f"optimizer.rule: got '{config.optimizer.rule}': staleness.method ordered_momentum has momentum of its own: "
                "choose sgd"
            )


# Staleness method predict.

MEMORY = 0.9  # of the running mean of a worker's staleness


class PredictedWeights(Correction):
    """Gives a worker the weights that are expected when its gradient arrives, w + τ d, at which it computes the gradient.

    d is the newest step of the weights, and τ the running mean of the worker's staleness. With momentum or Adam, d is what
    the next update does too if its gradient is the running mean of the gradients: for momentum SpecTrain (Chen, Yang and
    Cheng 2018, arXiv:1809.02839), for Adam the prediction of XPipe (Guan et al. 2019, arXiv:1911.04610), both made for the
    stages of a pipeline, whose τ is known. Here d is measured, so it contains weight decay too, and τ is that of each
    worker. A rule without momentum predicts by its newest gradient alone.

    τ begins at 0, and is not in checkpoints.
    """

    needs_step = True

    def __init__(self, settings: StalenessSettings, weights: tf.Variable, workers: int, places: int):
        super().__init__(settings, weights, workers, places)
        self._staleness = tf.Variable(tf.zeros([places]), trainable=False)
        self._step = tf.Variable(tf.zeros_like(weights), trainable=False)
        self.slots, self.of_version = {"step": self._step}, (self._step,)
        self.pull_state = {"step": self._step, "staleness": self._staleness}

    def given(self, worker: tf.Tensor, weights: tf.Tensor, *of_version: tf.Tensor) -> tf.Tensor:
        (step,) = of_version
        return weights + self._staleness.sparse_read(worker) * step

    def correct(self, gradient: tf.Tensor, arrival: Arrival) -> Corrected:
        before = self._staleness.sparse_read(arrival.worker)
        mean = MEMORY * before + (1 - MEMORY) * tf.cast(arrival.staleness, before.dtype)
        updated = self._staleness.scatter_update(tf.IndexedSlices(mean[None], arrival.worker[None]))
        with tf.control_dependencies([updated]):
            return tf.identity(gradient), None

    def after_update(self, before: tf.Tensor, learning_rate: tf.Tensor) -> list[tf.Operation]:
        return [self._step.assign(self._weights.read_value() - before, read_value=False)]


class Predict(StalenessMethod):
    name = "predict"
    says = "a worker gets the weights that are expected when its gradient arrives"
    correction = PredictedWeights

    def equation(self, settings: Any, arrived: ArrivedParts) -> CorrectedParts:
        """Return the gradient as it is: the method acts at the pull alone."""
        return CorrectedParts(arrived.gradient)

    def given_weights(self, at_pull: Slots) -> np.ndarray:
        """Return w + staleness of the worker x newest step."""
        predicted: np.ndarray = at_pull["weights"] + at_pull["staleness"] * at_pull["step"]
        return predicted


# Staleness method drop.


class DropSettings(StalenessSettings):
    max_delay: int | None = Field(
        default=None,
        ge=1,
        le=100_000,
        description="R: a gradient from R versions ago or more is dropped; null: twice the workers.",
    )
    stop: bool = Field(
        default=False,
        description="A worker asks between its local steps, and stops a period that would be dropped. A question takes the "
        "way to the parameter server and back.",
    )


class DroppedWhenLate(Correction):
    """Drops a gradient whose staleness is R or more; all others count whole.

    Ringmaster ASGD in its simple form (Maranjyan, Tyurin and Richtárik 2025, arXiv:2501.16168, algorithm 4): there the worker
    goes on at the newest weights with the next gradient. Here it computes the same step again, so that no example is left out.
    With `stop` its full form (algorithm 5), between local steps: the paper stops a computation at once.
    """

    capabilities = Capabilities(drops=True)

    def __init__(self, settings: StalenessSettings, weights: tf.Variable, workers: int, places: int):
        super().__init__(settings, weights, workers, places)
        self._max_delay = self._settings.max_delay or 2 * workers
        self.capabilities = Capabilities(drops=True, stops=self._settings.stop)

    def accepts(self, arrival: Arrival) -> tf.Tensor:
        return arrival.staleness < self._max_delay


class Drop(StalenessMethod):
    name = "drop"
    says = "a gradient that is too many versions old is dropped, and its step computed again"
    takes_periods = True
    Settings = DropSettings
    correction = DroppedWhenLate

    def equation(self, settings: Any, arrived: ArrivedParts) -> CorrectedParts:
        """Return the gradient as it is: those that are too late are not applied."""
        return CorrectedParts(arrived.gradient)

    def check(self, config: RunConfig) -> None:
        super().check(config)
        settings: Any = config.staleness
        delay, limit = config.mode_kind.delay(config), settings.max_delay
        if limit is not None and delay >= limit:
            raise ValueError(
                f"staleness.max_delay: got {limit}: with mode.simulate_workers each gradient is at least {delay} versions old, "
                "so all would be dropped: give more"
            )
        if settings.stop and not config.mode_kind.promise.takes_local_steps:
            raise ValueError(f"staleness.stop: got true: mode {config.mode.name} has no local steps to stop between")
        if settings.stop and config.shards > 1:  # one may accept what another would drop
            raise ValueError(f"cluster.parameter_servers: got {config.shards}: staleness.stop works with 1")


# Staleness method gather.


class GatherSettings(StalenessSettings):
    gather: int | None = Field(
        default=None,
        ge=1,
        le=100_000,
        description="The weights change with every so many gradients; null: as many as workers.",
    )


class Gathered(Correction):
    """Changes the weights with every K-th gradient, by the mean of K, each scaled by 1 / sqrt(1 + τ).

    FedBuff (Nguyen et al. 2022, arXiv:2106.06639, algorithm 1), there with what several local steps bring, as here in mode
    diloco. τ counts the changes of the weights between the pull and the push. Up to K - 1 gradients at the end of a training
    change nothing. They are in checkpoints meanwhile.
    """

    def __init__(self, settings: StalenessSettings, weights: tf.Variable, workers: int, places: int):
        super().__init__(settings, weights, workers, places)
        self.gathers = self._settings.gather or workers
        self.slots = {"gathered": tf.Variable(tf.zeros_like(weights), trainable=False)}

    def changes_since(self, arrival: Arrival) -> tf.Tensor:
        """Return how often the weights changed between the pull and now, int64 []."""
        return arrival.now // self.gathers - arrival.pulled // self.gathers

    def correct(self, gradient: tf.Tensor, arrival: Arrival) -> Corrected:
        return gradient, tf.math.rsqrt(1 + tf.cast(self.changes_since(arrival), gradient.dtype))


class Gather(StalenessMethod):
    name = "gather"
    says = "the weights change with every K gradients, which count for less the later they come"
    gathers = True
    takes_periods = True
    Settings = GatherSettings
    correction = Gathered

    def gathered_gradients(self, config: RunConfig) -> int:
        """Return K."""
        settings: Any = config.staleness
        return settings.gather or config.mode_kind.emulated_workers(config)

    def equation(self, settings: Any, arrived: ArrivedParts) -> CorrectedParts:
        """Return the gradient with the share 1 / sqrt(1 + changes of the weights since the pull)."""
        every = settings.gather or arrived.workers
        changes = arrived.updates_before // every - (arrived.updates_before - arrived.staleness) // every
        return CorrectedParts(arrived.gradient, 1 / np.sqrt(1 + changes))


# Staleness method same_version.


class GatheredOfOneVersion(Gathered):
    """Changes the weights with every K-th gradient of the newest weights, by their mean; drops those of older ones.

    Rennala SGD (Tyurin and Richtárik 2023, arXiv:2305.12387, method 1). There the worker goes on with another gradient; here
    it computes the same step again.
    """

    capabilities = Capabilities(drops=True)

    def accepts(self, arrival: Arrival) -> tf.Tensor:
        return tf.equal(self.changes_since(arrival), 0)

    def correct(self, gradient: tf.Tensor, arrival: Arrival) -> Corrected:
        return gradient, None


class SameVersion(Gather):
    name = "same_version"
    says = "the weights change with every K gradients of the newest weights; others are dropped and computed again"
    correction = GatheredOfOneVersion

    def equation(self, settings: Any, arrived: ArrivedParts) -> CorrectedParts:
        """Return the gradient as it is: those of older weights are not applied."""
        return CorrectedParts(arrived.gradient)

    def check(self, config: RunConfig) -> None:
        super().check(config)
        if config.mode_kind.delay(config):
            raise ValueError(
                f"mode.simulate_workers: got {config.mode_kind.emulated_workers(config)}: no gradient would be of the newest "
                f"weights, and staleness.method {self.name} drops all others: leave it out"
            )
