"""Which cores of this machine each worker keeps to.

A worker that moves between cores leaves its caches behind, and every worker that runs beside it there takes some of them.
In modes without waiting, workers need not be equally fast, so each may stay where it is. Under a quota (a container
with `--cpus`) that allows less than the processors it sees, only the system knows which of them are free: nobody is pinned.
"""

from __future__ import annotations

from collections.abc import Sequence

from ps_cluster.config import RunConfig


def cores_of(worker: int, config: RunConfig, cores: Sequence[int], *, usable: int) -> Sequence[int]:
    """The cores that a worker may use: a part of them, where the configuration asks for it.

    By itself ("auto") not in modes in which the quick wait for the slow: three workers on two cores are not equally fast.

    Args:
      usable: how many of them may be busy at the same time.
    """
    if usable < len(cores) or not keeps_to_cores(config):
        return cores
    return own_cores(worker, config.cluster.workers, cores)


def keeps_to_cores(config: RunConfig) -> bool:
    """Return whether each worker keeps to a part of the cores."""
    chosen = config.cluster.pin_workers
    return config.mode_kind.pins_workers if chosen == "auto" else chosen


def own_cores(worker: int, workers: int, cores: Sequence[int]) -> Sequence[int]:
    """Equal parts of `cores`, or one of them where there are more workers."""
    if workers > len(cores):
        return [cores[worker % len(cores)]]
    each = len(cores) // workers
    return cores[worker * each : (worker + 1) * each]
