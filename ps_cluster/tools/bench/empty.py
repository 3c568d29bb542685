"""Measure how many exchanges parameter servers can handle, with clusters whose steps compute nothing.

    python -m ps_cluster.tools.bench.empty WEIGHTS OPTIONS-OF-A-TASK

This command runs a task of such a cluster. The gradient of |w|²/2 is w, so a worker pushes the vector that it pulled.
Dispatch, pull, push, update and ledger (the table of accepted pushes) are as in every run.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from itertools import product
from typing import TYPE_CHECKING

import numpy as np

from ps_cluster.config import RunConfig, build_config
from ps_cluster.config.lazy import tf
from ps_cluster.data.packed import PackedDataset
from ps_cluster.launch import task
from ps_cluster.launch.config_completion import resolve_data
from ps_cluster.models.rows import NO_ROWS, Rows
from ps_cluster.report.terminal import print_line
from ps_cluster.server.initial_state import InitialState
from ps_cluster.server.store import ParameterStore
from ps_cluster.system.limits import FreeMemory
from ps_cluster.tools.bench.arms import CLUSTER, BenchArm
from ps_cluster.tools.bench.cases import case, refuse_fixed_settings
from ps_cluster.tools.bench.throughput import BenchJob, Benchmark, columns_of
from ps_cluster.training.job import TrainingJob
from ps_cluster.training.learning_rate import learning_rate
from ps_cluster.training.step import WHOLE_PERIOD, Compute, PeriodLimits, StepResult

if TYPE_CHECKING:
    from ps_cluster.training.building import Build

NAME = "empty"
STEPS = {1_000: 8_000, 1_000_000: 1_000}  # number of weights → steps of one measurement: about 10 s on two cores
WORKERS, SERVERS = (3, 16), (1, 4)
CHEAPEST_RULE = {"optimizer.rule": "sgd", "optimizer.weight_decay": 0.0}
CHOSEN = ("model.", "cluster.workers", "cluster.parameter_servers", *CHEAPEST_RULE)


def benchmark(values: Mapping[str, object]) -> Benchmark:
    """Return the benchmark of empty steps. `values`: settings of all clusters. Raises UserError if they do not fit."""
    refuse_fixed_settings(NAME, CHOSEN, values)
    packed, unit = resolve_data(build_config(None, dict(values)).data, notify=print_line), "steps"
    found = jobs(packed, values)
    return Benchmark(found, len(found), packed, unit, columns_of(found[0].arms, unit))


def jobs(packed: PackedDataset, values: Mapping[str, object]) -> list[BenchJob]:
    """Return a job for each cluster size. Its rates are in steps/s. `values`: settings of all clusters."""
    found = []
    for (weights, steps), workers, servers in product(STEPS.items(), WORKERS, SERVERS):
        size = {"cluster.workers": workers, "cluster.parameter_servers": servers}
        config = case("tutorial_cnn", "float32", packed, {"training.steps": steps} | dict(values) | size)
        arm = BenchArm(NAME, CLUSTER.module, (__spec__.name, str(weights)), values=CHEAPEST_RULE)
        about = {"weights": weights, "workers": workers, "parameter servers": servers}
        found.append(BenchJob(about, config, [arm], examples_counted_as_one=config.examples_per_step))
    return found


class EmptyStep(Compute):
    """A step without a network: it computes only the learning rate and the ids of its examples.

    It pushes the weights that it has pulled, because they are as large as a gradient. The ids are computed because the
    proof (runs/proof.py) checks them after the run.
    """

    def __init__(self, config: RunConfig, train_examples: int):
        self._config, self._examples = config, train_examples

    def __call__(
        self,
        step: tf.Tensor,
        /,
        weights: tf.Tensor,
        statistics: tf.Tensor,
        limits: PeriodLimits = WHOLE_PERIOD,
        rows: Rows = NO_ROWS,
    ) -> StepResult:
        from ps_cluster.data.batches import batch_of, checksum_of  # imports TensorFlow, which the command does not

        config = self._config
        rate, zero = learning_rate(config, config.total_steps(self._examples), step), tf.constant(0.0)
        batch_size, seed = config.training.batch_size_per_worker, config.training.seed
        ids = batch_of(step, batch_size=batch_size, examples=self._examples, seed=seed).ids
        return StepResult(weights, statistics, zero, zero, rate, tf.size(ids, tf.int64), checksum_of(ids))


def build_with(length: int) -> Build:
    """Return a function that replaces `building.build` in a run without a network.

    The function builds a vector of `length` weights, float32, which are 0 and stay 0, and an `EmptyStep`.
    """

    def build(
        config: RunConfig,
        dataset: PackedDataset,
        devices: Sequence[str],
        own_device: str,
        leader_prefix: str,
        free: FreeMemory | None,
    ) -> tuple[ParameterStore, Compute]:
        nothing = np.zeros(0, np.float32)
        weights, factors = np.zeros(length, np.float32), np.ones(length, np.float32)
        start = InitialState(weights, factors, statistics=nothing, keep=nothing, leader_prefix=leader_prefix)
        total_steps = config.total_steps(dataset.train_examples)
        store = ParameterStore(devices, start.split(len(devices)), config=config, total_steps=total_steps)
        return store, EmptyStep(config, dataset.train_examples)

    return build


def train(job: TrainingJob) -> None:
    """Train as the chief of a run does, but with steps that compute nothing."""
    from ps_cluster.training import chief

    chief.train(job, build=build_with(int(sys.argv[1])))


if __name__ == "__main__":
    sys.exit(task.main(sys.argv[2:], trainer=train))
