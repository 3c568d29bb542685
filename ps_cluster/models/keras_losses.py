"""Find out what Keras's own losses and metrics take: probabilities or scores, labels or one-hot rows, and units."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
import tensorflow as tf

from ps_cluster.private_names import wrapped_function_of

# Losses whose attribute `from_logits` says whether they take scores.
_WITH_LOGITS = (
    keras.losses.binary_crossentropy, keras.losses.binary_focal_crossentropy, keras.losses.categorical_crossentropy,
    keras.losses.categorical_focal_crossentropy, keras.losses.sparse_categorical_crossentropy,
)  # fmt: skip
# Losses that compare the outputs for several classes with each other.
_OF_SEVERAL_CLASSES = (
    keras.losses.categorical_crossentropy, keras.losses.categorical_focal_crossentropy, keras.losses.categorical_hinge,
    keras.losses.sparse_categorical_crossentropy, keras.losses.categorical_generalized_cross_entropy,
)  # fmt: skip
# Losses that take scores and never probabilities.
_OF_SCORES = (
    keras.losses.hinge, keras.losses.squared_hinge, keras.losses.categorical_hinge, keras.losses.circle, keras.losses.ctc,
)  # fmt: skip
# Losses that allow other units: d(a y + b, a o + b) = c d(y, o). A network trained on standardised targets therefore
# returns the same once its outputs are converted back. a has to be the same for all numbers of a row
# (`RegressionHead.in_units_of_loss`). Other losses don't allow other units: Huber and log-cosh have a width in the
# target's units; relative errors, logarithms, Poisson, cosine and Kullback-Leibler depend on where zero is; and all
# other losses take labels.
_IN_ANY_UNITS = (keras.losses.mean_squared_error, keras.losses.mean_absolute_error)
# Losses that compare numbers. All other losses of Keras compare classes, or probabilities of classes.
_OF_NUMBERS = (
    *_IN_ANY_UNITS, keras.losses.mean_absolute_percentage_error, keras.losses.mean_squared_logarithmic_error,
    keras.losses.huber, keras.losses.log_cosh, keras.losses.poisson, keras.losses.cosine_similarity,
)  # fmt: skip
# Base classes, which say nothing about the targets of a class that a user derives from them.
_BASES = (keras.losses.Loss, keras.metrics.Metric, keras.metrics.Mean, keras.metrics.Sum)


def is_of_keras(found: object) -> bool:
    """Return whether `found` is a class or function of Keras, or an object of such a class."""
    kind = found if hasattr(found, "__qualname__") else type(found)
    return getattr(kind, "__module__", "").startswith("keras.")


def compares_numbers(loss: keras.Loss | Callable[..., Any]) -> bool | None:
    """Return whether a loss of Keras compares numbers, not classes. `loss`: an object or a function.

    Return None if Keras does not define the loss.
    """
    function = wrapped_function_of(loss) or loss
    return function in _OF_NUMBERS if is_of_keras(function) else None


def compares_classes(loss: keras.Loss) -> bool:
    """Return whether a loss of Keras compares the outputs for several classes with each other."""
    return wrapped_function_of(loss) in _OF_SEVERAL_CLASSES


def takes_any_units(loss: keras.Loss) -> bool:
    """Return whether the network with the lowest loss is the same for standardised targets as for the original ones.

    True only for losses of Keras for which this is known.
    """
    return is_of_keras(loss) and wrapped_function_of(loss) in _IN_ANY_UNITS


def loss_takes_probabilities(loss: keras.Loss) -> bool:
    """Return whether a loss takes probabilities instead of scores. False for a loss that Keras does not define."""
    function = wrapped_function_of(loss) if is_of_keras(loss) else None
    if function in _WITH_LOGITS:
        return not loss.get_config().get("from_logits", False)
    return is_of_keras(function) and function not in _OF_SCORES


def metric_takes_probabilities(metric: keras.Metric) -> bool:
    """Return whether a metric of Keras gives correct results only for probabilities.

    Such metrics compare with a threshold of 1/2 or with many thresholds between 0 and 1, or take logarithms of
    probabilities. False if the user has set other thresholds, or `from_logits=True`: the metric is then meant for the
    numbers that the network returns.
    """
    if not is_of_keras(metric):
        return False
    settings: dict[str, Any] = metric.get_config()
    if wrapped_function_of(metric) in _WITH_LOGITS or "from_logits" in settings:
        return not settings.get("from_logits", False)
    if "num_thresholds" in settings or isinstance(metric, keras.metrics.FBetaScore):
        return True
    if "thresholds" in settings:
        return settings["thresholds"] is None
    threshold: float | None = settings.get("threshold")
    return threshold == 0.5


def target_for(loss_or_metric: keras.Loss | keras.Metric, targets: tf.Tensor, output: tf.Tensor) -> tf.Tensor:
    """Return targets in the form that a loss or metric takes.

    Labels [B] become one-hot rows if the loss or metric compares targets with outputs elementwise. Targets of float64
    become float32. All other targets are returned unchanged.
    """
    if targets.dtype == tf.float64:  # a user's loss may compute in float32 only, as Keras does
        targets = tf.cast(targets, tf.float32)
    is_label = targets.dtype.is_integer and targets.shape.rank == 1
    return tf.one_hot(targets, output.shape[-1]) if is_label and _takes_rows(loss_or_metric) else targets


def _takes_rows(loss_or_metric: keras.Loss | keras.Metric) -> bool:
    """Return whether a loss or metric of Keras compares targets with outputs elementwise; False for a user's code."""
    if hasattr(loss_or_metric, "sparse_y_true"):  # intersection over union
        return not loss_or_metric.sparse_y_true
    function = wrapped_function_of(loss_or_metric)
    if isinstance(function, keras.Loss):  # a loss that is used as a metric
        return _takes_rows(function)
    found = function or next(kind for kind in type(loss_or_metric).__mro__ if is_of_keras(kind))
    return is_of_keras(found) and found not in _BASES and not found.__name__.lower().startswith("sparse")
