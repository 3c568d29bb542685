"""Recompute how much a worker's weights change in a period of local steps (the steps between two exchanges)."""

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
    """The base class for recomputing periods of local steps. Before each step, it rounds the weights as workers do."""

    def __init__(self, config: RunConfig, dataset: PackedDataset, precision: str = "float32"):
        super().__init__(config, dataset, precision)
        self._dtype = tf.dtypes.as_dtype(config.wire)

    def why_unchecked(self, gradient: SampledGradient) -> str | None:
        """Return why the period of local steps that ended with this push can't be recomputed; None if it can."""
        if gradient.examples > MOST_BATCHES * self._config.training.batch_size_per_worker:
            return f"periods of more than {MOST_BATCHES} local steps, which would take too long"
        return None

    def _rounded(self, weights: np.ndarray) -> np.ndarray:
        """Round weights, float64 [n], to the dtype in which they are sent to workers. Returns float32 [n]."""
        return np.asarray(tf.cast(tf.cast(tf.constant(weights, tf.float32), self._dtype), tf.float32))

    def _batches_of(self, gradient: SampledGradient) -> list[int]:
        """Return the numbers of the batches that a period has trained on."""
        first = gradient.step * self._config.batches_per_step
        return list(range(first, first + gradient.examples // self._config.training.batch_size_per_worker))

    def _fresh(self, statistics: np.ndarray, before: np.ndarray) -> np.ndarray:
        """Return a period's fresh statistics, float64 [m].

        A share of the pulled statistics remains in the moving statistics at the end of the period. The fresh statistics
        are the rest.

        Args:
          statistics: float64 [m], the statistics at the end of the period.
          before: float32 [m], the pulled statistics.
        """
        fresh: np.ndarray = statistics - self.keep**self._config.batches_per_step * before
        return fresh


class RecomputedElasticPeriods(_RecomputedPeriods):
    """Recomputes periods of local steps in mode elastic, in which a worker takes steps of plain SGD.

    The gradient of the first step is computed at the weights before the last exchange, and applied to the weights after
    it. See `training/modes/elastic.py`.
    """

    def recompute(self, gradient: SampledGradient, given: np.ndarray, statistics: np.ndarray) -> RecomputedGradient:
        """Return the expected push of a period.

        It contains the change of the worker's weights in the period, and what the period adds to the moving statistics.

        Args:
          given: float32 [2, n], the worker's weights after its last exchange, and those before that exchange.
        """
        own, before = given.reshape(2, -1)
        moved, seen = np.zeros(self.length), statistics.astype(np.float64)
        for index, batch in enumerate(self._batches_of(gradient)):
            here = before if index == 0 else self._rounded(own + moved)
            found = self._of_batch(batch, gradient.worker, here, seen)
            moved = moved - self._rate(batch) * (self.factors * found.gradient + self.decay * here)
            seen = self.keep * seen + found.fresh
        return RecomputedGradient(moved, self._fresh(seen, statistics))


class RecomputedLocalPeriods(_RecomputedPeriods):
    """Recomputes periods of local steps in modes diloco and sync-diloco, where workers keep their optimizer's state."""

    def why_unchecked(self, gradient: SampledGradient) -> str | None:
        """Return why the period of local steps that ended with this push can't be recomputed; None if it can.

        If the optimizer has slots, only the first period of a worker begins with a known state.
        """
        if reason := super().why_unchecked(gradient):
            return reason
        settings, rule = self._config.optimizer, RULES[self._config.optimizer.rule]
        update = rule.update
        slots = {name: np.full(1, value) for name, value in update.first_values(settings).items()}
        nothing = UpdateParts(np.zeros(1), np.zeros(1), slots, 0.0, 0, np.ones(1), np.zeros(1))
        if "weights" not in (rule.equation(settings, nothing) or {}):
            return f"periods of local steps, because optimizer.rule {rule.name} has no numpy equation for the weights"
        if update.slot_names and not gradient.first_of_worker:
            return "all periods of a worker after its first one, because only the worker knows its optimizer's state"
        return None

    def recompute(self, gradient: SampledGradient, given: np.ndarray, statistics: np.ndarray) -> RecomputedGradient:
        """Return the expected push of a period.

        It contains the pulled weights minus the weights after the period, and what the period adds to the moving
        statistics.
        """
        settings, rule = self._config.optimizer, RULES[self._config.optimizer.rule]
        update = rule.update
        slots = {name: np.full(self.length, value) for name, value in update.first_values(settings).items()}
        weights, seen = given.astype(np.float64), statistics.astype(np.float64)
        for index, batch in enumerate(self._batches_of(gradient)):
            found = self._of_batch(batch, gradient.worker, self._rounded(weights), seen)
            parts = UpdateParts(
                weights,
                found.gradient,
                slots,
                self._rate(batch),
                index,
                self.factors,
                self.decay,
                matrices=self.matrices,
            )
            new = rule.equation(settings, parts)
            assert new is not None, "`why_unchecked` has checked that there is an equation"
            slots = {name: new[name] for name in slots}
            weights, seen = new["weights"], self.keep * seen + found.fresh
        return RecomputedGradient(given - weights, self._fresh(seen, statistics))
