"""Costs out of a finished run: wall seconds from its ledger, processor seconds from its summary."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ps_cluster.config import RunConfig, load_config
from ps_cluster.errors import UserError
from ps_cluster.reporting.trace import read_ledger
from ps_cluster.run_dir import RunDir
from ps_cluster.simulation.costs import Costs, make_costs

WIRE_BYTES = {"float32": 4, "bfloat16": 2}
COLD_STEPS = 8  # the first ones of each worker, in which graphs are still made


@dataclass(frozen=True)
class FinishedRun:
    """What a run has left."""

    root: Path
    config: RunConfig
    summary: dict[str, Any]
    rows: np.ndarray  # of the ledger, with its columns' names

    @property
    def parameters(self) -> int:
        return sum(server["parameters"] for server in self.summary["parameter_servers"])

    def cpu_seconds(self, kind: str, startup: float) -> float:
        """Of all processes of a kind ("worker", "ps", "chief") together, without that of their start-up."""
        took = [process["cpu_seconds"] for process in self.summary["processes"] if process["type"] == kind]
        return max(0.0, sum(seconds or 0.0 for seconds in took) - startup * len(took))


def read_run(root: Path) -> FinishedRun:
    """Raises UserError where no training has ended in `root`, or it tells less than is needed."""
    run_dir = RunDir.open(root)
    rows = read_ledger(run_dir)
    try:
        summary = json.loads(run_dir.summary.read_text())
    except (OSError, ValueError) as error:
        raise UserError(f"run directory '{root}' holds no readable {run_dir.summary.name}") from error
    if not summary.get("processes"):
        raise UserError(f"{run_dir.summary.name} in '{root}': processes: got none: their CPU seconds are needed")
    return FinishedRun(root, load_config(run_dir.config), summary, rows)


def calibrate(run: FinishedRun, base: Costs) -> Costs:
    """The costs of a run of mode async.

    What one run can't tell is taken from `base`: the costs by parameter, of looking, and of starting up.
    Raises:
      UserError: a run of another mode, or too short.
    """
    if run.config.training.mode != "async":
        raise UserError(f"run directory '{run.root}': training.mode: got '{run.config.training.mode}': it needs async")
    walls, cpu = _wall_seconds(run), _cpu_seconds(run, base)
    servers = len(run.summary["parameter_servers"])
    share = run.parameters / servers
    pull, push = _split(cpu["ps"] / servers, walls["pull"], walls["push"])
    of_pull, of_apply = base.pull_seconds_per_parameter * share, base.apply_seconds_per_parameter * share
    size = run.config.cluster.steps_per_dispatch
    chief = cpu["chief"] * size
    measured = {
        "measured_on": _about(run, servers),
        "parameters": run.parameters,
        "bytes_per_parameter": WIRE_BYTES[run.config.wire],
        "images_per_step": run.config.examples_per_step,
        "steps_per_dispatch": size,
        "compute_seconds": walls["compute"],
        "compute_cv": walls["compute_cv"],
        "worker_cpu_seconds": cpu["worker"],
        "pull_fixed_seconds": max(0.0, pull - of_pull),
        "push_fixed_seconds": max(0.0, push - of_apply),
        "server_cv": walls["push_cv"],
        "pull_delay_seconds": max(0.0, walls["pull"] - pull),
        "push_delay_seconds": max(0.0, walls["push"] - push),
        "step_gap_seconds": walls["step_gap"],
        "dispatch_delay_seconds": max(0.0, walls["dispatch_gap"] - chief),
        "chief_seconds": chief,
    }
    return make_costs(base.model_dump() | measured, str(run.root))


def _about(run: FinishedRun, servers: int) -> str:
    workers, model = run.config.training_workers, run.config.model
    told = f"{run.root.name}: {model.name}, {model.precision}, workers {workers}, ps {servers}, steps {len(run.rows)}"
    return told if workers == 1 else f"{told}; the workers' waiting for each other is in the times: take a run with 1"


def _split(whole: float, one: float, other: float) -> tuple[float, float]:
    """`whole` in the proportion of `one` to `other`."""
    return whole * one / (one + other), whole * other / (one + other)


def _cpu_seconds(run: FinishedRun, base: Costs) -> dict[str, float]:
    """By a step, of all processes of a kind."""
    kinds = ("worker", "ps", "chief")
    return {kind: run.cpu_seconds(kind, base.startup_cpu_seconds) / len(run.rows) for kind in kinds}


def _wall_seconds(run: FinishedRun) -> dict[str, float]:
    """Means over all workers, and two coefficients of variation."""
    size = run.config.cluster.steps_per_dispatch
    steps = [_steps_of(run.rows[run.rows["pid"] == pid], size) for pid in np.unique(run.rows["pid"])]
    phases, step_gaps, dispatch_gaps = (np.concatenate(parts, axis=-1) for parts in zip(*steps, strict=True))
    if not (len(step_gaps) and len(dispatch_gaps)):
        raise UserError(f"run directory '{run.root}': {len(run.rows)} steps are too few to calibrate from")
    pull, compute, push = phases
    return {
        "pull": float(pull.mean()),
        "compute": float(compute.mean()),
        "compute_cv": float(compute.std() / compute.mean()),
        "push": float(push.mean()),
        "push_cv": float(push.std() / push.mean()),
        "step_gap": float(step_gaps.mean()),
        "dispatch_gap": float(dispatch_gaps.mean()),
    }


def _steps_of(rows: np.ndarray, steps_per_dispatch: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Of one worker process: seconds [3, steps] of pull, compute, push; of the gaps in a dispatch; of those between two."""
    rows = np.sort(rows, order="asked_time")[COLD_STEPS:]
    edges = ("admitted_time", "pulled_time", "computed_time", "pushed_time", "applied_time")
    pull, compute, _, push = np.diff([rows[name] for name in edges], axis=0)
    gaps = rows["asked_time"][1:] - rows["applied_time"][:-1]
    same_dispatch = np.diff(rows["step"] // steps_per_dispatch) == 0
    return np.stack([pull, compute, push]), gaps[same_dispatch], gaps[~same_dispatch]
