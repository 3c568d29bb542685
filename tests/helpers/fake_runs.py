"""Write finished run directories with generated numbers, in the real file formats."""

from __future__ import annotations

import heapq
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ps_cluster.config import RunConfig, build_config
from ps_cluster.files.json_rows import append_row
from ps_cluster.files.writing import write_json, write_whole
from ps_cluster.runs.result_rows import EvaluationRow
from ps_cluster.runs.run_dir import RunDir
from tests.helpers.ledgers import csv_of, rows_of

START = 1_800_000_000.0
WORKERS = 3
FAKE_COLUMNS = (
    "version", "staleness", "worker",
    "asked_time", "admitted_time", "pulled_time", "computed_time", "pushed_time", "applied_time",
)  # fmt: skip


@dataclass(frozen=True)
class Fake:
    """The contents of a fake run. `scores`: (test accuracy or error, train seconds, examples).

    The last `broken` scores have a loss that is not finite, and no error. `limit_s`: the time limit that stopped the run.
    """

    settings: dict[str, Any]
    scores: tuple[tuple[float, float, int], ...] = ((0.40, 10.0, 5000), (0.60, 20.0, 10_000))
    examples: int = 10_240
    train_seconds: float = 20.0
    dataset_kind: str = "real"
    outcome: str = "completed"
    broken: int = 0
    limit_s: float | None = None
    machine: dict[str, Any] | None = None
    rows: tuple[tuple[float, ...], ...] = ()
    """The rows of the ledger: values of FAKE_COLUMNS. Times are seconds since START."""
    metric: str = "accuracy"
    unit: str = "images"
    guess: float | None = 0.1


def config_of(settings: dict[str, Any]) -> RunConfig:
    fixed = {
        "data.dataset": "cifar10", "model.name": "tutorial_cnn", "model.precision": "float32",
        "cluster.pin_workers": False,
    }  # fmt: skip
    config = build_config(None, fixed | settings)  # has the rates of its mode, which a chosen method would remove
    if "staleness.method" in settings or config.staleness.method == "none":
        return config
    return config.with_values({"staleness.method": "none"})


def write_run(root: Path, fake: Fake) -> Path:
    run_dir = RunDir.create(root)
    config = config_of(fake.settings)
    write_whole(run_dir.config, config.to_yaml())
    names = (f"test_{fake.metric}", "train_seconds", "examples")
    losses = [1.0] * (len(fake.scores) - fake.broken) + [None] * fake.broken
    history = [
        {"step": step, "test_loss": loss, **dict(zip(names, score))}
        for step, (loss, score) in enumerate(zip(losses, fake.scores), start=1)
    ]
    for row in history:
        if row["test_loss"] is None and fake.metric == "error":
            row["test_error"] = None
        append_row(run_dir.evaluation, EvaluationRow(**row))
    write_json(run_dir.summary, _summary(config, fake, history))
    if fake.rows:
        write_whole(run_dir.updates, _ledger(fake))
    return root


def _summary(config: RunConfig, fake: Fake, history: list[dict]) -> dict:
    stale = np.array([row[1] for row in fake.rows] or [0])
    values, counts = np.unique(stale.astype(int), return_counts=True)
    return {
        "schema": 1,
        "outcome": fake.outcome,
        "early_stop": None if fake.limit_s is None else {"max_seconds": fake.limit_s},
        "mode": config.mode.name,
        "dataset": config.data.dataset,
        "dataset_kind": fake.dataset_kind,
        "unit": fake.unit,
        "guess": fake.guess,
        "model": config.model.name,
        "precision": config.model.precision,
        "seed": config.training.seed,
        "workers": [{"index": 0, "pid": 1, "updates": 80, "examples": fake.examples}],
        "updates": {"scheduled": 80, "applied": 80, "replays_refused": 1},
        "staleness": {
            "mean": float(stale.mean()),
            "p95": int(np.percentile(stale, 95)),
            "max": int(stale.max()),
            "histogram": {str(value): int(count) for value, count in zip(values, counts)},
        },
        "train_seconds": fake.train_seconds,
        "evaluation": (history[-1] if history else {}) | {"history": history},
        "cpu_seconds": 31.5,
        "peak_memory_bytes": 900 * 2**20,
        "machine": fake.machine,
    }


def _ledger(fake: Fake) -> str:
    columns = dict(zip(FAKE_COLUMNS, np.transpose(fake.rows), strict=True))
    columns |= {name: START + columns[name] for name in FAKE_COLUMNS if name.endswith("_time")}
    columns |= {"scheduled_time": columns["asked_time"], "entered_time": columns["applied_time"]}
    columns |= {"pid": 100 + columns["worker"], "examples": 128, "rate_factor": 1.0, "metric": 12}
    return csv_of(rows_of(range(len(fake.rows)), **columns, loss=2.3, learning_rate=0.1))


def simulated_rows(*, mode: str, slow: float, seed: int, updates: int = 240) -> tuple[tuple[float, ...], ...]:
    """Return the ledger of a simulated cluster of three workers, the last of which is `slow` times slower."""
    random = np.random.default_rng(seed)
    own_steps = [0.030, 0.032, 0.031]
    if mode == "sync-ps":
        return tuple(_synchronous(own_steps, slow, random, updates))
    return tuple(_asynchronous(own_steps, slow, random, updates))


def _step(random: np.random.Generator, own: float, factor: float) -> tuple[float, float, float]:
    """Return the seconds from the start of a step until it has pulled, computed and pushed."""
    compute = own * random.uniform(0.9, 1.2)
    return 0.004, 0.004 + compute, 0.004 + compute * factor


def _asynchronous(own_steps: list[float], slow: float, random: np.random.Generator, updates: int):
    version, queue = 0, []

    def start(worker: int, asked: float) -> None:
        pulled, computed, pushed = _step(random, own_steps[worker], slow if worker == WORKERS - 1 else 1.0)
        times = (asked, asked, asked + pulled, asked + computed, asked + pushed)
        heapq.heappush(queue, (asked + pushed + 0.003, worker, version, times))

    for worker in range(WORKERS):
        start(worker, 0.001 * worker)
    for _ in range(updates):
        applied, worker, pulled_version, times = heapq.heappop(queue)
        version += 1
        yield version, version - 1 - pulled_version, worker, *times, applied
        start(worker, applied + 0.001)


def _synchronous(own_steps: list[float], slow: float, random: np.random.Generator, updates: int):
    now = 0.0
    for version in range(1, updates // WORKERS + 1):
        steps = [_step(random, own, slow if worker == 2 else 1.0) for worker, own in enumerate(own_steps)]
        applied = now + max(pushed for *_, pushed in steps) + 0.003
        for worker, step in enumerate(steps):
            yield version, 0, worker, now, now, *(now + time for time in step), applied
        now = applied + 0.001
