"""Measure a Keras model and optimizer in one process, or on parameter servers that exchange each variable separately.

    python -m ps_cluster.tools.bench.keras_arms RUN_DIR

This command trains in one process with the whole machine. One tf.function runs several steps, so that Python costs little.
The last line of the output is `arms.Measured`.

    python -m ps_cluster.tools.bench.keras_arms task OPTIONS-OF-A-TASK

This command is a task whose chief trains as TensorFlow's tutorial does
(https://www.tensorflow.org/tutorials/distribute/parameter_server_training): a model and an optimizer are made under the
strategy's scope, each variable is pulled and pushed separately, and a dispatch is one step. All other tasks are the
project's. The optimizers of Keras 3 lose updates on parameter servers (docs/results.md), so this measures speed only.

Network, precision, batch function and batch size are those of the other arms.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeAlias

import keras
import numpy as np
import tensorflow as tf

from ps_cluster.config import RunConfig, load_config
from ps_cluster.data.packed import PackedDataset, load_pointed
from ps_cluster.files.json_rows import append_row
from ps_cluster.files.writing import write_json
from ps_cluster.launch import task
from ps_cluster.models.build import build
from ps_cluster.models.compiled_heads import head_of
from ps_cluster.models.flat import FlatNetwork, as_arguments
from ps_cluster.models.fused_layers import with_fused_layers
from ps_cluster.private_names import copy_compiled
from ps_cluster.runs import checkpoints
from ps_cluster.runs.result_rows import ServerSize
from ps_cluster.runs.run_dir import RunDir
from ps_cluster.server.update_rules.adagrad import AdagradSettings
from ps_cluster.server.update_rules.momentum import MomentumSettings
from ps_cluster.tools.bench.arms import STEPS_PER_CALL, Measured
from ps_cluster.training.connecting import connect
from ps_cluster.training.job import TrainingJob
from ps_cluster.training.reporter import Reporter
from ps_cluster.training.result import training_result
from ps_cluster.training.run_progress import RunProgress
from ps_cluster.training.step import TrainStep


def keras_model(config: RunConfig, dataset: PackedDataset) -> tuple[keras.Model, keras.Optimizer]:
    """Return a network with the same layers as the cluster's network, and Keras's optimizer for the same update rule.

    The rule must be adagrad or, as in `cases.RULE`, SGD with Nesterov momentum.
    """
    model = build(config.model, dataset.spec, seed=0)
    fused = with_fused_layers(model)
    copy_compiled(model, to=fused)
    rule = config.optimizer
    if isinstance(rule, AdagradSettings):
        optimizer = keras.optimizers.Adagrad(rule.learning_rate, rule.initial_accumulator_value, rule.epsilon)
    else:
        assert isinstance(rule, MomentumSettings), rule.rule
        optimizer = keras.optimizers.SGD(rule.learning_rate, momentum=rule.momentum, nesterov=True)
    optimizer.build(fused.trainable_variables)
    return fused, optimizer


TrainBatch: TypeAlias = Callable[[tf.Tensor], tf.Tensor]
"""Trains the batch of a step id, int64 [], and returns its loss, float32 []."""


def keras_step(config: RunConfig, dataset: PackedDataset, model: keras.Model, optimizer: keras.Optimizer) -> TrainBatch:
    """Return a function that trains a batch with Keras's optimizer."""
    head = head_of(dataset.spec, config.training, model)
    batches = TrainStep(config, FlatNetwork(model), dataset.spec, train_examples=dataset.train_examples)

    def train(step: tf.Tensor) -> tf.Tensor:
        batch = batches.batch(step)
        with tf.GradientTape() as tape:
            outputs = model(as_arguments(batch.inputs), training=True)
            outputs = keras.tree.map_structure(lambda output: tf.cast(output, tf.float32), outputs)
            loss = sum(model.losses, head.loss(batch.targets, outputs, batch.weights))
        optimizer.apply(tape.gradient(loss, model.trainable_variables), model.trainable_variables)
        return loss

    return train


def keras_step_alone(config: RunConfig, dataset: PackedDataset) -> TrainBatch:
    """Make a model and an optimizer, and return the function that trains a batch with them (`keras_step`)."""
    return keras_step(config, dataset, *keras_model(config, dataset))


def train_alone(root: Path, make_step: Callable[[RunConfig, PackedDataset], TrainBatch]) -> float:
    """Train in this process by the function that `make_step` returns, and return the examples per second."""
    run_dir = RunDir.open(root)
    config, dataset = load_config(run_dir.config), load_pointed(run_dir.dataset)
    os.chdir(dataset.directory)
    train_batch = make_step(config, dataset)

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
    examples = calls * STEPS_PER_CALL * config.training.batch_size_per_worker
    return examples / (time.perf_counter() - started)


def train_by_variables(job: TrainingJob) -> None:
    """Train as TensorFlow's tutorial does: pull and push each variable separately. Return after all steps.

    Write the files that the launcher and the summary need. The ledger, the table of accepted pushes, stays empty.
    """
    config, run_dir, dataset = job.config, job.run_dir, job.dataset
    coordinator, _ = connect(job.cluster, job.leading)
    with coordinator.strategy.scope():
        model, optimizer = keras_model(config, dataset)
    train_batch = keras_step(config, dataset, model, optimizer)

    @tf.function(autograph=False)
    def dispatched(step: tf.Tensor) -> tf.Tensor:
        return coordinator.strategy.run(train_batch, args=(step,))

    def run(first: int, end: int) -> float:
        started = time.perf_counter()
        for step in range(first, end):
            coordinator.schedule(dispatched, args=(tf.constant(step, tf.int64),))
        coordinator.join()
        return time.perf_counter() - started

    progress = RunProgress(config, dataset.train_examples)
    reporter = Reporter(config, run_dir, progress, life=job.leading.life)
    append_row(run_dir.progress, reporter.take_row("training"))
    warm, total = 3 * config.cluster.workers, config.total_steps(dataset.train_examples)
    run(0, warm)
    seconds = run(warm, warm + total)
    parameters = int(sum(np.prod(v.shape) for v in model.trainable_variables))
    rate = total * config.training.batch_size_per_worker / seconds
    servers = [ServerSize(index=0, parameters=parameters)]
    result = training_result(config, progress, "completed", parameter_servers=servers)
    write_json(run_dir.training_result, result.model_copy(update={"examples_per_second": rate}).model_dump())
    checkpoints.mark_ended(run_dir.checkpoints, last_step=0, outcome="completed")


if __name__ == "__main__":
    if sys.argv[1] == "task":
        sys.exit(task.main(sys.argv[2:], trainer=train_by_variables))
    print(Measured(examples_per_second=train_alone(Path(sys.argv[1]), keras_step_alone)).model_dump_json())
