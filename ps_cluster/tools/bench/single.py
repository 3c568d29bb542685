"""Measure examples per second of a Keras model and optimizer in one process.

    python -m ps_cluster.tools.bench.single RUN_DIR

Trains in this process with the whole machine, in one tf.function of several steps, so that Python costs nothing. Prints
{"examples_per_second": …} as its last line. Network, precision, batch function and batch size are those of the other arms.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from ps_cluster.config import RunConfig, load_config
from ps_cluster.data.packed import PackedDataset, load_pointed
from ps_cluster.models.build import build
from ps_cluster.models.flat import FlatNetwork, as_arguments, with_fused_layers
from ps_cluster.models.judges import judge_of
from ps_cluster.private_names import copy_compiled
from ps_cluster.runs.run_dir import RunDir
from ps_cluster.training.step import TrainStep

STEPS_PER_CALL = 4


def keras_model(config: RunConfig, dataset: PackedDataset) -> tuple[keras.Model, keras.Optimizer]:
    """Return the network with the layers that the cluster trains too, and Keras's optimizer of `throughput.RULE`."""
    model = build(config.model, dataset.spec, seed=0)
    fused = with_fused_layers(model)
    copy_compiled(model, to=fused)
    rule: Any = config.optimizer
    optimizer = keras.optimizers.SGD(rule.learning_rate, momentum=rule.momentum, nesterov=True)
    optimizer.build(fused.trainable_variables)
    return fused, optimizer


def keras_step(
    config: RunConfig, dataset: PackedDataset, model: keras.Model, optimizer: keras.Optimizer
) -> Callable[[tf.Tensor], tf.Tensor]:
    """Return a function that trains the batch of a step id, int64 [], and returns its loss, float32 []."""
    judge = judge_of(dataset.spec, config.training, model)
    batches = TrainStep(config, FlatNetwork(model), dataset.spec, train_examples=dataset.train_examples)

    def train(step: tf.Tensor) -> tf.Tensor:
        batch = batches.batch(step)
        with tf.GradientTape() as tape:
            outputs = model(as_arguments(batch.inputs), training=True)
            outputs = keras.tree.map_structure(lambda output: tf.cast(output, tf.float32), outputs)
            loss = sum(model.losses, judge.loss(batch.targets, outputs, batch.weights))
        optimizer.apply(tape.gradient(loss, model.trainable_variables), model.trainable_variables)
        return loss

    return train


def train_alone(root: Path) -> None:
    """Train a run directory in this process, and print the rate."""
    run_dir = RunDir.open(root)
    config, dataset = load_config(run_dir.config), load_pointed(run_dir.dataset)
    os.chdir(dataset.directory)
    train_batch = keras_step(config, dataset, *keras_model(config, dataset))

    @tf.function(autograph=False)
    def train(first: tf.Tensor) -> tf.Tensor:
        def one(step: tf.Tensor) -> tf.Tensor:
            with tf.control_dependencies([train_batch(step)]):
                return step + 1

        return tf.while_loop(lambda step: step < first + STEPS_PER_CALL, one, [first], parallel_iterations=1)

    train(tf.constant(0, tf.int64))
    started = time.perf_counter()
    calls = max(1, config.total_steps(dataset.train_examples) // STEPS_PER_CALL)
    for call in range(1, calls + 1):
        np.asarray(train(tf.constant(call * STEPS_PER_CALL, tf.int64)))
    seconds = time.perf_counter() - started
    examples = calls * STEPS_PER_CALL * config.training.batch_size_per_worker
    print(json.dumps({"examples_per_second": examples / seconds}))


if __name__ == "__main__":
    train_alone(Path(sys.argv[1]))
