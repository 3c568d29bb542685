"""Compare modes that train for the same time, with and without a worker that is five times slower.

    python -m benchmarks.equal_time --data-dir DATA --choose

`--choose` finds the constant learning rate of each mode on held-out examples, with one seed, and keeps its trials in a
record. Each trial has one worker or process that computes what the mode computes, so that two trials can share the cores:
for async the staleness of three workers is emulated, and the updates of sync and sync-ps are those of mode `single` with
the batches of all workers whose gradients an update has.
"""

from __future__ import annotations

from pathlib import Path

import click

from benchmarks.records import RECORDS
from benchmarks.staleness_chart import ONE_WORKER, SHARED
from benchmarks.trials import Arm, Study
from ps_cluster.cli.command_line import OneLineCommand
from ps_cluster.cli.value_types import OUTPUT_FILE, Whole

WORKERS, BATCH = 3, 128
RATES = (0.005, 0.01, 0.02, 0.04)
# Three workers train on as many examples in about 110 s.
TRAINED = {
    "model.name": "tutorial_cnn", "data.dataset": "cifar10", "training.epochs": 10.0, "checkpoints.every_epochs": 10.0,
    "schedule.kind": "constant", "schedule.warmup_fraction": 0.0,
}  # fmt: skip


def choice_of(name: str, settings: dict[str, object]) -> Arm:
    return Arm(name, {**SHARED, **TRAINED, **settings}, RATES, held_out=5_000, scale=100.0)


def alone(gradients: int) -> dict[str, object]:
    return {"mode.name": "single", "training.batch_size_per_worker": gradients * BATCH}


ARMS = [
    choice_of("async", {**ONE_WORKER, "mode.simulate_workers": WORKERS}),
    choice_of("sync", alone(WORKERS)),
    choice_of("sync-ps with a backup worker", alone(WORKERS - 1)),
    choice_of("single", alone(1)),
]


@click.command(cls=OneLineCommand)
@click.option("--data-dir", type=click.Path(exists=True, path_type=Path, resolve_path=True), required=True)
@click.option("--record", type=OUTPUT_FILE, default=RECORDS / "equal_time_trials.json")
@click.option("--at-a-time", type=Whole(1, 16), default=2)
def main(data_dir: Path, record: Path, at_a_time: int) -> None:
    """Choose the learning rate of each mode on held-out examples."""
    Study(record, ARMS).train(0, at_a_time, {"data.data_dir": f"{data_dir}"})


if __name__ == "__main__":
    main()
