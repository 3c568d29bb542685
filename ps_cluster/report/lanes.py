"""Turn the ledger of a run into lanes, which show what each task did at what time. Imports no TensorFlow."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import numpy as np

from ps_cluster.runs.ledger import NOT_SCHEDULED
from ps_cluster.runs.phases import GAPS, PHASES, gap_times, phase_times


@dataclass(frozen=True)
class Span:
    """A named interval. Times are unix seconds."""

    name: str
    begins: float
    ends: float
    about: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class Lane:
    """The spans of one task: in one row, or in several if it did things in parallel.

    The spans of a row follow each other, or they are nested, and the outer span comes first.
    """

    name: str
    rows: list[list[Span]]


def chief_lane(updates: np.ndarray) -> Iterator[Lane]:
    """Yield the lane of the chief.

    Each dispatch has a span until its last update, and one until a worker begins with it.
    """
    scheduled = np.sort(updates[updates["scheduled_time"] != NOT_SCHEDULED], order=["scheduled_time", "asked_time"])
    if not len(scheduled):
        return
    times, firsts = np.unique(scheduled["scheduled_time"], return_index=True)
    rows: list[list[Span]] = []
    for time, steps in zip(times.tolist(), np.split(scheduled, firsts[1:])):
        about = {"steps": len(steps), "first step": int(steps["step"].min()), "worker": int(steps["worker"][-1])}
        whole = Span("dispatch", time, float(steps["applied_time"].max()), about)
        queued = Span("queued", time, max(time, float(steps["asked_time"][0])))
        free = next((row for row in rows if row[-2].ends <= time), None)
        if free is None:
            rows.append(free := [])
        free += whole, queued
    yield Lane("chief", rows)


def server_lanes(applies: np.ndarray) -> Iterator[Lane]:
    """Yield a lane for each parameter server, with a span for each update of its shard."""
    for index in np.unique(applies["ps"]):
        mine = np.sort(applies[applies["ps"] == index], order="entered_time")
        spans = [
            Span("apply", float(row["entered_time"]), float(row["applied_time"]), {"step": int(row["step"])})
            for row in mine
        ]
        yield Lane(f"ps-{index:.0f}", [spans])


def worker_lanes(updates: np.ndarray) -> Iterator[Lane]:
    """Yield a lane for each worker, with a span for each step, the phases in it, and the gaps between steps."""
    phases, gaps = phase_times(updates), gap_times(updates)
    for index in np.unique(updates["worker"]):
        mine = np.flatnonzero(updates["worker"] == index)
        mine = mine[np.argsort(phases[0, mine], kind="stable")]
        row: list[Span] = []
        for step in mine:
            about = {name: int(updates[step][name]) for name in ("step", "version", "staleness", "pid")}
            row += _spans(GAPS, gaps[:, step])
            row.append(Span(f"step {about['step']}", float(phases[0, step]), float(phases[-1, step]), about))
            row += _spans(PHASES, phases[:, step])
        row += _spans(("idle",), np.array([phases[-1, mine[-1]], phases[-1].max()]))
        pids = ", ".join(f"{pid:.0f}" for pid in dict.fromkeys(updates["pid"][mine].tolist()))
        yield Lane(f"worker-{index:.0f} (pid {pids})", [row])


def _spans(names: tuple[str, ...], edges: np.ndarray) -> Iterator[Span]:
    """Yield a span between each two neighbours of `edges`, without spans that take no time."""
    for name, begins, ends in zip(names, edges.tolist(), edges[1:].tolist(), strict=False):
        if ends > begins:
            yield Span(name, begins, ends)
