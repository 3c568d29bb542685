"""Images a second of this cluster beside one process, all-reduce, and TensorFlow's own way, alternating in one call.

    python cli.py bench --rounds 3

Each arm is a fresh process (or cluster) that trains the same images with the same network, precision and batch size;
rounds go A B C, A B C, … so that a machine whose speed drifts is fair to all. Evaluator and checkpoints are off.
"""

from __future__ import annotations

import json
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable
from pathlib import Path

from rich.console import Console
from rich.table import Table

from ps_cluster.cluster.start import complete_config
from ps_cluster.config import RunConfig, build_config
from ps_cluster.data.packed import PackedDataset
from ps_cluster.run_dir import RunDir, write_json

PROJECT = Path(__file__).resolve().parents[1]
ARM_TIMEOUT_S = 600
BATCH_SIZE = 128
SINGLE, CLUSTER, SYNC, PER_VARIABLE = "single", "cluster", "sync", "per_variable"
MODULES = {
    SINGLE: "benchmarks.single",
    CLUSTER: "benchmarks.cluster",
    SYNC: "benchmarks.cluster",
    PER_VARIABLE: "benchmarks.cluster",
}
# Images of one measurement, so that each takes about 10 to 30 s on two cores.
EXAMPLES = {"tutorial_cnn": 80_000, "cifar_tf_cnn": 25_000, "resnet_small": 10_000, "airbench": 9_000}


def cases(models: Iterable[str], precisions: Iterable[str], packed: PackedDataset) -> list[RunConfig]:
    """A complete configuration for every model and precision; raises UserError for an unknown one."""
    return [case(model, precision, packed) for model in models for precision in precisions]


def measure(
    cases: Iterable[RunConfig],
    packed: PackedDataset,
    rounds: int,
    output: Path | None,
    *,
    notify: Callable[[str], None],
) -> list[dict]:
    """One row for each case: the rates of all rounds and the ratios to `single` in the same round.

    Raises:
      RuntimeError: an arm failed; its output is in the message.
    """
    rows = []
    for config in cases:
        model, precision = config.model.name, config.model.precision
        rates: dict[str, list[float]] = {arm: [] for arm in MODULES}
        for round_number in range(rounds):
            for arm in MODULES:
                rates[arm].append(measure_once(arm, config, packed))
                notify(f"{model} {precision} round {round_number + 1}/{rounds}: {arm} {rates[arm][-1]:,.0f} images/s")
        rows.append(_row(model, precision, rates))
        if output:
            write_json(output, {"dataset": packed.name, "dataset_kind": packed.kind, "rows": rows})
    return rows


def print_table(rows: list[dict], console: Console) -> None:
    table = Table(title="images/s, and the ratio to single in the same round: median (min–max)", box=None)
    for name in ("network", "precision", "arm"):
        table.add_column(name, no_wrap=True)
    for name in ("images/s", "to single"):
        table.add_column(name, justify="right", no_wrap=True)
    for row in rows:
        for arm in MODULES:
            ratio = "1" if arm == SINGLE else _shown(row[f"{arm}_to_single"], ".2f")
            table.add_row(row["model"], row["precision"], arm, _shown(row[arm], ",.0f"), ratio)
    console.print(table, highlight=False)


def _shown(found: dict, spec: str) -> str:
    return f"{found['median']:{spec}} ({found['min']:{spec}}–{found['max']:{spec}})"


def case(model: str, precision: str, packed: PackedDataset) -> RunConfig:
    overrides = {
        "model.name": model, "model.precision": precision, "training.batch_size_per_worker": BATCH_SIZE,
        "training.steps": EXAMPLES.get(model, 0) // BATCH_SIZE,
        "cluster.evaluator": False, "checkpoints.snapshot_every_seconds": 1e6, "checkpoints.every_seconds": 1e6,
    }  # fmt: skip
    return complete_config(build_config(overrides=overrides), packed)


def measure_once(arm: str, config: RunConfig, packed: PackedDataset) -> float:
    if arm == SYNC:  # the same images: every update takes a batch of each worker
        updates = max(1, config.total_steps(packed.train_examples) // config.cluster.workers)
        config = config.with_values({"training.mode": "sync", "training.steps": updates})
    folder = Path(tempfile.mkdtemp(prefix="ps_cluster-bench-"))
    try:
        run_dir = RunDir.create(folder / "run")
        run_dir.config.write_text(config.to_yaml())
        write_json(run_dir.dataset, {"name": packed.name, "kind": packed.kind, "directory": str(packed.directory)})
        command = [
            sys.executable,
            "-m",
            MODULES[arm],
            str(run_dir.root),
            *(["--per-variable"] if arm == PER_VARIABLE else []),
        ]
        done = subprocess.run(
            command, cwd=PROJECT, capture_output=True, text=True, timeout=ARM_TIMEOUT_S, stdin=subprocess.DEVNULL
        )
        if done.returncode:
            raise RuntimeError(f"benchmark arm {arm} failed with exit code {done.returncode}: {done.stderr[-2000:]}")
        return json.loads(done.stdout.splitlines()[-1])["examples_per_second"]
    finally:
        shutil.rmtree(folder)


def _row(model: str, precision: str, rates: dict[str, list[float]]) -> dict:
    ratios = {
        f"{arm}_to_single": [rate / single for rate, single in zip(rates[arm], rates[SINGLE])]
        for arm in (CLUSTER, SYNC, PER_VARIABLE)
    }
    return {
        "model": model,
        "precision": precision,
        **{name: spread(values) for name, values in (rates | ratios).items()},
    }


def spread(values: list[float]) -> dict:
    return {
        "median": statistics.median(values),
        "min": min(values),
        "max": max(values),
        "n": len(values),
        "values": values,
    }
