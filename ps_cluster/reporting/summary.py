"""summary.json: what a run did, read out of its directory. No TensorFlow."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ps_cluster.config import load_config
from ps_cluster.data.packed import KINDS
from ps_cluster.evaluation.records import merit
from ps_cluster.files.writing import write_json
from ps_cluster.reporting.closing_table import print_closing_table
from ps_cluster.reporting.dashboard import trainer_type
from ps_cluster.run_dir import RunDir, read_rows
from ps_cluster.training.training_clock import from_json

__all__ = ("print_closing_table", "refresh_evaluation", "write_summary")

SCHEMA = 2  # 1: train_seconds and examples_per_second began anew with every chief, startup_seconds was the last one's
UPDATES = ("scheduled", "applied", "duplicated", "lost", "rolled_back", "replays_refused", "mixed")
GRADIENTS = ("scheduled", "applied", "dropped", "per_update")
TIMES = ("goodput", "rolled_back_seconds", "interrupted_seconds")
STALENESS = ("mean", "p50", "p95", "max")

Json = dict[str, Any]
Restarts = Mapping[tuple[str, int], int]
"""(task type, index) → how often it was started again; a task that never was may be left out."""


def write_summary(
    run_dir: RunDir,
    *,
    outcome: str,
    wall_seconds: float,
    began: float,
    life: str,
    restarts: Restarts,
    silences: list[Json],
    usage: Json,
    machine: Json,
    network: Json,
) -> Json:
    """Writes summary.json and returns it.

    Where the leader left no result, because it was killed, the counts are those of its last row of progress, and what that
    row can't tell is null.

    Args:
      outcome: "completed", "stopped" or "failed".
      wall_seconds: from the start of the command to now.
      began: monotonic seconds when the command was started. life: of this start of the launcher, as in rows of progress.
        `wall_seconds`, `startup_seconds` and `session_train_seconds` are of it alone, `train_seconds` of all.
      silences: worker processes that were ended because they did nothing (cluster/silence.py).
      usage: "cpu_seconds", "peak_memory_bytes" and "processes" of this start of the launcher (cluster/usage.py).
      machine: what this start of the launcher was on (cluster/machine.py).
      network: "private", and "notice": what was said where it is not (cluster/isolation.py).
    """
    config = load_config(run_dir.config)
    rows = list(read_rows(run_dir.progress))
    training = _training(run_dir, rows)
    proof = training["proof"]
    addresses = _addresses(run_dir)
    workers = _workers(training["workers"], trainer_type(config.training.mode), addresses, restarts)
    summary = {
        "schema": SCHEMA,
        "outcome": outcome if proof is None or proof["holds"] else "failed",
        "mode": config.training.mode,
        "staleness_method": config.training.staleness_method,
        "simulate_workers": config.training.simulate_workers,
        "straggler": config.cluster.straggler,
        "dataset": config.data.dataset,
        "dataset_kind": KINDS.get(config.data.dataset),
        "model": config.model.name,
        "precision": config.model.precision,
        "seed": config.training.seed,
        "workers": workers,
        "worker_processes": len({p["pid"] for worker in workers for p in worker["processes"] if p["updates"]}),
        "parameter_servers": _parameter_servers(training["parameter_servers"], addresses, restarts),
        "restarts": {f"{task_type}-{index}": count for (task_type, index), count in sorted(restarts.items()) if count},
        "silences": silences,
        "updates": {name: training["updates"].get(name) for name in UPDATES},
        "gradients": {name: (training.get("gradients") or {}).get(name) for name in GRADIENTS},
        "proof": proof,
        "staleness": {name: training["staleness"].get(name) for name in STALENESS}
        | {"histogram": training["staleness"].get("histogram", {})},
        "examples_per_second": training["examples_per_second"],
        "train_seconds": training["train_seconds"],
        **{name: training[name] for name in TIMES},
        **_sessions(rows, life, training["train_seconds"]),
        "wall_seconds": wall_seconds,
        "startup_seconds": _startup_seconds([row for row in rows if row["life"] == life], began),
        "cpu_seconds": usage["cpu_seconds"],
        "peak_memory_bytes": usage["peak_memory_bytes"],
        "processes": usage["processes"],
        "machine": machine,
        "network": network,
        "evaluation": _evaluation(run_dir),
    }
    write_json(run_dir.summary, summary)
    return summary


def refresh_evaluation(run_dir: RunDir) -> Json:
    """Puts the scores there are now into a summary.json that was written before them, and returns it."""
    summary = json.loads(run_dir.summary.read_text(encoding="utf-8"))
    summary["evaluation"] = _evaluation(run_dir)
    write_json(run_dir.summary, summary)
    return summary


def _training(run_dir: RunDir, rows: list[Json]) -> Json:
    """The leader's result, unless rows of progress go on after it: then it is that of an earlier part of the run."""
    last = rows[-1] if rows else {}
    result = _read_json(run_dir.training_result)
    training = result if result and last.get("applied", 0) <= result["updates"]["applied"] else _from_progress(last)
    # A leader that starts again from a checkpoint can't know how far the one before it had come; the rows do.
    updates = training["updates"]
    updates["rolled_back"] = _rolled_back(rows)
    return training


