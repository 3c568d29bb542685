"""Mode sync-diloco: each worker trains alone for many steps; then the mean of their changes is one outer step.

See outer_steps.py for the papers, and sync_ps.py for the rounds.
"""

from __future__ import annotations

from dataclasses import replace

from ps_cluster.config import RunConfig
from ps_cluster.training.modes.outer_steps import OuterMode, OuterSettings
from ps_cluster.training.modes.sync_ps import SyncPs, SyncPsSettings


class SyncDilocoSettings(OuterSettings, SyncPsSettings):
    """The settings of sync-ps, and those of the outer step."""


class SyncDiloco(OuterMode, SyncPs):
    """Rounds of local SGD: the mean of all workers' periods becomes one outer step.

    The mode guarantees that every period of an update begins from the same version of the weights, so staleness is
    always 0. With `backup_workers` a period that comes too late for its round is dropped.

    The cluster, the rounds (shard, step source and dispatch) and the checks of the settings are those of `SyncPs`. The
    worker's step, the server's rule, and the equations with which the proof, the check of a run's updates, computes
    both again are those of `OuterMode`.
    """

    name = "sync-diloco"
    description = "each worker trains alone for many steps; then the mean of their changes is one outer step"
    Settings = SyncDilocoSettings
    has_tables = False  # a worker's local steps change all weights
    synchrony = replace(SyncPs.synchrony, takes_local_steps=True)
    unused_settings = frozenset({"staleness", "lookahead"})

    def label(self, config: RunConfig) -> str:
        return f"{SyncPs.label(self, config)} H={config.batches_per_step}"
