"""Mode sync-ps: rounds of synchronous training on the parameter server, with backup workers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pydantic import Field

from ps_cluster.catalogue.modes.mode import Mode, ModeSettings, Waits
from ps_cluster.catalogue.task_types import ON_DEATH, WORKER, OnDeath

if TYPE_CHECKING:
    from ps_cluster.config import RunConfig


class SyncPsSettings(ModeSettings):
    backup_workers: int = Field(
        default=0,
        ge=0,
        le=999,
        description="An update takes the first workers - this many gradients; the late ones are dropped.",
    )


class SyncPs(Mode):
    name = "sync-ps"
    says = "an update is the mean of a round's gradients, on the parameter server"
    Settings = SyncPsSettings
    most_parameter_servers = 1  # a single place must decide which gradient came too late
    waits = Waits.IN_ROUNDS
    is_stale = False
    # A round has a place for every worker and would wait for ever for one that was given up.
    on_death = {**ON_DEATH, WORKER: OnDeath(restarts=5, whole_cluster=False, dispensable=False)}
    is_simulated = True
    slice = "ps_cluster.training.coordinated:RoundSlice"
    work = "ps_cluster.training.work:Rounds"

    def check(self, config: RunConfig) -> None:
        super().check(config)
        backups = self.settings(config).backup_workers
        if backups and backups >= config.cluster.workers:
            raise ValueError(f"mode.backup_workers: got {backups}: it needs more workers than that")

    def late_workers(self, config: RunConfig) -> int:
        return self.settings(config).backup_workers

    def label(self, config: RunConfig) -> str:
        return (
            f"{self.name} b={self.settings(config).backup_workers}"
            if self.settings(config).backup_workers
            else self.name
        )


SYNC_PS = SyncPs()
