"""The schedules of the learning rate, as pure functions of the progress after the warm-up.

The launcher imports this module, so it does not import TensorFlow before a graph is built.
"""

from __future__ import annotations

import math

from ps_cluster.config.keras_schedules import KerasSettings
from ps_cluster.config.lazy import keras, tf
from ps_cluster.config.schedules import CONSTANT, Schedule, ScheduleSettings


class Constant(Schedule[ScheduleSettings]):
    name = CONSTANT

    def after_warmup(self, settings: ScheduleSettings, past: tf.Tensor) -> tf.Tensor:
        """Return 1."""
        return tf.ones_like(past)


class Cosine(Schedule[ScheduleSettings]):
    name = "cosine"

    def after_warmup(self, settings: ScheduleSettings, past: tf.Tensor) -> tf.Tensor:
        """Return the factor that falls from 1 to `end_factor` along half a cosine.

        Loshchilov and Hutter 2017, arXiv:1608.03983, equation 5.
        """
        return settings.end_factor + (1 - settings.end_factor) * (1 + tf.cos(math.pi * past)) / 2


class Triangle(Schedule[ScheduleSettings]):
    name = "triangle"

    def after_warmup(self, settings: ScheduleSettings, past: tf.Tensor) -> tf.Tensor:
        """Return the factor that falls linearly from 1 to `end_factor`."""
        return 1 - (1 - settings.end_factor) * past


class Keras(Schedule[KerasSettings]):
    """A schedule of Keras. Unlike the schedules above, it counts updates and does not know how long the run is.

    An optimizer that was compiled with a schedule brings it along (`models/compiled_optimizer.py`).
    """

    name = "keras"
    Settings = KerasSettings

    def factor(self, settings: KerasSettings, past: tf.Tensor, update: tf.Tensor) -> tf.Tensor:
        """Return the rate of Keras's function at an update, divided by its highest rate."""
        of_keras = keras.optimizers.schedules
        functions = {
            "CosineDecay": of_keras.CosineDecay,
            "CosineDecayRestarts": of_keras.CosineDecayRestarts,
            "ExponentialDecay": of_keras.ExponentialDecay,
            "InverseTimeDecay": of_keras.InverseTimeDecay,
            "PiecewiseConstantDecay": of_keras.PiecewiseConstantDecay,
            "PolynomialDecay": of_keras.PolynomialDecay,
        }
        function = functions[settings.function](**settings.arguments)
        return tf.cast(function(update), tf.float32) / settings.highest
