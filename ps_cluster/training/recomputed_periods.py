"""Recompute the change of a worker's weights in a period of local steps."""

from __future__ import annotations

import numpy as np
import tensorflow as tf

from ps_cluster.config import RunConfig
from ps_cluster.config.equations import UpdateParts
from ps_cluster.config.optimizer_rules import RULES
from ps_cluster.data.packed import PackedDataset
from ps_cluster.runs.update_samples import SampledGradient
from ps_cluster.training.recomputed_steps import RecomputedGradient, RecomputedSteps

MOST_BATCHES = 64  # longer periods are not recomputed


class _RecomputedPeriods(RecomputedSteps):
    """The base class for recomputing periods. Before each step, the weights are rounded as in the worker."""

    def __init__(self, config: RunConfig, dataset: PackedDataset, precision: str = "float32"):
        super().__init__(config, dataset, precision)
        self._dtype = tf.dtypes.as_dtype(config.wire)

    def why_unchecked(self, gradient: SampledGradient) -> str | None:
        """Return why a period can't be recomputed; None if it can."""
        if gradient.examples > MOST_BATCHES * self._config.training.batch_size_per_worker:
            return f"periods of more than {MOST_BATCHES} local steps, which would take too long"
        return None

    def _rounded(self, weights: np.ndarray) -> np.ndarray:
        """Return weights, float64 [n], rounded to the dtype of the wire, as float32 [n]."""
        return np.asarray(tf.cast(tf.cast(tf.constant(weights, tf.float32), self._dtype), tf.float32))

    def _batches_of(self, gradient: SampledGradient) -> list[int]:
        """Return the numbers of the batches that a period has trained on."""
        first = gradient.step * self._config.batches_per_step
        return list(range(first, first + gradient.examples // self._config.training.batch_size_per_worker))

    def _fresh(self, statistics: np.ndarray, before: np.ndarray) -> np.ndarray:
        """Return what a period adds to the kept share of the moving statistics, float64 [m].

        Args:
          statistics: float64 [m], the statistics at the end of the period.
          before: float32 [m], the pulled statistics.
        """
        fresh: np.ndarray = statistics - self.keep**self._config.batches_per_step * before
        return fresh


class RecomputedElasticPeriods(_RecomputedPeriods):
    """Recomputes periods of mode elastic: plain SGD from two vectors of weights, see `training/modes/elastic.py`."""

    def recompute(self, gradient: SampledGradient, given: np.ndarray, statistics: np.ndarray) -> RecomputedGradient:
        """Recompute the change of the worker's weights in a period of local steps, together with the fresh statistics.

        Args:
          given: float32 [2, n], the worker's weights after its last exchange, and those before that exchange.
        """
        own, before = given.reshape(2, -1)
        moved, seen = np.zeros(self.length), statistics.astype(np.float64)
        for place, batch in enumerate(self._batches_of(gradient)):
            here = before if place == 0 else self._rounded(own + moved)
            found = self._of_batch(batch, gradient.worker, here, seen)
            moved = moved - self._rate(batch) * (self.factors * found.gradient + self.decay * here)
            seen = self.keep * seen + found.fresh
        return RecomputedGradient(moved, self._fresh(seen, statistics))


class RecomputedLocalPeriods(_RecomputedPeriods):
    """Recomputes periods of modes diloco and sync-diloco: steps of the optimizer rule, whose state stays with the worker."""

    def why_unchecked(self, gradient: SampledGradient) -> str | None:
        """Return why a period can't be recomputed; None if it can.

        If the optimizer has slots, only the first period of a worker begins with a known state.
        """
        if reason := super().why_unchecked(gradient):
            return reason
        settings, rule = self._config.optimizer, RULES[self._config.optimizer.rule]
        update = rule.update
        slots = {name: np.full(1, value) for name, value in update.first_values(settings).items()}
        nothing = UpdateParts(np.zeros(1), np.zeros(1), slots, 0.0, 0, np.ones(1), np.zeros(1))
        if "weights" not in (rule.equation(settings, nothing) or {}):
            return f"the periods of a worker: optimizer.rule {rule.name} has no equation for the weights"
        if update.slot_names and not gradient.first_of_worker:
            return "the periods after the first one of a worker: the state of its optimizer stays with the worker"
        return None

    def recompute(self, gradient: SampledGradient, given: np.ndarray, statistics: np.ndarray) -> RecomputedGradient:
        """Return the pulled weights minus the weights after all steps of the period, and the fresh statistics."""
        settings, rule = self._config.optimizer, RULES[self._config.optimizer.rule]
        update = rule.update
        slots = {name: np.full(self.length, value) for name, value in update.first_values(settings).items()}
        weights, seen = given.astype(np.float64), statistics.astype(np.float64)
        for place, batch in enumerate(self._batches_of(gradient)):
            found = self._of_batch(batch, gradient.worker, self._rounded(weights), seen)
            parts = UpdateParts(
                weights,
                found.gradient,
                slots,
                self._rate(batch),
                place,
                self.factors,
                self.decay,
                matrices=self.matrices,
            )
            new = rule.equation(settings, parts)
            assert new is not None, "`why_unchecked` has checked that there is an equation"
            slots = {name: new[name] for name in slots}
            weights, seen = new["weights"], self.keep * seen + found.fresh
        return RecomputedGradient(given - weights, self._fresh(seen, statistics))
