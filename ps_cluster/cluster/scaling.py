"""Decide which workers start and which stop where the user asks for another number of them. Pure functions."""

from __future__ import annotations

from ps_cluster.catalogue.task_types import Task
from ps_cluster.cluster.events_and_actions import Actions, AnswerScale, Scale
from ps_cluster.cluster.topology import ClusterTopology
from ps_cluster.config import RunConfig


def refusal(config: RunConfig, workers: int) -> str | None:
    """Return why a run can't have so many workers, on one line; None if it can."""
    if why := config.mode_kind.fixed_workers and config.mode_kind.cannot_scale:
        return f"--workers: got {workers}: {why}"
    least, most = config.least_workers, config.most_workers
    if least <= workers <= most:
        return None
    between = f"{least} to {most}" if least < most else f"{least} and no other number of"
    return f"--workers: got {workers}: this run was started for {between} workers (run --min-workers, --max-workers)"


def scale(config: RunConfig, topology: ClusterTopology, workers: int) -> Actions:
    """Return the actions that lead to so many workers: the lowest spare index starts, the highest stops."""
    if line := refusal(config, workers):
        return (AnswerScale(line, refused=True),)
    more = workers - len(topology.workers)
    start, stop = topology.spare[: max(0, more)], topology.workers[len(topology.workers) + min(0, more) :]
    if not more:
        return (AnswerScale(f"{_count(workers)} already: nothing to do"),)
    done = f"started {_listed(start)}" if start else f"stopped {_listed(stop)}; others take their steps"
    return Scale(tuple(start), tuple(stop)), AnswerScale(f"{done}; now {_count(workers)}")


def _count(workers: int) -> str:
    return "1 worker" if workers == 1 else f"{workers} workers"


def _listed(tasks: list[Task]) -> str:
    return ", ".join(map(str, tasks))
