"""Mode async: each gradient is applied as it arrives."""

from __future__ import annotations

from pydantic import Field

from ps_cluster.config import RunConfig
from ps_cluster.config.modes import ClusterShape, ModeSettings
from ps_cluster.training.modes.base import DefaultMode


class AsyncSettings(ModeSettings):
    simulate_workers: int | None = Field(
        default=None,
        ge=1,
        le=1000,
        description="Emulate the staleness of k workers: each pull returns weights that are k - W versions old, where W is the "
        "number of workers.",
    )


class Async(DefaultMode):
    """Asynchronous training: each gradient is applied as it arrives, and no worker waits for another."""

    name = "async"
    description = "each gradient is applied as it arrives"
    Settings = AsyncSettings
    has_tables = True
    cluster = ClusterShape(pins_workers=True)
    unused_settings = frozenset()

    def check(self, config: RunConfig) -> None:
        super().check(config)
        wanted = AsyncSettings.of(config).simulate_workers
        if wanted is not None and wanted < config.cluster.workers:
            raise ValueError(
                f"mode.simulate_workers: got {wanted}: it has to be at least cluster.workers, {config.cluster.workers}"
            )
        if wanted is not None and config.least_workers < config.most_workers:
            raise ValueError(
                f"mode.simulate_workers: got {wanted}: it needs a fixed number of workers: leave out "
                "cluster.min_workers and cluster.max_workers"
            )

    def delay(self, config: RunConfig) -> int:
        return self.emulated_workers(config) - config.training_workers

    def simulated_workers(self, config: RunConfig) -> int | None:
        return AsyncSettings.of(config).simulate_workers

    def label(self, config: RunConfig) -> str:
        simulated = AsyncSettings.of(config).simulate_workers
        return self.name if simulated is None else f"{self.name} k={simulated}"
