"""A finished run of known times, in the real file formats."""

from pathlib import Path

import numpy as np

from ps_cluster.config import build_config
from ps_cluster.files.json_rows import append_row
from ps_cluster.files.writing import write_json, write_whole
from ps_cluster.runs import ledger_csv
from ps_cluster.runs.phases import PHASE_COLUMNS
from ps_cluster.runs.proof import RoundShape
from ps_cluster.runs.run_dir import RunDir
from tests.helpers.ledgers import rows_of, write_journal
from tests.helpers.rows import progress_row

PULL_S, COMPUTE_S, PUSH_S, GAP_S, DISPATCH_GAP_S = 0.003, 0.010, 0.001, 0.002, 0.004
CPU_OF_STEP = {"worker": 0.011, "ps": 0.002, "chief": 0.0005}
PARAMETERS = 1000
SIZES = {4: 4, "auto": 31}  # cluster.steps_per_dispatch → what steps of this length make of it


def step_seconds(setting: int | str) -> float:
    """Mean of a step and the gap after it."""
    return PULL_S + COMPUTE_S + PUSH_S + GAP_S + (DISPATCH_GAP_S - GAP_S) / SIZES[setting]


def write_run(
    root: Path,
    *,
    steps: int = 400,
    startup_s: float = 2.0,
    dispatch: int | str = "auto",
    table_weights: int | None = None,
    **settings,
) -> Path:
    """Of one worker and one ps, whose steps all take the same; `settings`: dotted keys with __ for the dot.

    Args:
      table_weights: the weights in tables, of which a step has 5 rows of 4; None without tables.
    """
    given = {key.replace("__", "."): value for key, value in settings.items()}
    fixed = {"model.name": "tutorial_cnn", "model.precision": "float32", "cluster.workers": 1}
    fixed["cluster.steps_per_dispatch"] = dispatch
    config = build_config(None, fixed | given)
    run_dir = RunDir.create(root)
    write_whole(run_dir.config, config.to_yaml())
    journal = write_journal(run_dir.journal(0, 1), _rows(steps, config.examples_per_step, SIZES[dispatch]))
    ledger_csv.write_updates(run_dir.updates, [journal], RoundShape(1, 1, 1), window=2**16)
    processes = [
        {"type": kind, "index": 0, "pid": 7, "cpu_seconds": startup_s + seconds * steps}
        for kind, seconds in CPU_OF_STEP.items()
    ]
    summary = {
        "outcome": "completed",
        "parameter_servers": [{"index": 0, "parameters": PARAMETERS}],
        "processes": processes,
        "train_seconds": steps * step_seconds(dispatch),
        "examples_per_second": config.examples_per_step / step_seconds(dispatch),
        "staleness": {"mean": 0.0},
        "machine": {"processor": "Some EPYC", "avx512_bf16": True, "amx_bf16": False},
    }
    if table_weights:
        summary["parameter_servers"][0] |= {"parameters": PARAMETERS + table_weights, "table_parameters": table_weights}
        summary["tables"] = {"rows": 5 * steps, "row_values": 5 * 4 * steps}
    write_json(run_dir.summary, summary)
    for phase in ("connecting", "training", "ended"):
        append_row(run_dir.progress, progress_row(phase=phase))
    return root


def _rows(steps: int, examples: int, steps_per_dispatch: int) -> np.ndarray:
    ids = np.arange(steps)
    asked = ids * (PULL_S + COMPUTE_S + PUSH_S + GAP_S) + ids // steps_per_dispatch * (DISPATCH_GAP_S - GAP_S)
    edges = asked + np.cumsum([0, 0, PULL_S, COMPUTE_S, 0, PUSH_S / 2, PUSH_S / 2])[:, None]
    scheduled = 1.0 + ids // steps_per_dispatch
    columns = dict(zip(PHASE_COLUMNS, edges)) | {"version": ids + 1, "pid": 7, "examples": examples}
    return rows_of(ids, scheduled_time=scheduled, **columns)
