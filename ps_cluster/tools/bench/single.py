"""Measure examples per second of one process with the whole machine: a Keras model and optimizer in one tf.function.

    python -m ps_cluster.tools.bench.single RUN_DIR

The yardstick: the same network, precision, batch function and batch size as the cluster, and several steps per call so
that Python costs nothing. Prints {"examples_per_second": …} as its last line.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

import numpy as np
import tensorflow as tf

from ps_cluster.tools.bench.arm import STEPS_PER_CALL, keras_model, keras_optimizer, keras_step, open_arm


def main(root: Path) -> None:
    config, dataset, steps = open_arm(root)
    model = keras_model(config, dataset)
    optimizer = keras_optimizer(config)
    optimizer.build(model.trainable_variables)
    train_batch = keras_step(config, dataset, model, optimizer)

    @tf.function(autograph=False)
    def train(first: tf.Tensor) -> tf.Tensor:
        def one(step: tf.Tensor) -> tf.Tensor:
            with tf.control_dependencies([train_batch(step)]):
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
