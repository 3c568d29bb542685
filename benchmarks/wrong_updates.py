"""Measure how much accuracy wrong updates cost, to see whether a data set is hard enough to show them.

    python -m benchmarks.wrong_updates --dataset synthetic --seeds 0,1,2 --factors 1,-10

Trains the configured network in this process, with gradients as stale as those of three workers. One update of every
hundred is multiplied by a factor (1: nothing is wrong; -1: the wrong sign; -10: the wrong sign and size).
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import click
import numpy as np

from benchmarks.in_turns import open_data
from ps_cluster.cli.command_line import CommaList, Number, OneLineCommand
from ps_cluster.config import RunConfig, build_config
from ps_cluster.config.datasets import DATASETS
from ps_cluster.config.networks import NETWORKS
from ps_cluster.data.packed import PackedDataset
from ps_cluster.launch.local_run import complete_config
from ps_cluster.report.terminal import print_line

STALENESS = 2  # of 3 workers that are always between pull and push
EVERY = 100
SCORED_AT_ONCE = 500


@click.command(cls=OneLineCommand)
@click.option("--seeds", type=CommaList(click.IntRange(0, 2**31 - 1)), default="0,1,2")
@click.option("--factors", type=CommaList(Number(-1e6, 1e6)), default="1,-10", help="For one gradient in 100.")
@click.option("--model", type=click.Choice(NETWORKS.names), default="airbench")
@click.option("--epochs", type=Number(0, min_open=True), help="Default: those of the network's recipe.")
@click.option("--dataset", type=click.Choice(DATASETS.names), default="synthetic")
@click.option("--data-dir", type=click.Path(path_type=Path), help="Where CIFAR-10 is.")
def main(
    seeds: Sequence[int],
    factors: Sequence[float],
    model: str,
    epochs: float | None,
    dataset: str,
    data_dir: Path | None,
) -> None:
    """Train with wrong updates and without, and print each test accuracy."""
    packed = open_data(dataset, data_dir)
    length = {} if epochs is None else {"training.epochs": epochs}
    print_line(
        f"{model}, {packed.name} ({packed.kind}), test accuracy [%], one process, gradients {STALENESS} versions old"
    )
    for factor in factors:
        found = []
        for seed in seeds:
            values = {"model.name": model, "training.seed": seed, "data.dataset": dataset} | length
            found.append(100 * accuracy(complete_config(build_config(None, values), packed), packed, factor))
        spread = f", sd {np.std(found, ddof=1):.2f}" if len(found) > 1 else ""
        listed = ", ".join(f"{value:.2f}" for value in found)
        print_line(
            f"factor {factor:g} of one in {EVERY}: {listed}: mean {np.mean(found):.2f}{spread}, n = {len(found)}"
        )


def accuracy(config: RunConfig, dataset: PackedDataset, factor: float) -> float:
    """Return the test accuracy, in 0..1, of a training in which every hundredth gradient is multiplied by `factor`."""
    import tensorflow as tf

    from ps_cluster.models import flat
    from ps_cluster.models.build import build
    from ps_cluster.server.rules import make_rule
    from ps_cluster.training.session import first_examples
    from ps_cluster.training.step import TrainStep

    os.chdir(dataset.directory)  # the graph has relative paths to the data files
    model = build(config.model, dataset.spec, seed=config.training.seed, examples=first_examples(dataset))
    network = flat.FlatNetwork(model)
    step = TrainStep(config, network, dataset.spec, train_examples=dataset.train_examples)
    start = flat.flatten(model.trainable_variables)
    weights, statistics = tf.Variable(start), tf.Variable(flat.flatten(flat.statistics_of(model)))
    earlier = [tf.Variable(start) for _ in range(STALENESS)]  # oldest first
    factors = network.weights.factors((rule.match, rule.factor) for rule in config.optimizer.learning_rate_factors)
    rule = make_rule(config.optimizer, weights, factors)

    @tf.function(input_signature=[tf.TensorSpec([], tf.int64)])
    def train(number: tf.Tensor) -> None:
        result = step(number, tf.cast(earlier[0].read_value(), config.wire), statistics.read_value())
        wrong = tf.equal(number % EVERY, EVERY // 2)
        gradient = tf.cast(result.gradient, tf.float32) * tf.where(wrong, tf.cast(factor, tf.float32), 1.0)
        with tf.control_dependencies([gradient]):
            for older, newer in zip(earlier, [*earlier[1:], weights], strict=True):
                older.assign(newer)
        rule.apply(gradient, result.learning_rate, number)
        statistics.assign(network.keep * statistics + result.fresh)

    for number in range(config.total_steps(dataset.train_examples)):
        train(tf.constant(number, tf.int64))
    flat.assign(model, weights.numpy(), statistics.numpy())
    labels = np.asarray(dataset.target("test"))
    (images,) = dataset.inputs("test").values()
    scores = model.predict(np.asarray(images, np.float32), batch_size=SCORED_AT_ONCE, verbose=0)
    return float(np.mean(scores.argmax(axis=1) == labels))


if __name__ == "__main__":
    main()
