"""Measure what parameter servers can take at all: clusters whose steps compute nothing.

    python -m ps_cluster.tools.bench.empty WEIGHTS OPTIONS-OF-A-TASK

is a task of such a cluster, for the launcher. The gradient of |w|²/2 is w: the pulled vector is pushed as it is. Dispatch,
pull, push, update and ledger are those of every run.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from ps_cluster.config import RunConfig
from ps_cluster.config.lazy import tf
from ps_cluster.data.packed import PackedDataset
from ps_cluster.errors import UserError
from ps_cluster.files.writing import write_json
from ps_cluster.launch import task
from ps_cluster.server.initial_state import InitialState
from ps_cluster.server.store import ParameterStore
from ps_cluster.tools.bench.arms import CLUSTER, BenchArm
from ps_cluster.tools.bench.throughput import case, measure_once, shown, spread
from ps_cluster.training.job import TrainingJob
from ps_cluster.training.learning_rate import learning_rate
from ps_cluster.training.step import WHOLE_PERIOD, PeriodLimits, StepResult
from ps_cluster.training.worker import Compute

NAME = "empty"
WEIGHTS, WORKERS, SERVERS = (1_000, 1_000_000), (3, 16), (1, 4)
STEPS = {1_000: 8_000, 1_000_000: 1_000}  # of one measurement, so that each takes about 10 s on two cores
CHEAPEST_RULE = {"optimizer.rule": "sgd", "optimizer.weight_decay": 0.0}


def check(values: Mapping[str, Any]) -> None:
    """Raise UserError for settings that this arm has of its own."""
    own = ("model.", "cluster.workers", "cluster.parameter_servers", *CHEAPEST_RULE)
    if wrong := [key for key in values if key.startswith(own)]:
        raise UserError(f"--set {wrong[0]}: the arm {NAME} has its own: leave it out")


def measure(
    packed: PackedDataset,
    values: Mapping[str, Any],
    rounds: int,
    output: Path | None,
    *,
    notify: Callable[[str], None],
) -> list[dict[str, Any]]:
    """Run the clusters of all sizes in turns; return for each its size and the spread of its steps/s.

    Args:
      values: settings of all clusters, beside their size.
      output: gets the rows known so far, after each round.
    Raises:
      UserError: the settings do not fit. RunFailed: a cluster failed.
    """
    runs = list(cases(packed, values))
    rates: list[list[float]] = [[] for _ in runs]
    rows: list[dict[str, Any]] = []
    for number in range(rounds):
        for (size, arm, config), measured in zip(runs, rates):
            measured.append(measure_once(arm, config, packed) / config.examples_per_step)
            told = ", ".join(f"{name} {value:,}" for name, value in size.items())
            notify(f"round {number + 1}/{rounds}: {told}: {measured[-1]:,.0f} steps/s")
        rows = [{**size, "steps_per_second": spread(own)} for (size, *_), own in zip(runs, rates)]
        if output:
            write_json(output, {"rows": rows})
    return rows


def cases(packed: PackedDataset, values: Mapping[str, Any]) -> Iterator[tuple[dict[str, int], BenchArm, RunConfig]]:
    """Yield each size with its arm and configuration."""
    for weights, workers, servers in product(WEIGHTS, WORKERS, SERVERS):
        size = {"weights": weights, "workers": workers, "parameter servers": servers}
        cluster = {"cluster.workers": workers, "cluster.parameter_servers": servers}
        arm = BenchArm("empty", CLUSTER.module, (__spec__.name, str(weights)), values=CHEAPEST_RULE)
        steps = {"training.steps": STEPS[weights]} | dict(values)
        yield size, arm, arm.config(case("tutorial_cnn", "float32", packed, steps | cluster))


def print_table(rows: Sequence[Mapping[str, Any]], console: Console) -> None:
    """Print the steps/s of each size."""
    table = Table(title="steps/s without any computation: median (min–max)", title_justify="left", box=None)
    for name in rows[0]:
        table.add_column(name.replace("steps_per_second", "steps/s"), justify="right", no_wrap=True)
    for row in rows:
        *size, rate = row.values()
        table.add_row(*(f"{value:,}" for value in size), shown(rate, ",.0f"))
    console.print(table, highlight=False)


# The task.


def build(
    length: int, config: RunConfig, dataset: PackedDataset, devices: Sequence[str], own_device: str, session: str
) -> tuple[ParameterStore, Compute]:
    """Return what `session.build` returns for networks, for `length` weights that stay 0."""
    from ps_cluster.data.batches import batch_of, checksum_of  # imports TensorFlow, which the command does not

    nothing = np.zeros(0, np.float32)
    weights, factors = np.zeros(length, np.float32), np.ones(length, np.float32)
    start = InitialState(weights, factors, statistics=nothing, keep=nothing, session=session)
    total_steps = config.total_steps(dataset.train_examples)
    store = ParameterStore(devices, start.split(len(devices)), config=config, total_steps=total_steps)

    def compute(
        step: tf.Tensor, weights: tf.Tensor, statistics: tf.Tensor, limits: PeriodLimits = WHOLE_PERIOD
    ) -> StepResult:
        # The proof looks at the rate and at the ids of the examples.
        rate, zero = learning_rate(config, total_steps, step), tf.constant(0.0)
        batch_size, seed = config.training.batch_size_per_worker, config.training.seed
        ids = batch_of(step, batch_size=batch_size, examples=dataset.train_examples, seed=seed).ids
        return StepResult(weights, statistics, zero, zero, rate, tf.size(ids, tf.int64), checksum_of(ids))

    return store, compute


def train(job: TrainingJob) -> None:
    """Do what the chief of a run does, with steps that compute nothing."""
    from ps_cluster.training import chief

    chief.train(job, build=partial(build, int(sys.argv[1])))


if __name__ == "__main__":
    sys.exit(task.main(sys.argv[2:], trainer=train))