def _from_progress(row: Json) -> Json:
    times = from_json(row.get("times", {}))
    return {
        "train_seconds": row.get("train_seconds", 0.0),
        "goodput": times.goodput,
        "rolled_back_seconds": times.rolled_back,
        "interrupted_seconds": times.interrupted,
        "examples_per_second": None,
        "updates": {"scheduled": row.get("scheduled", 0), "applied": row.get("applied", 0)},
        "proof": None,
        "staleness": {},
        "workers": row.get("workers", []),
        "parameter_servers": [],
    }


def _startup_seconds(rows: list[Json], began: float) -> float | None:
    """From the start of the command to the first update since, whatever happened after it; None where there was none."""
    for row in rows:
        if (first := row["times"]["resumed_update"]) is not None:
            return row["monotonic"] - (row["times"]["seconds"] - first) - began
    return None


def _sessions(rows: list[Json], life: str, train_seconds: float) -> Json:
    """Return how many commands had a part in the run, and the training seconds of this one."""
    mine = [row for row in rows if row["life"] == life]
    before = mine[0]["train_seconds"] if mine else train_seconds
    sessions = len({row["life"] for row in rows} | {life})
    return {"sessions": sessions, "session_train_seconds": max(0.0, train_seconds - before)}


def _rolled_back(rows: list[Json]) -> int:
    """Updates that rows reported as applied and that a later start of the leader did not have any more."""
    applied = [row["applied"] for row in rows]
    return sum(max(0, before - after) for before, after in zip(applied, applied[1:]))


def _workers(
    rows: list[Json], task_type: str, addresses: dict[tuple[str, int], Json], restarts: Restarts
) -> list[Json]:
    """One row an index: the work of all processes that had it, and the newest process's pid."""
    merged = []
    indices = {row["index"] for row in rows} | {index for kind, index in addresses if kind == task_type}
    for index in sorted(indices):
        processes = [
            {name: row[name] for name in ("pid", "updates", "examples")} for row in rows if row["index"] == index
        ]
        task = addresses.get((task_type, index), {})
        merged.append(
            {
                "index": index,
                "pid": task.get("pid") or processes[-1]["pid"],
                "address": task.get("address"),
                "updates": sum(process["updates"] for process in processes),
                "examples": sum(process["examples"] for process in processes),
                "restarts": restarts.get((task_type, index), 0),
                "processes": processes,
            }
        )
    return merged


def _parameter_servers(rows: list[Json], addresses: dict[tuple[str, int], Json], restarts: Restarts) -> list[Json]:
    parameters = {row["index"]: row["parameters"] for row in rows}
    indices = parameters.keys() | {index for task_type, index in addresses if task_type == "ps"}
    return [
        {
            "index": index,
            "pid": addresses.get(("ps", index), {}).get("pid"),
            "address": addresses.get(("ps", index), {}).get("address"),
            "parameters": parameters.get(index),
            "restarts": restarts.get(("ps", index), 0),
        }
        for index in sorted(indices)
    ]


def _addresses(run_dir: RunDir) -> dict[tuple[str, int], Json]:
    """(task type, index) → its row of cluster.json, that of the newest process."""
    return {(task["type"], task["index"]): task for task in (_read_json(run_dir.cluster) or {}).get("tasks", [])}


def _evaluation(run_dir: RunDir) -> Json:
    """The scores, each step once (the newest of it), in the order of steps; nulls and an empty history without any."""
    names = (
        "step", "test_accuracy", "test_loss", "validation_accuracy", "augmented_test_accuracy", "train_seconds", "examples"
    )  # fmt: skip
    by_step = {row["step"]: {name: row.get(name) for name in names} for row in read_rows(run_dir.evaluation)}
    history = [by_step[step] for step in sorted(by_step)]
    last = history[-1] if history else {}
    best = max(history, key=merit, default={})
    held_out = last.get("validation_accuracy")
    return {
        "test_accuracy": last.get("test_accuracy"),
        "test_loss": last.get("test_loss"),
        "validation_accuracy": held_out,
        "augmented_test_accuracy": last.get("augmented_test_accuracy"),
        "step": last.get("step"),
        "best_test_accuracy": best.get("test_accuracy"),
        "best_step": best.get("step"),
        "best_chosen_on": None if not history else "test" if held_out is None else "validation",
        "history": history,
    }


def _read_json(path: Path) -> Json | None:
    return json.loads(path.read_text(encoding="utf-8")) if path.is_file() else None
