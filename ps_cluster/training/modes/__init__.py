"""The modes of training, found here by themselves; these three need no graph of their own, the others have a file each."""

from __future__ import annotations

from pydantic import Field

from ps_cluster.config import RunConfig
from ps_cluster.config.modes import CHIEF, ON_DEATH, WORKER, Flow, Mode, ModeSettings, OnDeath, Waits
from ps_cluster.config.registry import Part


class AsyncSettings(ModeSettings):
    simulate_workers: int | None = Field(
        default=None,
        ge=1,
        le=1000,
        description="Emulate the staleness of k workers: each pull returns the weights from k - W versions ago.",
    )


class Async(Mode):
    """Each gradient is applied as it arrives; no worker waits for another."""

    name = "async"
    says = "each gradient is applied as it arrives"
    Settings = AsyncSettings
    pins_workers = True
    ignores = frozenset()
    is_simulated = True

    def check(self, config: RunConfig) -> None:
        super().check(config)
        wanted = self.settings(config).simulate_workers
        if wanted is not None and wanted < config.cluster.workers:
            raise ValueError(
                f"mode.simulate_workers: got {wanted}: it needs at least cluster.workers, {config.cluster.workers}"
            )
        if wanted is not None and config.least_workers < config.most_workers:
            raise ValueError(
                f"mode.simulate_workers: got {wanted}: the delay is that of a fixed number of workers: leave out "
                "cluster.min_workers and cluster.max_workers"
            )

    def delay(self, config: RunConfig) -> int:
        return self.emulated_workers(config) - config.training_workers

    def emulated_workers(self, config: RunConfig) -> int:
        return self.settings(config).simulate_workers or config.training_workers

    def expected_staleness(self, config: RunConfig) -> int | None:
        return self.emulated_workers(config) - 1

    def label(self, config: RunConfig) -> str:
        simulated = self.settings(config).simulate_workers
        return self.name if simulated is None else f"{self.name} k={simulated}"


ASYNC = Async()


class Sync(Mode):
    """Synchronous training by all-reduce between the workers, without parameter servers."""

    name = "sync"
    says = "all workers average each gradient by all-reduce, without parameter servers"
    tasks = (WORKER,)
    flows = (Flow(WORKER, WORKER, "parts of gradients, in a ring"),)
    waits = Waits.FOR_ALL_REDUCE
    is_stale = False
    fixed_workers = "each all-reduce needs all of them"
    # Each all-reduce waits for every worker, and the strategy can't replace a worker that died.
    on_death = {**ON_DEATH, WORKER: OnDeath(restarts=5, whole_cluster=True, dispensable=False)}
    is_simulated = True
    trainer = Part.TRAIN_BY_ALL_REDUCE


SYNC = Sync()


class Single(Mode):
    """One process that trains by itself, as a baseline for the other modes."""

    name = "single"
    says = "one process trains by itself"
    tasks = (CHIEF,)
    is_stale = False
    fixed_workers = "it has none"


SINGLE = Single()
