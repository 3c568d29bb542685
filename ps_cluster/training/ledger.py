"""The ledger's columns, and what can be read out of its rows: the proof of who did what, and how stale it was.

A row belongs to a step id and is written when the step's gradient is accepted, in the same critical section; until then it
is all zeros. Accepted is applied, but for rounds, where the update follows with the last gradient. Each parameter server
keeps its own ledger, since each applies its own slice.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

# What the parameter server knows, then what the worker pushed with the gradient. Times are unix seconds.
STORE_COLUMNS = ("version", "staleness", "entered_time", "applied_time")
# A step's way: the chief schedules the dispatch it is in; it asks for parameters, may have to wait until it is admitted,
# has pulled them, has computed, and pushes (later than computed where the worker is slow on purpose); on the parameter
# server it enters the critical section when its turn has come, and there the update is applied.
WORKER_COLUMNS = (
    "worker", "pid", "examples", "correct", "loss", "learning_rate",
    "scheduled_time", "asked_time", "admitted_time", "pulled_time", "computed_time", "pushed_time",
)  # fmt: skip
NOBODY = 0.0  # in place of the time of scheduling, where no chief hands out steps
COLUMNS = STORE_COLUMNS + WORKER_COLUMNS
# What a worker does between two neighbours of PHASE_COLUMNS.
PHASE_COLUMNS = (
    "asked_time", "admitted_time", "pulled_time", "computed_time", "pushed_time", "entered_time", "applied_time",
)  # fmt: skip
# A push goes its way and waits for its turn.
PHASES = ("waits", "pulls", "computes", "slow on purpose", "pushes", "applies")
# What it does between two steps: it has nothing to do; or a dispatch that is scheduled is on its way to it; or, within a
# dispatch, the parameter server's answer is on its way back.
GAPS = ("idle", "dispatch", "returns")
APPLY_ROW = np.dtype([(name, np.float64) for name in ("ps", "step", "entered_time", "applied_time")])
"""A line of metrics/applies.csv."""
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
    rows[:, _INDEX["staleness"]] = column(ledgers, "staleness").max(axis=0)
    last = column(ledgers, "applied_time").argmax(axis=0)
    for name in ("entered_time", "applied_time"):
        rows[:, _INDEX[name]] = column(ledgers, name)[last, np.arange(len(last))]
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


def write_applies(path: Path, ledgers: np.ndarray) -> None:
    """A line for each update of each parameter server's slice: the fields of APPLY_ROW."""
    servers, steps = np.nonzero(column(ledgers, "version"))
    entered, applied_times = (column(ledgers, name)[servers, steps] for name in ("entered_time", "applied_time"))
    table = np.column_stack([servers, steps, entered, applied_times])
    header = ",".join(APPLY_ROW.names)
    np.savetxt(path, table, fmt=["%d", "%d", "%.6f", "%.6f"], delimiter=",", header=header, comments="")


def read_csv(path: Path, row: np.dtype = ROW) -> np.ndarray:
    """What `write_csv` or, with APPLY_ROW, `write_applies` has written: a structured array [lines] of `row`.

    Raises:
      OSError: there is no such file.
      ValueError: it has other columns.
    """
    header, *lines = path.read_text(encoding="utf-8").splitlines() or [""]
    if tuple(header.split(",")) != row.names:
        raise ValueError(f"{path.name} has other columns: {header}")
    return np.loadtxt(lines, row, delimiter=",", ndmin=1) if lines else np.empty(0, row)


def phase_times(rows: np.ndarray) -> np.ndarray:
    """float64 [phases + 1, steps] in unix seconds: when each phase began and the last one ended. `rows`: of ROW."""
    return np.stack([rows[name] for name in PHASE_COLUMNS])


def gap_times(rows: np.ndarray) -> np.ndarray:
    """float64 [gaps + 1, steps] in unix seconds: when each of GAPS before a step began and the last one ended.

    A worker is free from its last update on, and at first from when any worker asked for parameters. A step of a dispatch
    that it has not had yet comes to it from the moment it is free and the dispatch is scheduled. `rows`: of ROW.
    """
    asked = rows["asked_time"]
    free, handed, received = asked.copy(), asked.copy(), asked.copy()
    done = np.maximum(rows["applied_time"], rows["pushed_time"])  # applied is a time of another clock
    for worker in np.unique(rows["worker"]):
        mine = np.flatnonzero(rows["worker"] == worker)
        mine = mine[np.argsort(asked[mine], kind="stable")]
        scheduled = rows["scheduled_time"][mine]
        free[mine] = np.minimum(np.append(asked.min(), done[mine[:-1]]), asked[mine])
        another = np.diff(scheduled, prepend=NOBODY) != 0
        handed[mine] = np.where(another, np.clip(scheduled, free[mine], asked[mine]), free[mine])
        received[mine] = np.where(another, asked[mine], free[mine])
    return np.stack([free, handed, received, asked])


def phase_shares(rows: np.ndarray) -> dict[int, dict[str, float]]:
    """Worker → each of PHASES and GAPS → its share of the time from the first step asked for to the last update.

    A worker's shares sum to 1. `rows`: of ROW; without any, nobody has shares.
    """
    times, gaps = phase_times(rows), gap_times(rows)
    found = {}
    for worker in np.unique(rows["worker"]):
        mine = rows["worker"] == worker
        # Applied is a time of another clock, which may be behind the worker's.
        seconds = np.maximum(np.diff(times[:, mine], axis=0), 0).sum(axis=1)
        _, dispatch, returns = np.diff(gaps[:, mine], axis=0).sum(axis=1)
        shares = np.array([*seconds, returns, dispatch]) / (times[-1].max() - times[0].min())
        idle = max(0.0, 1 - float(shares.sum()))
        found[int(worker)] = dict(zip((*PHASES, "returns", "dispatch", "idle"), [*shares.tolist(), idle]))
    return found
