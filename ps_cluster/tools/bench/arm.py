"""Common parts of a benchmark's arms. Each arm reads the same complete configuration from a run directory."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import keras
import tensorflow as tf

from ps_cluster.config import RunConfig, load_config
from ps_cluster.data.packed import PackedDataset, load_pointed
from ps_cluster.models.build import build
from ps_cluster.models.flat import FlatNetwork, as_arguments
from ps_cluster.models.fused import with_fused_layers
from ps_cluster.private_names import copy_compiled
from ps_cluster.runs.run_dir import RunDir
from ps_cluster.training.judges import judge_of
from ps_cluster.training.step import TrainStep

STEPS_PER_CALL = 4


def open_arm(root: Path) -> tuple[RunConfig, PackedDataset, int]:
    """Return (configuration, data set, steps to time). Changes the working directory to that of the packed data."""
    run_dir = RunDir.open(root)
    config = load_config(run_dir.config)
    dataset = load_pointed(run_dir.dataset)
    os.chdir(dataset.directory)
    return config, dataset, config.total_steps(dataset.train_examples)


def keras_model(config: RunConfig, dataset: PackedDataset) -> keras.Model:
    """Return the network with the layers that the cluster trains too."""
    model = build(config.model, dataset.spec, seed=0)
    fused = with_fused_layers(model)
    copy_compiled(model, to=fused)
    return fused


def keras_optimizer(config: RunConfig) -> keras.Optimizer:
    """Return Keras's optimizer of the rule that all arms use (`ps_cluster.tools.bench.throughput.RULE`)."""
    rule: Any = config.optimizer
    return keras.optimizers.SGD(rule.learning_rate, momentum=rule.momentum, nesterov=True)


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
