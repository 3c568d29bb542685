"""Mode sync-diloco: each worker trains alone for many steps; the mean of a round's periods is applied as one outer step.

See outer_steps.py for the papers, and sync_ps.py for the rounds.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from ps_cluster.config import RunConfig
from ps_cluster.config.equations import Slots, UpdateParts
from ps_cluster.config.lazy import tf
from ps_cluster.config.modes import UsedSettings
from ps_cluster.server.initial_state import InitialState
from ps_cluster.server.update_rules.rule import UpdateRule
from ps_cluster.training.modes.local_steps import LocalTraining
from ps_cluster.training.modes.outer_steps import DelayedNesterov, OuterSettings, delayed_nesterov
from ps_cluster.training.modes.sync_ps import SyncPs, SyncPsSettings
from ps_cluster.training.step import TrainStep
from ps_cluster.training.worker import Compute

if TYPE_CHECKING:
    from ps_cluster.training.recomputed_steps import RecomputedSteps


class SyncDilocoSettings(OuterSettings, SyncPsSettings):
    """The settings of sync-ps, and those of the outer step."""


class SyncDiloco(SyncPs):
    """Rounds of local SGD: the mean of all workers' periods becomes one outer step.

    It promises that every period of an update begins from the same version of the weights, so staleness is always 0. With
    `backup_workers` a period that comes too late for its round is dropped.
    """

    name = "sync-diloco"
    says = "workers train by themselves for many steps; the mean of a round's periods is one outer step"
    Settings = SyncDilocoSettings
    promise = replace(SyncPs.promise, takes_local_steps=True)
    uses = UsedSettings(ignores=frozenset({"staleness", "lookahead"}))

    def worker_step(self, step: TrainStep, config: RunConfig, start: InitialState, keep: np.ndarray) -> Compute:
        return LocalTraining(step, config, start, keep)

    def server_rule(self, config: RunConfig, weights: tf.Variable, start: InitialState) -> UpdateRule[Any]:
        return DelayedNesterov(config, SyncDilocoSettings.of(config), weights, every=1, spread=0.0)

    def recomputed_steps(self) -> type[RecomputedSteps]:
        from ps_cluster.training.recomputed_periods import RecomputedLocalPeriods

        return RecomputedLocalPeriods

    def equation(self, config: RunConfig, parts: UpdateParts) -> Slots:
        """Return the result of the outer step with the mean of a round's outer gradients."""
        return delayed_nesterov(SyncDilocoSettings.of(config), parts, every=1, spread=0.0)

    def batches_per_step(self, config: RunConfig) -> int:
        settings = SyncDilocoSettings.of(config)
        return settings.local_steps

    def worker_vectors(self, config: RunConfig) -> int:
        return 1

    def label(self, config: RunConfig) -> str:
        return f"{super().label(config)} H={config.batches_per_step}"
