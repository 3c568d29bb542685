"""Run tasks whose steps compute nothing, so that only dispatch, pull and push remain; for the launcher.

    python -m benchmarks.empty_steps WEIGHTS OPTIONS-OF-A-TASK

The gradient of |w|²/2 is w: the pulled vector is pushed as it is. Everything else is the project's own.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from functools import partial

import numpy as np
import tensorflow as tf

from ps_cluster.config import RunConfig
from ps_cluster.data.packed import PackedDataset
from ps_cluster.launch import task
from ps_cluster.server.shard import InitialState, ParameterStore
from ps_cluster.training import chief
from ps_cluster.training.step import StepResult, learning_rate
from ps_cluster.training.worker import Compute


def build(
    length: int, config: RunConfig, dataset: PackedDataset, devices: Sequence[str], own_device: str
) -> tuple[ParameterStore, Compute]:
    """Return what `session.build` returns for networks, for `length` weights that stay 0."""
    nothing = np.zeros(0, np.float32)
    start = InitialState(np.zeros(length, np.float32), np.ones(length, np.float32), statistics=nothing, keep=nothing)
    total_steps = config.total_steps(dataset.train_examples)
    store = ParameterStore(devices, start.split(len(devices)), config=config, total_steps=total_steps)

    def compute(step: tf.Tensor, weights: tf.Tensor, statistics: tf.Tensor) -> StepResult:
        rate, zero = learning_rate(config, total_steps, step), tf.constant(0.0)
        return StepResult(
            weights, statistics, loss=zero, metric=zero, learning_rate=rate
        )  # the proof looks at the rate

    return store, compute


if __name__ == "__main__":
    trainer = partial(chief.train, build=partial(build, int(sys.argv[1])))
    sys.exit(task.main(sys.argv[2:], trainer=trainer))
