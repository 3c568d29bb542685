"""Measure network dlrm on data set clicks in one process, by Keras's `fit` or by hand, as arms of `bench --arms tables`.

    python -m ps_cluster.tools.bench.table_arms RUN_DIR fit|hand

Network, batch function and batch size are those of the other arms. The last line of the output is `arms.Measured`.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from ps_cluster.config import RunConfig, load_config
from ps_cluster.data.packed import PackedDataset, load_pointed
from ps_cluster.models.compiled_heads import head_of
from ps_cluster.models.flat import FlatNetwork, as_arguments
from ps_cluster.runs.run_dir import RunDir
from ps_cluster.server.update_rules.adagrad import AdagradSettings
from ps_cluster.tools.bench.arms import STEPS_PER_CALL, Measured
from ps_cluster.tools.bench.keras_arms import TrainBatch, keras_model, train_alone
from ps_cluster.training.step import TrainStep


def hand_step(config: RunConfig, dataset: PackedDataset) -> TrainBatch:
    """Return a function that trains a batch by TensorFlow's fused kernels, which change only the rows of the batch.

    One variable, float32 [tables x rows, width], holds the rows of all tables, so a batch is one gather.
    """
    model, _ = keras_model(config, dataset)
    layers = [layer for layer in model.layers if isinstance(layer, keras.layers.Embedding)]
    dense = keras.Model([*(layer.output for layer in layers), model.get_layer("numbers").output], model.output)
    head = head_of(dataset.spec, config.training, model)
    batches = TrainStep(config, FlatNetwork(model), dataset.spec, train_examples=dataset.train_examples)
    rule = config.optimizer
    assert isinstance(rule, AdagradSettings), rule.rule
    table = tf.Variable(np.concatenate([np.asarray(layer.embeddings) for layer in layers]))
    firsts = tf.constant(np.cumsum([0, *(layer.input_dim for layer in layers[:-1])]), tf.int32)
    variables = [variable.value for variable in dense.trainable_variables]
    sums, table_sums = (
        [tf.Variable(tf.fill(variable.shape, rule.initial_accumulator_value)) for variable in some]
        for some in (variables, [table])
    )
    settings = {"lr": rule.learning_rate, "epsilon": rule.epsilon, "use_locking": True}

    def train(step: tf.Tensor) -> tf.Tensor:
        batch = batches.batch(step)
        keys = tf.reshape(tf.cast(batch.inputs["categories"], tf.int32) + firsts, [-1])
        distinct, places = tf.unique(keys)
        rows = tf.gather(table, distinct)
        with tf.GradientTape() as tape:
            tape.watch(rows)
            vectors = tf.reshape(tf.gather(rows, places), [-1, len(layers), rows.shape[1]])
            outputs = dense([*tf.unstack(vectors, axis=1), batch.inputs["numbers"]], training=True)
            loss = head.loss(batch.targets, tf.cast(outputs, tf.float32), batch.weights)
        of_rows, *gradients = tape.gradient(loss, [rows, *variables])
        tf.raw_ops.ResourceSparseApplyAdagradV2(
            var=table.handle,
            accum=table_sums[0].handle,
            grad=tf.convert_to_tensor(of_rows),
            indices=distinct,
            **settings,
        )
        for variable, total, gradient in zip(variables, sums, gradients, strict=True):
            tf.raw_ops.ResourceApplyAdagradV2(var=variable.handle, accum=total.handle, grad=gradient, **settings)
        return loss

    return train


class _Epoch(keras.callbacks.Callback):
    """A callback that measures the duration of the last epoch.

    In TensorFlow 2.21, `fit` itself returns only when the thread that tunes the input pipeline wakes up. This thread sleeps for
    10 ms, then for 20, 40 and so on. So `fit` may take 41 s for an epoch of 22 s.
    """

    seconds = 0.0

    def on_epoch_begin(self, epoch: int, logs: dict[str, float] | None = None) -> None:
        self._started = time.perf_counter()

    def on_epoch_end(self, epoch: int, logs: dict[str, float] | None = None) -> None:
        self.seconds = time.perf_counter() - self._started


def fit(root: Path) -> float:
    """Train the network of a run directory by `keras.Model.fit`, and return the examples per second."""
    run_dir = RunDir.open(root)
    config, dataset = load_config(run_dir.config), load_pointed(run_dir.dataset)
    os.chdir(dataset.directory)
    model, optimizer = keras_model(config, dataset)
    batches = TrainStep(config, FlatNetwork(model), dataset.spec, train_examples=dataset.train_examples)

    def examples(step: tf.Tensor) -> tuple[Any, tf.Tensor]:
        batch = batches.batch(step)
        return as_arguments(batch.inputs), batch.targets

    steps = config.total_steps(dataset.train_examples)
    data = tf.data.Dataset.range(steps).map(examples).prefetch(tf.data.AUTOTUNE)
    loss = keras.losses.BinaryCrossentropy(from_logits=True)
    model.compile(optimizer, loss, steps_per_execution=STEPS_PER_CALL)
    model.fit(data.take(STEPS_PER_CALL), verbose=0)  # builds the graph
    epoch = _Epoch()
    model.fit(data, verbose=0, callbacks=[epoch])
    return steps * config.training.batch_size_per_worker / epoch.seconds


if __name__ == "__main__":
    root = Path(sys.argv[1])
    rate = fit(root) if sys.argv[2] == "fit" else train_alone(root, hand_step)
    print(Measured(examples_per_second=rate).model_dump_json())
