"""Count the updates that are lost where several threads change the same variables without taking turns.

    python -m benchmarks.keras_optimizer

A parameter server runs the operations of all its workers in threads of one process, as here. Every update adds 1 to
each number, so a variable says how many updates it has seen. docs/results.md has the counts.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import NamedTuple

import click
import keras
import numpy as np
import tensorflow as tf
from rich.table import Table

from ps_cluster.cli.command_line import OneLineCommand, Whole
from ps_cluster.config import build_config
from ps_cluster.report.terminal import make_console
from ps_cluster.server.update_rules.rule import make_rule


class Counted(NamedTuple):
    """A count, and how much of it is lost. Of a vector: the number that has lost most."""

    name: str
    updates: int
    seen: int

    @property
    def lost(self) -> float:
        return 1 - self.seen / self.updates


@click.command(cls=OneLineCommand)
@click.option("--threads", type=Whole(1, 64), default=3)
@click.option("--updates", type=Whole(1, 1_000_000), default=2000, help="Of each thread.")
@click.option("--numbers", type=Whole(1, 100_000_000), default=100_000, help="Length of the vector of weights.")
def main(threads: int, updates: int, numbers: int) -> None:
    """Count the updates that Keras's optimizer and the kernels of this package lose in threads."""
    table = Table("count of", "updates", "counted", "lost", title=f"{threads} threads, {numbers:,} weights")
    for counted in (*of_keras(threads, updates, numbers), of_kernel(threads, updates, numbers)):
        table.add_row(counted.name, f"{counted.updates:,}", f"{counted.seen:,}", f"{counted.lost:.2%}")
    make_console().print(table)


def of_keras(threads: int, updates: int, numbers: int) -> list[Counted]:
    """Return the counts of `keras.optimizers.SGD`, whose momentum slot adds up all updates."""
    weights = keras.Variable(np.zeros(numbers, np.float32))
    optimizer = keras.optimizers.SGD(1.0, momentum=1.0)
    optimizer.build([weights])
    gradient = tf.fill([numbers], -1.0)
    _in_threads(lambda: optimizer.apply([gradient], [weights]), threads, updates)
    slot = keras.ops.convert_to_numpy(optimizer.momentums[0])
    total = threads * updates
    return [
        Counted("Keras SGD: iterations", total, int(optimizer.iterations.numpy())),
        Counted("Keras SGD: momentum", total, int(slot.min())),
    ]


def of_kernel(threads: int, updates: int, numbers: int) -> Counted:
    """Return the count of the same rule here: one kernel with `use_locking=True`."""
    chosen = build_config(overrides={"optimizer.rule": "momentum", "optimizer.weight_decay": 0.0}).optimizer
    settings = chosen.model_copy(update={"momentum": 1.0})  # a configuration takes less than 1 only
    weights = tf.Variable(tf.zeros([numbers]))
    rule = make_rule(settings, weights, np.ones(numbers, np.float32))
    gradient, rate, nothing = tf.fill([numbers], -1.0), tf.constant(1.0), tf.constant(0, tf.int64)
    _in_threads(lambda: rule.apply(gradient, rate, nothing), threads, updates)
    return Counted("locked kernel: momentum", threads * updates, int(rule.slots["momentum"].numpy().min()))


def _in_threads(update: Callable[[], object], threads: int, updates: int) -> None:
    """Run the update as a graph, `updates` times in each of some threads, which begin together."""

    @tf.function(autograph=False)
    def graph() -> tf.Tensor:
        update()
        return tf.constant(0)

    run, begin = graph.get_concrete_function(), threading.Barrier(threads)

    def work() -> None:
        begin.wait()
        for _ in range(updates):
            run()

    workers = [threading.Thread(target=work) for _ in range(threads)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()


if __name__ == "__main__":
    main()
