"""The ledger's columns, and what can be read out of its rows: the proof of who did what, and how stale it was.

A row belongs to a step id and is written when the step's gradient is accepted, in the same critical section; until then it
is all zeros. Accepted is applied, but for rounds, where the update follows with the last gradient. Each parameter server
keeps its own ledger, since each applies its own slice.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

# What the parameter server knows, then what the worker pushed with the gradient. Times are unix seconds.
STORE_COLUMNS = ("version", "staleness", "applied_time")
# A step's way: it asks for parameters, may have to wait until it is admitted, has pulled them, has computed, and pushes
# (later than computed where the worker is slow on purpose); the update is applied after that.
WORKER_COLUMNS = (
    "worker", "pid", "examples", "correct", "loss", "learning_rate",
    "asked_time", "admitted_time", "pulled_time", "computed_time", "pushed_time",
)  # fmt: skip
COLUMNS = STORE_COLUMNS + WORKER_COLUMNS
# What a worker does between two neighbours of PHASE_COLUMNS.
PHASE_COLUMNS = ("asked_time", "admitted_time", "pulled_time", "computed_time", "pushed_time", "applied_time")
PHASES = ("waits", "pulls", "computes", "slow on purpose", "pushes (and waits)")
BETWEEN = "between steps"  # dispatch, and having nothing to do
ROW = np.dtype([(name, np.float64) for name in ("step", *COLUMNS)])
"""A line of metrics/updates.csv."""
_INDEX = {name: index for index, name in enumerate(COLUMNS)}


def column(rows: np.ndarray, name: str) -> np.ndarray:
    """One column of `rows` float64 [..., len(COLUMNS)]."""
    return rows[..., _INDEX[name]]


def applied(ledgers: np.ndarray) -> np.ndarray:
    """bool [steps]: whether each step is applied on every parameter server. `ledgers`: [ps, steps, columns]."""
    return (column(ledgers, "version") > 0).all(axis=0)


def merged_rows(ledgers: np.ndarray) -> np.ndarray:
    """float64 [applied, columns]: one row for each applied step, in step order.

    The staleness of an update is that of its stalest slice; an update is applied when its last slice is.
    """
    rows = ledgers[0].copy()
    for name, latest in (("staleness", np.max), ("applied_time", np.max)):
        rows[:, _INDEX[name]] = latest(column(ledgers, name), axis=0)
    return rows[applied(ledgers)]


def per_worker(rows: np.ndarray) -> list[dict[str, int]]:
    """What each worker process did: index, pid, updates, examples. A worker that was restarted has several rows."""
    keys = np.stack([column(rows, "worker"), column(rows, "pid")], axis=1)
    found = np.unique(keys, axis=0)
    examples = column(rows, "examples")
    workers = []
    for key in found:
        mine = (keys == key).all(axis=1)
        workers.append(
            {
                "index": int(key[0]),
                "pid": int(key[1]),
                "updates": int(mine.sum()),
                "examples": int(examples[mine].sum()),
            }
        )
    return workers


def staleness_summary(rows: np.ndarray) -> dict:
    """Mean, percentiles, maximum and histogram of the staleness of the updates; all None or empty without any."""
    staleness = column(rows, "staleness").astype(np.int64)
    if not staleness.size:
        return {"mean": None, "p50": None, "p95": None, "max": None, "histogram": {}}
    values, counts = np.unique(staleness, return_counts=True)
    return {
        "mean": float(staleness.mean()),
        "p50": int(np.percentile(staleness, 50, method="lower")),
        "p95": int(np.percentile(staleness, 95, method="lower")),
        "max": int(staleness.max()),
        "histogram": {str(value): int(count) for value, count in zip(values, counts)},
    }


def write_csv(path: Path, ledgers: np.ndarray) -> None:
    """A line for each applied step: the fields of ROW."""
    steps = np.flatnonzero(applied(ledgers))
    table = np.column_stack([steps, merged_rows(ledgers)])
    whole = {"version", "staleness", "worker", "pid", "examples", "correct"}
    formats = ["%d", *("%d" if name in whole else "%.9g" if "time" not in name else "%.6f" for name in COLUMNS)]
    np.savetxt(path, table, fmt=formats, delimiter=",", header=",".join(ROW.names), comments="")


def read_csv(path: Path) -> np.ndarray:
    """What `write_csv` has written: a structured array [applied steps] of ROW.

    Raises:
      OSError: there is no such file.
      ValueError: it has other columns.
    """
    header, *lines = path.read_text(encoding="utf-8").splitlines() or [""]
    if tuple(header.split(",")) != ROW.names:
        raise ValueError(f"{path.name} has other columns: {header}")
    return np.loadtxt(lines, ROW, delimiter=",", ndmin=1) if lines else np.empty(0, ROW)


def phase_times(rows: np.ndarray) -> np.ndarray:
    """float64 [phases + 1, steps] in unix seconds: when each phase began and the last one ended. `rows`: of ROW."""
    return np.stack([rows[name] for name in PHASE_COLUMNS])


def phase_shares(rows: np.ndarray) -> dict[int, dict[str, float]]:
    """Worker → each of PHASES and BETWEEN → its share of the time from the first step asked for to the last update.

    A worker's shares sum to 1. `rows`: of ROW; without any, nobody has shares.
    """
    times = phase_times(rows)
    found = {}
    for worker in np.unique(rows["worker"]):
        # Applied is a time of another clock, which may be behind the worker's.
        seconds = np.maximum(np.diff(times[:, rows["worker"] == worker], axis=0), 0).sum(axis=1)
        shares = seconds / (times[-1].max() - times[0].min())
        found[int(worker)] = dict(zip((*PHASES, BETWEEN), [*shares.tolist(), max(0.0, 1 - float(shares.sum()))]))
    return found
