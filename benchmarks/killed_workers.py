"""Count the updates that TensorFlow's own parameter-server training repeats when workers are killed.

    python -m benchmarks.killed_workers --output RECORD

The chief schedules steps as in TensorFlow's tutorial
(https://www.tensorflow.org/tutorials/distribute/parameter_server_training), and each weight of a small CNN is a variable of
its own on the parameter server. A step computes a gradient, and then adds 1 to each variable, by operations that take
turns. So a variable says how many updates it has got: as many as steps were scheduled, unless some were lost or repeated.
Meanwhile workers are killed one after the other (SIGKILL), at random moments, and each is started again at once.

If the chief loses a worker, it schedules the worker's step anew. It can't know what the parameter server has already done
for this step: nothing, all of it, or the updates of some variables.
"""

from __future__ import annotations

import faulthandler
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from random import Random

import click
import numpy as np
import portpicker
import tensorflow as tf

from benchmarks.records import Column, keep, print_table
from ps_cluster.cli.command_line import OneLineCommand
from ps_cluster.cli.value_types import OUTPUT_FILE, Integer
from ps_cluster.installation import IMPORT_FOLDER
from ps_cluster.system.lifetime import die_with_parent

WORKERS, BATCH, CLASSES = 3, 128, 10
SCHEDULED_AT_ONCE = 200
LONGEST_S, LONGEST_KILL_S = 600, 20  # the command ends after this time, and this more for each kill
PAUSES_S = (0.5, 3.0)  # from one kill to the next, drawn evenly
# The weights and biases of network tutorial_cnn.
SHAPES = (
    (3, 3, 3, 32), (32,), (3, 3, 32, 64), (64,), (3, 3, 64, 64), (64,), (1024, 64), (64,), (64, CLASSES), (CLASSES,)
)  # fmt: skip
COLUMNS = {
    "kills": Column(heading="workers killed"),
    "scheduled": Column(heading="steps scheduled"),
    "least": Column(heading="updates too many, of the variable with the fewest"),
    "most": Column(heading="updates too many, of the variable with the most"),
}
# A worker imports TensorFlow, then waits for a line before it starts its server, so that it can replace a killed one quickly.
SERVER = """
import json, os, sys
import tensorflow as tf
cluster = json.loads(os.environ["TF_CONFIG"])
sys.stdin.readline()
server = tf.distribute.Server(cluster["cluster"], cluster["task"]["type"], cluster["task"]["index"], protocol="grpc")
server.join()
"""


class Server:
    """A task of the cluster, and a process that stands by to replace it."""

    def __init__(self, addresses: dict[str, list[str]], task: str, index: int):
        config = {"cluster": addresses, "task": {"type": task, "index": index}}
        self._environment = {**os.environ, "TF_CONFIG": json.dumps(config), "OMP_NUM_THREADS": "1"}
        self._next = self._standing_by()
        self._running: subprocess.Popen[str] | None = None

    def _standing_by(self) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, "-c", SERVER], cwd=IMPORT_FOLDER, env=self._environment, text=True,
            stdin=subprocess.PIPE, stderr=subprocess.DEVNULL, preexec_fn=die_with_parent,
        )  # fmt: skip

    def start(self) -> None:
        self._running, self._next = self._next, self._standing_by()
        assert self._running.stdin
        self._running.stdin.write("start\n")
        self._running.stdin.flush()

    def kill(self) -> None:
        assert self._running
        self._running.kill()
        self._running.wait()

    def end(self) -> None:
        """Kill the process of the task, and the process that stands by."""
        for process in (self._running, self._next):
            if process is not None:
                process.kill()
                process.communicate()


@contextmanager
def cluster() -> Iterator[tuple[tf.distribute.coordinator.ClusterCoordinator, list[Server]]]:
    """Yield the coordinator of a parameter server and some workers, and the workers' processes. End them all afterwards."""
    addresses = {
        "worker": [f"localhost:{portpicker.pick_unused_port()}" for _ in range(WORKERS)],
        "ps": [f"localhost:{portpicker.pick_unused_port()}"],
    }
    workers = [Server(addresses, "worker", index) for index in range(WORKERS)]
    servers = [*workers, Server(addresses, "ps", 0)]
    try:
        for server in servers:
            server.start()
        resolver = tf.distribute.cluster_resolver.SimpleClusterResolver(
            tf.train.ClusterSpec(addresses), rpc_layer="grpc"
        )
        yield tf.distribute.coordinator.ClusterCoordinator(tf.distribute.ParameterServerStrategy(resolver)), workers
    finally:
        for server in servers:
            server.end()


