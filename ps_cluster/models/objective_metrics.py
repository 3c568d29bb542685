"""Compute the metrics that an objective has in addition to its main metric, by Keras's own classes.

They are AUC, log loss, F1, RMSE and R².
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Literal

import keras
import numpy as np
import tensorflow as tf

from ps_cluster.models.compiled import CompiledMetrics
from ps_cluster.models.heads import Head
from ps_cluster.private_names import mode_of_metric

MOST_COLLECTED = 2**20  # the metrics are updated once this many target values are collected: 4 MB


def further_metrics(head: Head, compiled: CompiledMetrics) -> dict[str, keras.Metric]:
    """Return the metrics that an objective has in addition to its main metric, by name.

    Metrics that have the same name or class as a metric of compile() are left out. `compiled`: the metrics of
    compile(), which have to be built.
    """
    of_user = compiled.metrics
    taken = {*of_user, *(type(metric) for metric in of_user.values())}
    return {name: metric for name, metric in head.further_metrics().items() if not taken & {name, type(metric)}}


def metric_directions(head: Head, compiled: CompiledMetrics) -> dict[str, Literal["max", "min"] | None]:
    """Return which values are better for each metric that is scored besides the objective's main metric and the loss.

    The result maps the name of the metric to "max" or "min", or to None if Keras does not know which values are better.
    `compiled`: the metrics of compile(), which have to be built.
    """
    scored = further_metrics(head, compiled) | compiled.metrics
    return {name: mode_of_metric(metric) for name, metric in scored.items()}


class ObjectiveMetrics:
    """The metrics that an objective has in addition to its main metric, accumulated over batches.

    Batches are collected, because an update of Keras's metrics takes as long for 50 examples as for 5,000.
    """

    def __init__(self, head: Head, compiled: CompiledMetrics):
        """Store the head, which creates the metrics at their first use. `compiled`: the metrics of compile()."""
        self._head, self._compiled = head, compiled
        self._metrics: Mapping[str, keras.Metric] | None = None
        self._batches: list[tuple[tf.Tensor, tf.Tensor]] = []

    def add(self, truth: tf.Tensor, predicted: tf.Tensor) -> None:
        """Add the true targets and predictions of a batch, as `Head.compared` returns them.

        Call this after the metrics of compile() are updated.
        """
        self._batches.append((truth, predicted))
        if sum(math.prod(batch.shape) for batch, _ in self._batches) >= MOST_COLLECTED:
            self._update()

    def take_results(self) -> dict[str, float]:
        """Return the values of the metrics, by name, and reset the metrics. Values that are not finite are left out."""
        self._update()
        found = {}
        for name, metric in (self._metrics or {}).items():
            value = float(metric.result()) / _defined_share(metric)
            metric.reset_state()
            if math.isfinite(value):
                found[name] = value
        return found

    def _update(self) -> None:
        if not self._batches:
            return
        if self._metrics is None:
            self._metrics = further_metrics(self._head, self._compiled)
        truth, predicted = (tf.concat(parts, axis=0) for parts in zip(*self._batches, strict=True))
        self._batches.clear()
        for metric in self._metrics.values():
            metric.update_state(truth, predicted)


def _defined_share(metric: keras.Metric) -> float:
    """Return the share of classes or labels for which a metric is defined; NaN if it is defined for none.

    Keras averages a metric over the labels. Labels for which the metric is not defined count as 0 in this mean,
    although they say nothing about the network. No metric is defined for a label that no example has. The area under
    the curve is not defined for a label that all examples have, either.
    """
    if not isinstance(metric, keras.metrics.AUC | keras.metrics.F1Score):
        return 1.0
    defined = metric.true_positives + metric.false_negatives > 0
    if isinstance(metric, keras.metrics.AUC):  # the first axis is that of the thresholds
        defined = (defined & (metric.false_positives + metric.true_negatives > 0))[0]
    return float(np.mean(defined)) or math.nan
