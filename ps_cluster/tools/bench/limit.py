"""Measure the physical limit of a machine: one process on each core, which computes gradients and sends nothing.

    python -m ps_cluster.tools.bench.limit RUN_DIR

The batches and gradients are those of a worker; no update follows them. All processes begin together, and each takes its
part of the run's steps. Prints {"examples_per_second": …} as its last line.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

from ps_cluster.config import load_config
from ps_cluster.config.lazy import tf
from ps_cluster.data.packed import load_pointed
from ps_cluster.errors import RunFailed
from ps_cluster.quiet_import import import_tensorflow
from ps_cluster.runs.run_dir import RunDir
from ps_cluster.system.lifetime import die_with_parent
from ps_cluster.system.limits import allowance
from ps_cluster.tools.bench.arms import STEPS_PER_CALL
from ps_cluster.training.step import TrainStep

READY = b"ready\n"


def measure(root: Path) -> float:
    """Return the examples per second of all cores together. Raises RunFailed if a process fails."""
    with ExitStack() as stack:
        processes = [
            stack.enter_context(
                subprocess.Popen(
                    (sys.executable, "-m", __spec__.name, str(root), str(part)),
                    stdin=subprocess.PIPE, stdout=subprocess.PIPE, preexec_fn=die_with_parent,
                )
            )
            for part in range(allowance().threads)
        ]  # fmt: skip
        for process in processes:
            assert process.stdout is not None
            if process.stdout.readline() != READY:
                raise RunFailed(f"a process on one core ended with exit code {process.wait()}")
        for process in processes:  # only now, so that none computes while another still builds its graph
            assert process.stdin is not None
            process.stdin.write(READY)
            process.stdin.flush()
        return sum(float(process.communicate()[0]) for process in processes)


def compute_on_a_core(root: Path, part: int) -> None:
    """Compute one part of a run's steps on the core of this number; print READY, wait for a line, print examples/s."""
    cores, parts = sorted(os.sched_getaffinity(0)), allowance().threads
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
    sys.stdout.buffer.write(READY)
    sys.stdout.flush()
    sys.stdin.readline()
    began = time.perf_counter()
    for first in firsts:
        steps(tf.constant(first, tf.int64), weights, statistics).numpy()
    seconds = time.perf_counter() - began
    print(len(firsts) * STEPS_PER_CALL * config.training.batch_size_per_worker / seconds)


def several(step: TrainStep) -> Callable[[tf.Tensor, tf.Tensor, tf.Tensor], tf.Tensor]:
    """Return a graph of (first step id, weights, statistics) that computes `STEPS_PER_CALL` steps from there on.

    It returns a float32 [] that needs all of every result, the sum: TensorFlow leaves out what nobody needs.
    """

    @tf.function(autograph=False)
    def steps(first: tf.Tensor, weights: tf.Tensor, statistics: tf.Tensor) -> tf.Tensor:
        def one(position: tf.Tensor, total: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
            result = step(position, weights, statistics)
            vectors = [tf.cast(vector, tf.float32) for vector in (result.gradient, result.fresh)]
            return position + 1, total + result.metric + tf.add_n([tf.reduce_sum(vector) for vector in vectors])

        start, end = (first, tf.constant(0.0)), first + STEPS_PER_CALL
        return tf.while_loop(lambda position, _: position < end, one, start, parallel_iterations=1)[1]

    graph: Callable[..., tf.Tensor] = steps
    return graph


if __name__ == "__main__":
    if len(sys.argv) > 2:
        compute_on_a_core(Path(sys.argv[1]), int(sys.argv[2]))
    else:
        print(json.dumps({"examples_per_second": measure(Path(sys.argv[1]))}))
