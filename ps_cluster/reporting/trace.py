"""Where the workers' time went, out of the ledger: a trace of every step, and the shares. No TensorFlow.

The trace is in Chrome's format: open it in chrome://tracing or https://ui.perfetto.dev.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from ps_cluster.errors import UserError
from ps_cluster.run_dir import RunDir, write_whole
from ps_cluster.training.ledger import BETWEEN, PHASES, phase_shares, phase_times, read_csv


def write_trace(run_dir: RunDir) -> None:
    """Writes metrics/trace.json: for each worker process its steps, each with its phases, on one clock.

    Raises:
      UserError: the run has left no ledger.
    """
    write_whole(run_dir.trace, json.dumps({"traceEvents": list(_events(_rows(run_dir)))}))


def print_shares(run_dir: RunDir, console: Console) -> None:
    """A line for each worker."""
    table = Table(title="share of the training time [%]", title_justify="left", box=None, padding=(0, 2, 0, 0))
    for name in ("worker", *PHASES, BETWEEN):
        table.add_column(name, justify="right")
    for worker, by_phase in phase_shares(_rows(run_dir)).items():
        table.add_row(str(worker), *(f"{100 * share:.0f}" for share in by_phase.values()))
    console.print(table)
    console.print(f"trace  {run_dir.trace}  (chrome://tracing, ui.perfetto.dev)", soft_wrap=True, highlight=False)


def _rows(run_dir: RunDir) -> np.ndarray:
    if not run_dir.updates.is_file():
        raise UserError(f"run directory '{run_dir.root}' holds no {run_dir.updates.name}: no training has ended in it")
    return read_csv(run_dir.updates)


def _events(rows: np.ndarray) -> Iterator[dict[str, Any]]:
    times = phase_times(rows)
    start = times[0].min()
    for worker, pid in sorted({(int(row["worker"]), int(row["pid"])) for row in rows}):
        yield {"ph": "M", "name": "process_name", "pid": pid, "args": {"name": f"worker-{worker} (pid {pid})"}}
    for row, edges in zip(rows, times.T):
        about = {name: int(row[name]) for name in ("step", "version", "staleness")}
        whole = {"ph": "X", "pid": int(row["pid"]), "tid": 0}
        yield whole | {"name": f"step {about['step']}", "args": about} | _span(edges[0], edges[-1], start)
        for name, begins, ends in zip(PHASES, edges, edges[1:]):
            if ends > begins:
                yield whole | {"name": name} | _span(begins, ends, start)


def _span(begins: float, ends: float, start: float) -> dict[str, float]:
    """Microseconds since the first step of all was asked for."""
    return {"ts": round(1e6 * (begins - start), 1), "dur": round(1e6 * (ends - begins), 1)}
