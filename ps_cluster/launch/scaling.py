"""Decide which workers start and which stop when the user asks for another number of workers."""

from __future__ import annotations

from ps_cluster.config import RunConfig
from ps_cluster.files.values import counted
from ps_cluster.launch.actions import Actions, AnswerScale, Scale
from ps_cluster.launch.topology import ClusterTopology


def refusal(config: RunConfig, workers: int) -> str | None:
    """Return why a run can't have this number of workers, on one line; None if it can."""
    if why := config.mode_kind.why_fixed:
        return f"--workers: got {workers}: {why}"
    least, most = config.least_workers, config.most_workers
    if least <= workers <= most:
        return None
    between = f"{least} to {most}" if least < most else f"{least} and no other number of"
    return f"--workers: got {workers}: this run was started for {between} workers (run --min-workers, --max-workers)"


def scale(config: RunConfig, topology: ClusterTopology, workers: int) -> Actions:
    """Return the actions that lead to this number of workers: the lowest spare indices start, or the highest stop."""
    if line := refusal(config, workers):
        return (AnswerScale(line, refused=True),)
    more = workers - len(topology.workers)
    start, stop = topology.spare[: max(0, more)], topology.workers[len(topology.workers) + min(0, more) :]
    if not more:
        return (AnswerScale(f"{counted(workers, 'worker')} already: nothing to do"),)
    names = ", ".join(map(str, start or stop))
    done = f"started {names}" if start else f"stopped {names}; other workers take their steps"
    now = f"now {counted(workers, 'worker')}{_rate_of(config, workers)}"
    return Scale(tuple(start), tuple(stop)), AnswerScale(f"{done}; {now}")


def _rate_of(config: RunConfig, workers: int) -> str:
    """Return the end of a line about a learning rate that more workers lower; empty if it is not lowered."""
    begun = config.training_workers
    if not config.mode_kind.lowers_rate or workers <= begun:
        return ""
    return f", with {(begun / workers) ** 2:.2g} times the learning rate, which suits {counted(begun, 'worker')}"
