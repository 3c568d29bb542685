"""Write the trace of a run, and print how each task spent its time, from the ledger. Imports no TensorFlow.

The trace is in Chrome's format, for chrome://tracing or https://ui.perfetto.dev.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from rich.console import Console

from ps_cluster.errors import UserError
from ps_cluster.files.writing import write_whole
from ps_cluster.report.lanes import Lane, chief_lane, server_lanes, worker_lanes
from ps_cluster.report.terminal import LEFT, RIGHT, plain_table
from ps_cluster.runs.ledger_csv import APPLY_ROW, read_csv
from ps_cluster.runs.phases import GAPS, PHASES, time_shares
from ps_cluster.runs.run_dir import RunDir


def write_trace(run_dir: RunDir) -> None:
    """Write metrics/trace.json: what every task did, on one clock. Raises UserError if the run has left no ledger."""
    updates = _updates(run_dir)
    found = [*chief_lane(updates), *server_lanes(_applies(run_dir)), *worker_lanes(updates)]
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
    # These shares are of the same time as those of the workers.
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
    """Yield events with a process for each lane and a thread for each row. Times are in microseconds since `start`."""
    for process, lane in enumerate(found):
        yield {"ph": "M", "name": "process_name", "pid": process, "args": {"name": lane.name}}
        yield {"ph": "M", "name": "process_sort_index", "pid": process, "args": {"sort_index": process}}
        for thread, row in enumerate(lane.rows):
            for span in row:
                times = {"ts": round(1e6 * (span.begins - start), 1), "dur": round(1e6 * (span.ends - span.begins), 1)}
                yield {"ph": "X", "pid": process, "tid": thread, "name": span.name, **times, "args": dict(span.about)}
