"""Run the least that TensorFlow itself can do on the same cluster: a chief as a task of the launcher.

    python -m benchmarks.plain_coordinator KIND WEIGHTS SECONDS OPTIONS-OF-A-TASK

KIND `closures`: each closure adds 1 to a variable on the parameter server. `reads`: each closure reads a variable of
WEIGHTS float32 on the parameter server a few times and ignores the values. The result has closures or reads per second
in place of images per second.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from functools import partial
from typing import Any

import tensorflow as tf

from benchmarks.runs import per_second
from ps_cluster.config import RunConfig
from ps_cluster.data.packed import PackedDataset
from ps_cluster.files.json_files import append_row
from ps_cluster.files.writing import write_json
from ps_cluster.launch import task
from ps_cluster.runs import checkpoints
from ps_cluster.runs.leaders import Leading
from ps_cluster.runs.result_rows import Server
from ps_cluster.runs.run_dir import RunDir
from ps_cluster.training.membership import connect
from ps_cluster.training.run_progress import RunProgress

# So many that it does not matter if one worker has none left while the others do their last.
CLOSURES_AT_ONCE = {"closures": 500, "reads": 30}
READ_BYTES, MOST_READS = 1e8, 10  # of one closure


def train(
    kind: str, weights: int, seconds: float,
    config: RunConfig, run_dir: RunDir, dataset: PackedDataset, cluster: dict[str, list[str]],
    *, resume: bool, drain: threading.Event, leading: Leading,
) -> None:  # fmt: skip
    """Measure closures or reads for `seconds`, in place of `async_trainer.train`. The ledger stays empty."""
    coordinator, _ = connect(cluster, leading)
    progress = RunProgress(config, dataset.train_examples)
    append_row(run_dir.progress, progress.row("training"))
    with tf.device("/job:ps/replica:0/task:0/device:CPU:0"):
        variable = tf.Variable(tf.zeros([weights]))
    times = min(MOST_READS, max(1, round(READ_BYTES / (4 * weights)))) if kind == "reads" else 1
    closure = reads(variable, times) if kind == "reads" else addition(variable)

    def run() -> None:
        for _ in range(CLOSURES_AT_ONCE[kind]):
            coordinator.schedule(closure)
        coordinator.join()

    # Before the measurement every worker builds the graph.
    rate = per_second(run, seconds) * CLOSURES_AT_ONCE[kind] * times
    found = {"parameter_servers": [Server(index=0, parameters=weights)], "completed": True, "examples_per_second": rate}
    write_json(run_dir.training_result, progress.result().model_copy(update=found).model_dump())
    checkpoints.mark_ended(run_dir.checkpoints, last_step=0, outcome="completed")


def addition(variable: tf.Variable) -> Callable[..., Any]:
    @tf.function(autograph=False)
    def add() -> None:
        variable.assign_add(tf.ones_like(variable), read_value=False)

    return add


def reads(variable: tf.Variable, times: int) -> Callable[..., Any]:
    @tf.function(autograph=False)
    def read() -> tf.Tensor:
        def body(done: tf.Tensor, total: tf.Tensor) -> list[tf.Tensor]:
            with tf.control_dependencies([total]):  # one after the other
                value = variable.read_value()
            return [done + 1, total + value[0]]  # the sum needs the whole vector at the worker

        return tf.while_loop(lambda done, _: done < times, body, [0, 0.0], parallel_iterations=1)[1]

    return read


if __name__ == "__main__":
    trainer = partial(train, sys.argv[1], int(sys.argv[2]), float(sys.argv[3]))
    sys.exit(task.main(sys.argv[4:], trainer=trainer))
