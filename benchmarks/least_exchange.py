"""Measure steps that compute nothing beside the least that an exchange through TensorFlow can be.

    python -m benchmarks.least_exchange --rounds 5 --data-dir DATA

`empty` is a cluster of this package (`bench --arms empty`). `least` is written here with TensorFlow alone: the same tasks
and settings, and a loop in each worker that sends a vector to the parameter server, which adds it to its weights and 1 to
a version, in a critical section, and sends the weights back. No ledger, no staleness, no rule, no journal, no chief's look.
`remote` is `least` with a remote call in place of what TensorFlow makes of operations on another device.
"""

from __future__ import annotations

import atexit
import faulthandler
import multiprocessing
import os
import time
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from functools import partial
from pathlib import Path

import click
import portpicker

from benchmarks.in_turns import Case, Figures, ShownFigure, measure, open_data, options, timed
from ps_cluster.cli.command_line import CommaList, OneLineCommand, Whole
from ps_cluster.config.lazy import tf
from ps_cluster.config.schema import MOST
from ps_cluster.launch.task import start_server
from ps_cluster.system.environment import for_tensorflow
from ps_cluster.system.lifetime import die_with_parent
from ps_cluster.tools.bench import empty
from ps_cluster.tools.bench.throughput import case

PS = "/job:ps/replica:0/task:0/device:CPU:0"
STARTS_WITHIN_S = 180


@click.command(cls=OneLineCommand)
@options
@click.option("--workers", type=Whole(1, 16), default=3)
@click.option("--weights", type=CommaList(Whole(1, 10**8)), default="1000", help="Numbers of weights.")
def main(
    rounds: int, seconds: float, dataset: str, data_dir: Path | None, output: Path | None,
    workers: int, weights: tuple[int, ...],
) -> None:  # fmt: skip
    """Measure steps that compute nothing beside the least that TensorFlow can do, in turns."""
    packed = open_data(dataset, data_dir)
    config = case("tutorial_cnn", "float32", packed, {"cluster.workers": workers}).with_values(empty.CHEAPEST_RULE)
    cases = []
    for length in weights:
        about = {"weights": f"{length:,}", "workers": workers}
        body = (empty.__name__, str(length))
        cases.append(Case({"exchange": "empty"} | about, partial(timed, config, packed, seconds, *body)))
        for name in ("least", "remote"):
            cases.append(Case({"exchange": name} | about, partial(least, length, workers, seconds, name == "remote")))
    measure(cases, rounds, [ShownFigure("steps/s", "steps_per_second")], output)


def least(length: int, workers: int, seconds: float, remote: bool) -> Figures:
    """Return the steps/s of a new cluster of processes that does nothing but exchanges."""
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as chief:
        return chief.submit(_measured, length, workers, seconds, remote).result()


def _measured(length: int, workers: int, seconds: float, remote: bool) -> Figures:
    """Be the chief: start the tasks, and let every worker exchange for some seconds."""
    die_with_parent()
    faulthandler.dump_traceback_later(STARTS_WITHIN_S + 2 * seconds, exit=True)  # a cluster that hangs ends then
    atexit.register(os._exit, 0)  # TensorFlow would wait at the end for the tasks, which are gone by then
    # The functions of tasks that are gone can't be removed there, which TensorFlow says at length.
    os.environ.update(for_tensorflow(os.environ) | {"TF_CPP_MIN_LOG_LEVEL": "3"})
    sizes = {"chief": 1, "ps": 1, "worker": workers}
    cluster = {job: [f"localhost:{portpicker.pick_unused_port()}" for _ in range(size)] for job, size in sizes.items()}
    spawn = multiprocessing.get_context("spawn")
    tasks = [
        spawn.Process(target=_serve, args=(cluster, job, index))
        for job in ("ps", "worker")
        for index in range(sizes[job])
    ]
    try:
        for task in tasks:
            task.start()
        tf.config.experimental_connect_to_cluster(tf.train.ClusterSpec(cluster), "chief", 0, protocol="grpc")
        dispatch, version = _dispatch(length, remote)

        def work(worker: int, until: float) -> int:
            steps = 0
            with tf.device(f"/job:worker/replica:0/task:{worker}/device:CPU:0"):
                while time.monotonic() < until:
                    dispatch(tf.constant(MOST, tf.int64)).numpy()
                    steps += MOST
            return steps

        with ThreadPoolExecutor(workers) as threads:
            warm_up = sum(threads.map(work, range(workers), [time.monotonic() + 1] * workers))  # builds the graphs
            begin = time.monotonic()
            steps = sum(threads.map(work, range(workers), [begin + seconds] * workers))
            took = time.monotonic() - begin
        if int(version.numpy()) != warm_up + steps:
            raise RuntimeError(f"{warm_up + steps} exchanges, but the version is {version.numpy()}")
        return {"steps_per_second": steps / took}
    finally:
        for task in tasks:
            task.kill()


def _serve(cluster: dict[str, list[str]], job: str, index: int) -> None:
    die_with_parent()
    start_server(cluster, job, index, intra_op_threads=1).join()


def _dispatch(length: int, remote: bool) -> tuple[tf.types.experimental.PolymorphicFunction, tf.Variable]:
    """Return the graph of a dispatch, (number of exchanges, int64 []) → the weights; and the version, int64 []."""
    with tf.device(PS):
        weights, version = tf.Variable(tf.zeros([length])), tf.Variable(0, dtype=tf.int64)
        section = tf.CriticalSection(shared_name="slice")

    def change(gradient: tf.Tensor) -> tf.Tensor:
        changed = [weights.assign_add(gradient, read_value=False), version.assign_add(1, read_value=False)]
        with tf.control_dependencies(changed):
            return tf.identity(weights.read_value())

    @tf.function(autograph=False, input_signature=[tf.TensorSpec([length])])
    def exchange(gradient: tf.Tensor) -> tf.Tensor:
        with tf.device(PS):
            return section.execute(lambda: change(gradient))

    concrete = exchange.get_concrete_function()

    def called(gradient: tf.Tensor) -> tf.Tensor:
        concrete.add_to_graph(tf.compat.v1.get_default_graph())
        arguments = [gradient, *concrete.captured_inputs]
        (answer,) = tf.raw_ops.RemoteCall(target=PS, args=arguments, Tout=[tf.float32], f=concrete)
        return tf.ensure_shape(answer, [length])

    @tf.function(autograph=False, input_signature=[tf.TensorSpec([], tf.int64)])
    def dispatch(steps: tf.Tensor) -> tf.Tensor:
        def body(step: tf.Tensor, gradient: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
            return step + 1, called(gradient) if remote else exchange(gradient)

        start = (tf.constant(0, tf.int64), tf.zeros([length]))
        answer: tf.Tensor = tf.while_loop(lambda step, _: step < steps, body, start)[1]
        return answer

    return dispatch, version


if __name__ == "__main__":
    main()