def loss_of(weights: list[tf.Variable], step: tf.Tensor) -> tf.Tensor:
    """Return the mean loss of the CNN on a batch of generated images, float32 []. `step`: int64 [], seeds the images."""
    x = tf.random.stateless_normal([BATCH, 32, 32, 3], seed=tf.stack([step, 0]))
    labels = tf.random.stateless_uniform([BATCH], seed=tf.stack([step, 1]), maxval=CLASSES, dtype=tf.int64)
    for place in (0, 2, 4):
        x = tf.nn.relu(tf.nn.conv2d(x, weights[place], 1, "VALID") + weights[place + 1])
        if place < 4:
            x = tf.nn.max_pool2d(x, 2, 2, "VALID")
    x = tf.nn.relu(tf.reshape(x, [BATCH, -1]) @ weights[6] + weights[7])
    return tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels, x @ weights[8] + weights[9]))


def add_one(counts: list[tf.Variable], step: tf.Tensor) -> None:
    """Add 1 to each element of the variables. Each addition waits for its variable's gradient of the step."""
    with tf.GradientTape() as tape:
        loss = loss_of(counts, step)
    for variable, gradient in zip(counts, tape.gradient(loss, counts)):
        # The product with 0 removes the value of the gradient.
        variable.assign_add(1.0 + 0.0 * tf.clip_by_value(gradient, -1.0, 1.0))


def counted(kills: int, seed: int) -> dict[str, int]:
    """Train while workers are killed, and return the row of the table.

    `seed`: decides which workers are killed, and when.
    """
    with cluster() as (coordinator, workers):
        with coordinator.strategy.scope():
            counts = [tf.Variable(tf.zeros(shape)) for shape in SHAPES]

        @tf.function(autograph=False)
        def dispatched(step: tf.Tensor) -> None:
            coordinator.strategy.run(partial(add_one, counts), args=(step,))

        def train(until: threading.Event) -> int:
            """Schedule groups of steps, at least two, until the event is set. Return the number of scheduled steps."""
            scheduled = 0
            while scheduled <= SCHEDULED_AT_ONCE or not until.is_set():
                for step in range(scheduled, scheduled + SCHEDULED_AT_ONCE):
                    coordinator.schedule(dispatched, args=(tf.constant(step, tf.int64),))
                coordinator.join()
                scheduled += SCHEDULED_AT_ONCE
            return scheduled

        # The workers end with the thread that starts them, so this thread kills them, and another one trains.
        killed = threading.Event()
        with ThreadPoolExecutor(1) as pool:
            trained = pool.submit(train, killed)
            kill_workers(kills, Random(seed), workers)
            killed.set()
            scheduled = trained.result()
        return row_of(kills, scheduled, [variable.numpy() for variable in counts])


def row_of(kills: int, scheduled: int, counts: Sequence[np.ndarray]) -> dict[str, int]:
    """Return the row of the table: the least and the most updates that an element has beyond the scheduled steps.

    `counts`: the final values of the variables, float32.
    """
    seen = np.concatenate([values.ravel() for values in counts])
    least, most = int(seen.min()) - scheduled, int(seen.max()) - scheduled
    return {"kills": kills, "scheduled": scheduled, "least": least, "most": most}


def kill_workers(
    kills: int, draw: Random, workers: Sequence[Server], sleep: Callable[[float], None] = time.sleep
) -> None:
    """Kill random workers at random moments, and start each again."""
    for _ in range(kills):
        sleep(draw.uniform(*PAUSES_S))
        worker = draw.choice(workers)
        worker.kill()
        worker.start()


@click.command(cls=OneLineCommand)
@click.option("--kills", type=Integer(0, 10_000), default=100, help="Number of workers that are killed.")
@click.option("--seed", type=Integer(0, 2**31 - 1), default=0, help="Seed of the moments and of the workers.")
@click.option("--output", type=OUTPUT_FILE, help="Write the record to this JSON file.")
def main(kills: int, seed: int, output: Path | None) -> None:
    """Count the updates that TensorFlow's own parameter-server training repeats when workers are killed."""
    # TensorFlow's coordinator waits for lost workers without a limit.
    faulthandler.dump_traceback_later(LONGEST_S + LONGEST_KILL_S * kills, exit=True)
    print_table(keep(output, [counted(0, seed), counted(kills, seed)], COLUMNS))
    sys.stdout.flush()
    os._exit(0)  # the threads of the coordinators still wait for workers that have ended


if __name__ == "__main__":
    main()
