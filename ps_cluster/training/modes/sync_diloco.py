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
    """Local SGD in rounds: the mean of the changes of all workers' weights becomes one outer step.

    The mode guarantees that all changes in a mean begin from the same version of the weights, so staleness is always 0.
    With `backup_workers`, a change that comes too late for its round is dropped.

    `SyncPs` provides the cluster, the rounds (shard, step source and dispatch) and the checks of the settings.
    `OuterMode` provides the worker's step and the server's rule. It also provides the equations that compute both again
    when a run's updates are checked.
    """

    name = "sync-diloco"
    description = "each worker trains alone for many steps; then the mean of their changes is one outer step"
    Settings = SyncDilocoSettings
    has_tables = False  # a worker's local steps change all weights
    synchrony = replace(SyncPs.synchrony, takes_local_steps=True)
    unused_settings = frozenset({"staleness", "lookahead"})

    def label(self, config: RunConfig) -> str:
        return f"{SyncPs.label(self, config)} H={config.batches_per_step}"
