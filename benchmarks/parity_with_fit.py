"""Train Keras programs by Keras's `fit`, by `ps_cluster.fit` and by `run --workers 3 --ps 1`, and compare their test scores.

    python -m benchmarks.parity_with_fit --data-dir PATH --output parity.json
    python -m benchmarks.parity_with_fit --programs "regression,dropout" --seeds 1

All three ways get the same arrays, epochs, batch size, optimizer and learning rate. The batch size of a worker is that of
`fit`, so all make the same number of updates. Other settings of a run have their default values. `fit` and
`ps_cluster.fit` are scored by their last weights, a run by its last checkpoint.
"""

from __future__ import annotations

import multiprocessing
import os
import tempfile
from collections.abc import Mapping
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from statistics import mean
from typing import Any

import click
import keras
import numpy as np
import tensorflow as tf

import ps_cluster
from benchmarks.parity_programs import CIFAR10_FOLDER, PROGRAMS, Arrays, cifar10
from benchmarks.records import Column, keep, table
from ps_cluster.cli.command_line import OneLineCommand
from ps_cluster.cli.value_types import INPUT_PATH, OUTPUT_FILE, CommaList, Integer
from ps_cluster.config.user_settings import parse_assignment
from ps_cluster.report.terminal import print_line

BATCH = 128
COLUMNS = {
    "program": Column(heading="program"),
    "epochs": Column(heading="epochs"),
    "fit": Column(heading="`fit`", digits=1, spread="deviation"),
    "cluster_fit": Column(heading="`ps_cluster.fit`", digits=1, spread="deviation"),
    "run": Column(heading="run", digits=1, spread="deviation"),
    "difference": Column(heading="difference"),
}


def part_of(arrays: Arrays, axis: str, split: str) -> Any:
    """Return inputs ("x") or targets ("y") of a split, as `fit` and `train` take them: a dictionary if there are several."""
    found = {
        name.partition(".")[2]: rows for name, rows in arrays.items() if name.partition(".")[0] == f"{axis}_{split}"
    }
    return found.get("", found)


def for_fit(inputs: Any) -> Any:
    """Return inputs as `fit` takes them. Texts become tensors."""
    return keras.tree.map_structure(lambda rows: tf.constant(rows) if rows.dtype.kind == "U" else rows, inputs)


def score_of_fit(name: str, seed: int, settings: Mapping[str, object] | None) -> float:
    """Train by `fit`, or if there are `settings`, by `ps_cluster.fit` with three workers. Return the last weights' score."""
    program = PROGRAMS[name]
    arrays = program.data()  # may write the weights that the model begins with
    keras.utils.set_random_seed(seed)
    model = program.build()
    x, y = part_of(arrays, "x", "train"), part_of(arrays, "y", "train")
    options: dict[str, Any] = {"batch_size": BATCH, "epochs": program.epochs, "verbose": 0}
    options["class_weight"] = program.class_weight or None
    if settings is None:
        model.fit(for_fit(x), y, **options)
    else:
        with tempfile.TemporaryDirectory(prefix="parity-") as folder:
            run = Path(folder) / "run"
            ps_cluster.fit(model, x, y, **options, workers=3, ps=1, seed=seed, settings=settings, run_dir=run)
    return score_of(model, arrays)


def score_of(model: keras.Model, arrays: Arrays) -> float:
    """Return the test accuracy of a model, or for a regression the mean absolute error, in percent.

    If there are several targets, this is the score of the first one.
    """
    x_test, target = for_fit(part_of(arrays, "x", "test")), part_of(arrays, "y", "test")
    outputs = model.predict(x_test, verbose=0)
    if isinstance(target, dict):
        first = next(iter(target))
        outputs, target = outputs[first], target[first]
    if np.isin(target, (0, 1)).all() and outputs.shape[1] == 1:
        threshold = 0.5 if model.layers[-1].activation is keras.activations.sigmoid else 0.0
        return 100 * float(((outputs[:, 0] > threshold) == target).mean())
    if target.dtype.kind == "f" and target.ndim == 1:
        return 100 * float(np.abs(outputs[:, 0] - target).mean())
    if target.ndim == 2 and target.dtype == np.uint8:
        return 100 * float(((outputs > 0) == (target > 0)).mean())
    return 100 * float((outputs.argmax(1) == (target.argmax(1) if target.ndim == 2 else target)).mean())


def score_of_run(name: str, seed: int, settings: Mapping[str, object]) -> float:
    """Train by a run of three workers and a parameter server, and return the score of its last checkpoint in percent."""
    program = PROGRAMS[name]
    arrays = program.data()
    data = {f"{axis}_{split}": part_of(arrays, axis, split) for axis in "xy" for split in ("train", "test")}
    weights = {f"training.class_weights.{label}": weight for label, weight in program.class_weight.items()}
    with tempfile.TemporaryDirectory(prefix="parity-") as folder:
        result = ps_cluster.train(
            program.build, data, run_dir=Path(folder) / "run", workers=3, ps=1, epochs=program.epochs, batch_size=BATCH,
            seed=seed, settings={**weights, "evaluation.draw_results": False, **settings},
        )  # fmt: skip
        last = result.history[-1]
    score: float = last["test_accuracy"] if last["test_error"] is None else last["test_error"]
    return 100 * score


@click.command(cls=OneLineCommand)
@click.option(
    "--programs",
    type=CommaList(click.Choice(list(PROGRAMS))),
    default=",".join(PROGRAMS),
    help="The programs to compare, separated by commas; default: all.",
)
@click.option("--seeds", type=Integer(1, 20), default=3)
@click.option(
    "--data-dir", type=INPUT_PATH, help="Folder of CIFAR-10. Without it, the programs that need CIFAR-10 are left out."
)
@click.option("--set", "assignments", multiple=True, metavar="KEY=VALUE", help="A setting of the runs.")
@click.option("--output", type=OUTPUT_FILE, help="Also write every score to this JSON file.")
def main(
    programs: tuple[str, ...], seeds: int, data_dir: Path | None, assignments: tuple[str, ...], output: Path | None
) -> None:
    """Compare each program's test scores by `fit`, by `ps_cluster.fit` and by a run, over some seeds."""
    if data_dir:
        os.environ[CIFAR10_FOLDER] = str(data_dir.absolute())
    settings: dict[str, Any] = dict(map(parse_assignment, assignments))
    rows: list[dict[str, Any]] = []
    # Each training has a new process, since TensorFlow keeps the memory and the random state of an earlier one.
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn"), max_tasks_per_child=1) as pool:
        for name in programs:
            if PROGRAMS[name].data is cifar10 and not data_dir:
                print_line(f"{name}: left out: it needs --data-dir")
                continue
            scores: dict[str, Any] = {"fit": [], "cluster_fit": [], "run": []}
            for seed in range(seeds):
                scores["fit"].append(pool.submit(score_of_fit, name, seed, None).result())
                scores["cluster_fit"].append(pool.submit(score_of_fit, name, seed, settings).result())
                scores["run"].append(pool.submit(score_of_run, name, seed, settings).result())
            scores["difference"] = f"{mean(scores['run']) - mean(scores['fit']):+.1f}"
            rows.append({"program": name, "epochs": PROGRAMS[name].epochs, **scores})
            print_line(table([keep(output, rows, COLUMNS)]).splitlines()[-1])


if __name__ == "__main__":
    main()
