"""Measure the physical limit of a machine: one process on each core computes gradients and sends nothing.

    python -m ps_cluster.tools.bench.limit RUN_DIR

The batches and gradients are those of a worker; no update follows them. All processes begin together, and each takes its
share of the run's steps. The last line of the output is `arms.Measured`.
"""

from __future__ import annotations

import multiprocessing
import os
import sys
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from multiprocessing.managers import SyncManager
from pathlib import Path
from threading import Barrier

from ps_cluster.config import load_config
from ps_cluster.config.lazy import tf
from ps_cluster.data.packed import load_pointed
from ps_cluster.quiet_import import import_tensorflow
from ps_cluster.runs.run_dir import RunDir
from ps_cluster.system.lifetime import die_with_parent
from ps_cluster.system.limits import allowance
from ps_cluster.tools.bench.arms import STEPS_PER_CALL, Measured
from ps_cluster.training.step import TrainStep


def measure(root: Path) -> float:
    """Return the examples per second of all cores together."""
    cores, spawn = allowance().threads, multiprocessing.get_context("spawn")
    manager = SyncManager(ctx=spawn)
    manager.start(die_with_parent)
    with manager, ProcessPoolExecutor(cores, spawn, initializer=die_with_parent) as pool:
        return sum(pool.map(partial(rate_of_a_core, root, manager.Barrier(cores)), range(cores)))


def rate_of_a_core(root: Path, all_are_ready: Barrier, part: int) -> float:
    """Compute one share of a run's steps on one core, and return the examples per second.

    Args:
      all_are_ready: a barrier at which the processes wait until all of them have built their graphs.
      part: the number of the share and of the core, from 0.
    """
    cores, parts = sorted(os.sched_getaffinity(0)), allowance().threads
    try:
        os.sched_setaffinity(0, [cores[part]])
        import_tensorflow()
        from ps_cluster.training.building import make_network

        tf.config.threading.set_intra_op_parallelism_threads(1)
        run_dir = RunDir.open(root)
        config, dataset = load_config(run_dir.config), load_pointed(run_dir.dataset)
        os.chdir(dataset.directory)
        network, start = make_network(config, dataset, "/device:CPU:0")
        steps = several(TrainStep(config, network, dataset.spec, train_examples=dataset.train_examples))
        weights, statistics = tf.cast(tf.constant(start.weights), config.wire), tf.constant(start.statistics)
        count = max(STEPS_PER_CALL, config.total_steps(dataset.train_examples) // parts)
        firsts = range(part * count, (part + 1) * count - STEPS_PER_CALL + 1, STEPS_PER_CALL)
        steps(tf.constant(firsts[0], tf.int64), weights, statistics).numpy()
    except BaseException:
        all_are_ready.abort()  # Otherwise the other processes would wait for this one.
        raise
    all_are_ready.wait()
    began = time.perf_counter()
    for first in firsts:
        steps(tf.constant(first, tf.int64), weights, statistics).numpy()
    seconds = time.perf_counter() - began
    return len(firsts) * STEPS_PER_CALL * config.training.batch_size_per_worker / seconds


def several(step: TrainStep) -> Callable[[tf.Tensor, tf.Tensor, tf.Tensor], tf.Tensor]:
    """Return a `tf.function` that computes `STEPS_PER_CALL` steps.

    Its arguments are the id of the first step, the weights, and the network's statistics, e.g. moving means. It returns
    the sum of all results, float32 [], because TensorFlow leaves out computations that no result needs.
    """

    @tf.function(autograph=False)
    def steps(first: tf.Tensor, weights: tf.Tensor, statistics: tf.Tensor) -> tf.Tensor:
        def one(position: tf.Tensor, total: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
            result = step(position, weights, statistics)
            vectors = [tf.cast(vector, tf.float32) for vector in (result.gradient, result.fresh)]
            return position + 1, total + result.metric + tf.add_n([tf.reduce_sum(vector) for vector in vectors])

        start, end = (first, tf.constant(0.0)), first + STEPS_PER_CALL
        return tf.while_loop(lambda position, _: position < end, one, start, parallel_iterations=1)[1]

    graph: Callable[[tf.Tensor, tf.Tensor, tf.Tensor], tf.Tensor] = steps
    return graph


if __name__ == "__main__":
    print(Measured(examples_per_second=measure(Path(sys.argv[1]))).model_dump_json())
