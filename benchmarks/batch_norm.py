"""Find out what costs accuracy in a short training with BatchNormalization: staleness, or the moving statistics.

    python -m benchmarks.batch_norm --data-dir DATA --seeds 6

Trains a network with three BatchNormalization layers on 10,000 images of CIFAR-10 for 5 epochs: by `fit`, by one worker, and
by two workers with and without the correction of stale gradients. Each is scored twice: as trained, and with moving statistics
that are computed again from the training images at the same weights. A run scores its last checkpoint alone, so that its best
model has the last weights.
"""

from __future__ import annotations

import multiprocessing
import os
import tempfile
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import click
import keras
from keras import layers

import ps_cluster
from benchmarks.parity_programs import CIFAR10_FOLDER, Arrays, cifar10, stacked
from benchmarks.parity_with_fit import BATCH
from benchmarks.records import Column, keep, table
from ps_cluster.cli.command_line import INPUT_PATH, OUTPUT_FILE, OneLineCommand, Whole
from ps_cluster.report.terminal import print_line

EXAMPLES, EPOCHS, PART = 10_000, 5, 250
ARMS: dict[str, dict[str, Any] | None] = {  # name → the options of a run; None: `fit`
    "`fit`": None,
    "one worker": {"workers": 1},
    "two workers, `predict`": {"workers": 2},
    "two workers, `none`": {"workers": 2, "staleness_method": "none"},
}
COLUMNS = {
    "arm": Column(heading="trained by"),
    "trained": Column(heading="as trained", digits=1, spread="deviation"),
    "again": Column(heading="with statistics computed again", digits=1, spread="deviation"),
}


def network() -> keras.Model:
    hidden = [
        layer
        for filters in (32, 64, 128)
        for layer in (
            layers.Conv2D(filters, 3, padding="same", use_bias=False), layers.BatchNormalization(), layers.ReLU(),
            layers.MaxPooling2D(),
        )
    ]  # fmt: skip
    return stacked((32, 32, 3), layers.Rescaling(1 / 255), *hidden, layers.Flatten(), outputs=10)


def accuracies(model: keras.Model, arrays: Arrays) -> tuple[float, float]:
    """Return two test accuracies in percent: as trained, and with statistics that are the means over training images."""
    trained = _accuracy(model, arrays)
    normalizations = [layer for layer in model.layers if isinstance(layer, layers.BatchNormalization)]
    for number in range(EXAMPLES // PART):
        for layer in normalizations:
            layer.momentum = number / (number + 1)
        model(arrays["x_train"][number * PART : (number + 1) * PART].astype("float32"), training=True)
    return trained, _accuracy(model, arrays)


def _accuracy(model: keras.Model, arrays: Arrays) -> float:
    outputs = model.predict(arrays["x_test"], batch_size=500, verbose=0)
    return 100 * float((outputs.argmax(1) == arrays["y_test"]).mean())


def scores(arm: str, seed: int) -> tuple[float, float]:
    """Train an arm with a seed, and return what `accuracies` returns."""
    arrays = cifar10()
    arrays |= {name: arrays[name][:EXAMPLES] for name in ("x_train", "y_train")}
    options = ARMS[arm]
    if options is None:
        keras.utils.set_random_seed(seed)
        model = network()
        model.fit(arrays["x_train"], arrays["y_train"], batch_size=BATCH, epochs=EPOCHS, verbose=0)
        return accuracies(model, arrays)
    with tempfile.TemporaryDirectory(prefix="batch-norm-") as folder:
        result = ps_cluster.train(
            network, arrays, run_dir=Path(folder) / "run", ps=1, epochs=EPOCHS, batch_size=BATCH, seed=seed,
            settings={"evaluation.draw_results": False, "evaluation.after_training": True}, **options,
        )  # fmt: skip
        return 100 * result.history[-1]["test_accuracy"], accuracies(result.model, arrays)[1]


@click.command(cls=OneLineCommand)
@click.option("--data-dir", type=INPUT_PATH, required=True, help="Folder of CIFAR-10.")
@click.option("--seeds", type=Whole(1, 20), default=6)
@click.option("--output", type=OUTPUT_FILE, help="Also write every score to this JSON file.")
def main(data_dir: Path, seeds: int, output: Path | None) -> None:
    """Compare the test accuracies of all arms, over some seeds."""
    os.environ[CIFAR10_FOLDER] = str(data_dir.absolute())
    rows: list[dict[str, Any]] = [{"arm": arm, "trained": [], "again": []} for arm in ARMS]
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn"), max_tasks_per_child=1) as pool:
        for seed in range(seeds):
            for row in rows:
                trained, again = pool.submit(scores, row["arm"], seed).result()
                row["trained"].append(trained)
                row["again"].append(again)
                print_line(
                    f"seed {seed}, {row['arm']}: {trained:.1f} as trained, {again:.1f} with statistics computed again"
                )
            record = keep(output, rows, COLUMNS)
    for line in table([record]).splitlines():
        print_line(line)


if __name__ == "__main__":
    main()
