"""A chief that trains on parameter servers as TensorFlow's own tutorial does, as a task of the launcher.

https://www.tensorflow.org/tutorials/distribute/parameter_server_training: a Keras model and optimizer made under the
strategy's scope. Each variable is pulled and pushed by itself, one step per dispatch. All other tasks are the
project's own. (Keras 3 loses counts and statistics here, see docs/results.md: this measures speed only.)
"""

from __future__ import annotations

import sys
import time

import numpy as np
import tensorflow as tf

from ps_cluster.config import RunConfig
from ps_cluster.data.packed import PackedDataset
from ps_cluster.files.json_files import append_row
from ps_cluster.files.writing import write_json
from ps_cluster.launch import task
from ps_cluster.runs import checkpoints
from ps_cluster.runs.leaders import Leading
from ps_cluster.runs.result_rows import Server
from ps_cluster.runs.run_dir import RunDir
from ps_cluster.system.environment import Drain
from ps_cluster.tools.bench.arm import keras_model, keras_optimizer, keras_step
from ps_cluster.training.membership import connect
from ps_cluster.training.run_progress import RunProgress


def train(
    config: RunConfig,
    run_dir: RunDir,
    dataset: PackedDataset,
    cluster: dict[str, list[str]],
    index: int = 0,
    *,
    resume: bool,
    drain: Drain,
    leading: Leading,
) -> None:
    """Train `total_steps` steps and write what the launcher and the summary need. The ledger stays empty."""
    coordinator, _ = connect(cluster, leading)
    with coordinator.strategy.scope():
        model = keras_model(config, dataset)
        optimizer = keras_optimizer(config)
        optimizer.build(model.trainable_variables)
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
    append_row(run_dir.progress, progress.row("training"))
    warm, total = 3 * config.cluster.workers, config.total_steps(dataset.train_examples)
    run(0, warm)
    seconds = run(warm, warm + total)
    parameters = int(sum(np.prod(v.shape) for v in model.trainable_variables))
    rate = total * config.training.batch_size_per_worker / seconds
    servers = [Server(index=0, parameters=parameters)]
    found = {"parameter_servers": servers, "completed": True, "examples_per_second": rate}
    write_json(run_dir.training_result, progress.result().model_copy(update=found).model_dump())
    checkpoints.mark_ended(run_dir.checkpoints, last_step=0, outcome="completed")


if __name__ == "__main__":
    sys.exit(task.main(trainer=train))
