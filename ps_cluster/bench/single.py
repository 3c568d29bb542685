"""Measure images per second of one process with the whole machine: a Keras model and optimizer in one tf.function.

    python -m ps_cluster.bench.single RUN_DIR

The yardstick: the same network, precision, batch function and batch size as the cluster, and several steps per call so
that Python costs nothing. Prints {"examples_per_second": …} as its last line.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

import keras
import numpy as np
import tensorflow as tf

from ps_cluster.bench.arm import STEPS_PER_CALL, keras_model, keras_optimizer, open_arm
from ps_cluster.models.flat import FlatNetwork, as_arguments
from ps_cluster.training.step import TrainStep


def main(root: Path) -> None:
    config, dataset, steps = open_arm(root)
    model = keras_model(config, dataset)
    optimizer = keras_optimizer(config)
    optimizer.build(model.trainable_variables)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    batches = TrainStep(config, FlatNetwork(model), dataset.spec, train_examples=dataset.train_examples)

    @tf.function(autograph=False)
    def train(first: tf.Tensor) -> tf.Tensor:
        def one(step: tf.Tensor) -> tf.Tensor:
            inputs, labels, _ = batches.batch(step)
            with tf.GradientTape() as tape:
                value = loss(labels, model(as_arguments(inputs), training=True))
            gradients = tape.gradient(value, model.trainable_variables)
            optimizer.apply(gradients, model.trainable_variables)
            with tf.control_dependencies([value]):
                return step + 1

        return tf.while_loop(lambda step: step < first + STEPS_PER_CALL, one, [first], parallel_iterations=1)

    train(tf.constant(0, tf.int64))
    started = time.perf_counter()
    calls = max(1, steps // STEPS_PER_CALL)
    for call in range(1, calls + 1):
        np.asarray(train(tf.constant(call * STEPS_PER_CALL, tf.int64)))
    seconds = time.perf_counter() - started
    examples = calls * STEPS_PER_CALL * config.training.batch_size_per_worker
    print(json.dumps({"examples_per_second": examples / seconds}))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
