"""Choose the cores of this machine that each worker is pinned to.

A worker that moves between cores loses its caches, and workers on the same core evict each other's data. In modes in
which workers do not wait for each other, they need not be equally fast, so each worker can keep its cores. Workers are
not pinned if a quota (a container with `--cpus`) allows less processor time than the visible processors have, because
only the system then knows which processors are free.
"""

from __future__ import annotations

from collections.abc import Sequence

from ps_cluster.config import RunConfig
from ps_cluster.config.setting_types import AUTO


def cores_of(worker: int, config: RunConfig, cores: Sequence[int], *, usable: int) -> Sequence[int]:
    """Return the cores that a worker may use: its own part of `cores` if workers are pinned, else all.

    With `cluster.pin_workers=auto`, workers are not pinned in modes where fast workers wait for slow ones, because e.g.
    three workers pinned to two cores are not equally fast. `usable`: how many of `cores` may be busy at the same time.
    """
    if usable < len(cores) or not keeps_to_cores(config):
        return cores
    return own_cores(worker, config.most_workers, cores)


def keeps_to_cores(config: RunConfig) -> bool:
    chosen = config.cluster.pin_workers
    return config.chosen_mode.cluster.pins_workers if chosen == AUTO else chosen


def own_cores(worker: int, workers: int, cores: Sequence[int]) -> Sequence[int]:
    """Return the worker's equal share of `cores`; a single core if there are more workers than cores."""
    if workers > len(cores):
        return [cores[worker % len(cores)]]
    each = len(cores) // workers
    return cores[worker * each : (worker + 1) * each]
