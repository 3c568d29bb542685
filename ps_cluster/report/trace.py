"""Write the trace of a run, and print how each task spent its time, from the ledger. Imports no TensorFlow.

The trace is in Chrome's format, for chrome://tracing or https://ui.perfetto.dev. It has a lane for each task, which
shows what the task did at what time.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from rich.console import Console

from ps_cluster.errors import UserError
from ps_cluster.files.writing import write_whole
from ps_cluster.report.terminal import LEFT, RIGHT, plain_table
from ps_cluster.runs.ledger import NOT_SCHEDULED
from ps_cluster.runs.ledger_csv import APPLY_ROW, read_csv
from ps_cluster.runs.phases import GAPS, PHASES, gap_times, phase_times, time_shares
from ps_cluster.runs.run_dir import RunDir


@dataclass(frozen=True)
class Span:
    """A named interval of time. Times are unix seconds. `about`: further facts, e.g. the step, by their names."""

    name: str
    begins: float
    ends: float
    about: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class Lane:
    """The spans of one task: in one row, or in several rows if the task did things in parallel.

    The spans of a row follow each other or are nested. An outer span comes before the spans in it.
    """

    name: str
    rows: list[list[Span]]


def write_trace(run_dir: RunDir) -> None:
    """Write metrics/trace.json, which shows what every task did, on one time axis.

    Raises UserError if the run has left no ledger, the table of accepted pushes.
    """
    updates = _updates(run_dir)
    found = [*_chief_lane(updates), *_server_lanes(_applies(run_dir)), *_worker_lanes(updates)]
    start = min((row[0].begins for lane in found for row in lane.rows), default=0.0)
    write_whole(run_dir.trace, json.dumps({"traceEvents": list(_events(found, start))}))


def print_shares(run_dir: RunDir, console: Console) -> None:
    """Print a row for each worker and parameter server, which shows how it spent its time.

    Columns that are 0 in all rows are left out.
    """
    updates = _updates(run_dir)
    shares = {f"worker {worker}": share.by_name for worker, share in time_shares(updates).items()}
    applies = _applies(run_dir)
    seconds = applies["applied_time"] - applies["entered_time"]
    # The shares of parameter servers refer to the same period as those of workers.
    whole = np.ptp([updates["asked_time"].min(), updates["applied_time"].max()]) if len(updates) else 1.0
    for index in np.unique(applies["ps"]):
        shares[f"ps {index:.0f}"] = {"applies": float(seconds[applies["ps"] == index].sum() / whole)}
    texts = {
        name: [f"{100 * share[name]:.1f}" if name in share else "" for share in shares.values()]
        for name in (*PHASES, *reversed(GAPS))
    }
    texts = {name: column for name, column in texts.items() if not set(column) <= {"0.0", ""}}
    table = plain_table(task=LEFT, **dict.fromkeys(texts, RIGHT))
    table.title, table.title_justify = "share of the training time [%]", "left"
    for row in zip(shares, *texts.values()):
        table.add_row(*row)
    console.print(table)
    line = f"trace: {run_dir.trace}  (chrome://tracing, ui.perfetto.dev)"
    console.print(line, soft_wrap=True, highlight=False)


def _updates(run_dir: RunDir) -> np.ndarray:
    if not run_dir.updates.exists():
        raise UserError(f"run directory '{run_dir.root}' holds no {run_dir.updates.name}: no training has ended in it")
    return read_csv(run_dir.updates)


def _applies(run_dir: RunDir) -> np.ndarray:
    return read_csv(run_dir.applies, APPLY_ROW) if run_dir.applies.exists() else np.empty(0, APPLY_ROW)


def _events(found: Sequence[Lane], start: float) -> Iterator[dict[str, Any]]:
    """Yield the events of the trace, in which each lane is a process, and each row of a lane is a thread.

    Times are in microseconds since `start`.
    """
    for process, lane in enumerate(found):
        yield {"ph": "M", "name": "process_name", "pid": process, "args": {"name": lane.name}}
        yield {"ph": "M", "name": "process_sort_index", "pid": process, "args": {"sort_index": process}}
        for thread, row in enumerate(lane.rows):
            for span in row:
                times = {"ts": round(1e6 * (span.begins - start), 1), "dur": round(1e6 * (span.ends - span.begins), 1)}
                yield {"ph": "X", "pid": process, "tid": thread, "name": span.name, **times, "args": dict(span.about)}


def _chief_lane(updates: np.ndarray) -> Iterator[Lane]:
    """Yield the lane of the chief.

    Each dispatch (steps that the chief sends to a worker together) has two spans. Both begin when the chief schedules
    the dispatch. The outer span ends when the last of these steps is applied, and the inner one when the worker begins.
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


def _server_lanes(applies: np.ndarray) -> Iterator[Lane]:
    """Yield a lane for each parameter server, with a span for each update of its shard."""
    for index in np.unique(applies["ps"]):
        mine = np.sort(applies[applies["ps"] == index], order="entered_time")
        spans = [
            Span("apply", float(row["entered_time"]), float(row["applied_time"]), {"step": int(row["step"])})
            for row in mine
        ]
        yield Lane(f"ps-{index:.0f}", [spans])


def _worker_lanes(updates: np.ndarray) -> Iterator[Lane]:
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
    """Yield a span between each two neighbouring `edges`. Spans without duration are left out."""
    for name, begins, ends in zip(names, edges.tolist(), edges[1:].tolist(), strict=False):
        if ends > begins:
            yield Span(name, begins, ends)
