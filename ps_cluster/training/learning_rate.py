"""Define the schedules of the learning rate, and compute the learning rate of each batch.

The launcher imports this module for the schedules. So this module does not import TensorFlow before a graph is built.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable

import numpy as np

from ps_cluster.config import user_code
from ps_cluster.config.keras_schedules import KerasSettings
from ps_cluster.config.lazy import keras, tf
from ps_cluster.config.schedules import CONSTANT, SCHEDULES, Schedule, ScheduleSettings
from ps_cluster.config.schema import RunConfig
from ps_cluster.config.setting_types import COMPILED


def learning_rate(config: RunConfig, total_batches: int, batch: tf.Tensor) -> tf.Tensor:
    """Return the learning rate, float32 [], of a batch. `batch`: its number among `total_batches`, int64 []."""
    return config.optimizer.learning_rate * schedule_factor(config.schedule, *updates_at(config, total_batches, batch))


def updates_at(config: RunConfig, total_batches: int, batch: tf.Tensor) -> tuple[tf.Tensor, int]:
    """Return the index of the update to which a batch belongs, int64 [], and the total number of updates.

    With local steps, these are the updates of a worker's local weights.
    """
    return batch_of_worker(config, batch), total_batches // config.steps_per_update


def batch_of_worker(config: RunConfig, batch: tf.Tensor) -> tf.Tensor:
    """Return the number of a batch among the batches of its worker, int64 [], counted from 0.

    This number is known only in modes with rounds: there each worker has one step in every update, and a step may have
    several batches. In the other modes it is not known which steps a worker will get, so `batch` is returned unchanged.

    Args:
      batch: the number of the batch among the batches of all workers, int64 [], counted from 0.
    """
    of_step = config.batches_per_step
    return batch // of_step // config.steps_per_update * of_step + batch % of_step


def progress(update: tf.Tensor, total_updates: int) -> tf.Tensor:
    """Return the progress of the training, float32 [], from 0 at the first update to 1 at the last."""
    return tf.cast(update, tf.float32) / max(1, total_updates - 1)


def expected_rates(config: RunConfig, total_steps: int) -> Callable[[np.ndarray], np.ndarray]:
    """Return a function from step ids, int64 [k], to the learning rates that the ledger should show, float32 [k].

    The learning rate of a step with several batches is that of its first batch.
    """
    batches = config.batches_per_step

    @tf.function(autograph=False, input_signature=[tf.TensorSpec([None], tf.int64)])
    def rates(steps: tf.Tensor) -> tf.Tensor:
        return tf.vectorized_map(lambda step: learning_rate(config, total_steps * batches, step * batches), steps)

    return lambda steps: rates(tf.constant(steps, tf.int64)).numpy()


def ledger_settings_digest(config: RunConfig, total_steps: int) -> str:
    """Return a SHA-256 digest of the settings that determine which values the rows of the ledger may have.

    The values are the learning rate, the number of examples and the staleness of a row. The digests of two leaders are
    compared, to find out whether their rows may have the same values. A digest is short, even for a schedule with
    thousands of points.
    """
    code = user_code.parse(config.schedule.kind)
    digest = hashlib.sha256(code.file.read_bytes()).hexdigest() if code and code.file.is_file() else ""
    settings = config.schedule.model_dump(mode="json"), digest, config.optimizer.learning_rate
    shape = total_steps, sorted({*config.examples_of_rows}), config.steps_per_update
    text = json.dumps([*settings, *shape, config.chosen_mode.most_staleness(config)])
    return hashlib.sha256(text.encode()).hexdigest()


def schedule_factor(settings: ScheduleSettings, update: tf.Tensor, total_updates: int) -> tf.Tensor:
    """Return the factor by which the peak learning rate is multiplied at `update` (int64 [], from 0), float32 [].

    The factor rises linearly from `start_factor` to 1 during the warm-up. After that, the schedule determines it.
    """
    done = progress(update, total_updates)
    warmup = settings.warmup_fraction
    rising = settings.start_factor + (1 - settings.start_factor) * done / max(warmup, 1e-9)
    past = tf.clip_by_value((done - warmup) / max(1 - warmup, 1e-9), 0.0, 1.0)
    after = SCHEDULES[settings.kind].factor(settings, past, update)
    return tf.where(done < warmup, rising, after)


class Constant(Schedule[ScheduleSettings]):
    name = CONSTANT

    def after_warmup(self, settings: ScheduleSettings, past: tf.Tensor) -> tf.Tensor:
        """Return the factor 1: the learning rate stays at its peak."""
        return tf.ones_like(past)


class Compiled(Constant):
    """A placeholder that is replaced, before the tasks start, by the schedule with which the network was compiled."""

    name = COMPILED


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
    """A schedule of Keras. Unlike the other schedules, it counts updates and does not know the length of the run.

    If the optimizer of a compiled model has a schedule, a run takes that schedule (`models/compiled_optimizer.py`).
    """

    name = "keras"
    Settings = KerasSettings

    def factor(self, settings: KerasSettings, past: tf.Tensor, update: tf.Tensor) -> tf.Tensor:
        """Return the learning rate of Keras's function at an update, divided by the highest rate of the function."""
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
