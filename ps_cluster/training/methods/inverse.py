"""Staleness method inverse."""

from __future__ import annotations

from ps_cluster.catalogue.lazily import tf
from ps_cluster.catalogue.staleness import StalenessMethod
from ps_cluster.training.correction import Correction


class InverseStaleness(Correction):
    """Scales a gradient by 1 / staleness; one with staleness 0 counts whole.

    Zhang, Gupta, Lian and Liu 2016, "Staleness-aware Async-SGD for Distributed Deep Learning", arXiv:1511.05950: plain
    SGD with the learning rate of each gradient divided by its own staleness. (The paper's text was not available; this
    is its rule as others quote it.) What it means for other rules and for weight decay is this project's choice: see
    `UpdateRule.apply`. At a constant staleness it equals dividing the learning rate by the staleness, with every rule.
    """

    def correct(self, gradient, worker, staleness):
        return gradient, 1 / tf.cast(tf.maximum(staleness, 1), gradient.dtype)


class Inverse(StalenessMethod):
    name = "inverse"
    says = "a gradient counts for 1 / staleness"
    correction = InverseStaleness


INVERSE = Inverse()
