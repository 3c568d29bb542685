"""Run a cluster for a given time, for benchmarks that vary one thing."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ps_cluster.config import RunConfig
from ps_cluster.data.packed import PackedDataset
from ps_cluster.installation import IMPORT_FOLDER
from ps_cluster.tools.bench.arms import BenchArm
from ps_cluster.tools.bench.throughput import run_arm

MOST_STEPS_PER_S = 5_000  # so high that no run is done before its time is over
CHEAPEST_RULE = {"optimizer.rule": "sgd", "optimizer.weight_decay": 0.0}


def timed(
    config: RunConfig, packed: PackedDataset, seconds: float, *body: str, project: Path = IMPORT_FOLDER
) -> dict[str, Any]:
    """Return the result of a project's `benchmarks.timed_run` over `seconds` of training; `body` as there.

    Raises RunFailed if it fails.
    """
    steps = round(MOST_STEPS_PER_S * (seconds + 10))
    arm = BenchArm("timed_run", "benchmarks.timed_run", (str(seconds), *body), project=project)
    return run_arm(arm, config.with_values({"training.steps": steps}), packed)


def empty_steps(config: RunConfig, packed: PackedDataset, seconds: float, weights: int) -> dict[str, Any]:
    """Return the same for steps that compute nothing, with `weights` weights that are pulled and pushed."""
    return timed(config.with_values(CHEAPEST_RULE), packed, seconds, "benchmarks.empty_steps", str(weights))


def plain_per_second(kind: str, config: RunConfig, packed: PackedDataset, seconds: float, weights: int) -> float:
    """Return closures or reads per second of `benchmarks.plain_coordinator`. Raises RunFailed if it fails."""
    body = ("benchmarks.plain_coordinator", kind, str(weights), str(seconds))
    return run_arm(BenchArm(kind, "ps_cluster.tools.bench.cluster", body), config, packed)["examples_per_second"]


def per_second(act: Callable[[], None], seconds: float) -> float:
    """Return how often per second `act` can be done. One call before the measurement does not count."""
    act()
    started, count = time.perf_counter(), 0
    while time.perf_counter() - started < seconds:
        act()
        count += 1
    return count / (time.perf_counter() - started)
