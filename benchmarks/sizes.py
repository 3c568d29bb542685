"""Train large networks and large examples for some steps, and measure the memory of each task.

    python -m benchmarks.sizes

The sets are generated. `--dataset benchmarks/sizes.py:Wide --model benchmarks/sizes.py:hundred_million` names them in any
other command. Prints a row for each case: the highest RssAnon of each task in MiB, and the highest sum at one time.
"""

from __future__ import annotations

import contextlib
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from pathlib import Path
from typing import Any

import click
import numpy as np
import psutil

from ps_cluster.cli.command_line import OneLineCommand
from ps_cluster.config.datasets import Contents, DataSet, ImageDataSet
from ps_cluster.config.lazy import keras
from ps_cluster.config.objectives import ExampleSpec
from ps_cluster.files.json_files import read_json
from ps_cluster.report.terminal import print_line
from ps_cluster.runs.rows import ClusterFile
from ps_cluster.runs.run_dir import RunDir

HERE = Path(__file__)
MB = 2**20
CLASSES, FEATURES = 1000, 2000
_SMALL_RATE = ("--set", "optimizer.learning_rate=0.001")
CASES: dict[str, tuple[str, ...]] = {
    "100.3 M weights": ("Wide", "hundred_million", "--workers", "3"),
    "29.2 M weights, 1 worker": ("Wide", "thirty_million", "--workers", "1"),
    "29.2 M weights, 2 ps": ("Wide", "thirty_million", "--workers", "2", "--ps", "2"),
    "29.2 M weights, float32": ("Wide", "thirty_million", "--workers", "3", "--precision", "float32"),
    "29.2 M weights, sync": ("Wide", "thirty_million", "--workers", "2", "--mode", "sync"),
    "224x224x3, 1,000 classes": ("Large", "small_cnn", "--workers", "2", "--batch-size", "32"),
}


class Large(ImageDataSet):
    """Images of noise: 1,000 classes, 224x224x3."""

    generated = True

    def read(self, source: Path | None, settings: Any) -> Contents:
        return Contents.of(*map(_noise, (2 * CLASSES, CLASSES)), classes=[str(number) for number in range(CLASSES)])


def _noise(examples: int) -> dict[str, np.ndarray]:
    draw = np.random.default_rng(examples)
    images = draw.integers(0, 256, (examples, 224, 224, 3), np.uint8)
    return {"image": images, "target": (np.arange(examples) % CLASSES).astype(np.uint16)}


class Wide(DataSet):
    """Rows of 2,000 features, of ten classes that a linear model tells apart."""

    generated = True

    def read(self, source: Path | None, settings: Any) -> Contents:
        return Contents.of(*map(_rows, (20_000, 2000)))


def _rows(examples: int) -> dict[str, np.ndarray]:
    classes = np.random.default_rng(0).normal(size=(FEATURES, 10))
    rows = np.random.default_rng(examples).normal(size=(examples, FEATURES)).astype(np.float32)
    return {"x": rows, "target": (rows @ classes).argmax(1).astype(np.uint8)}


def hundred_million(examples: ExampleSpec, settings: Any) -> keras.Model:
    return _dense(examples, (8192, 8192, 2048))


def thirty_million(examples: ExampleSpec, settings: Any) -> keras.Model:
    return _dense(examples, (4096, 4096, 1024))


def _dense(examples: ExampleSpec, units: tuple[int, ...]) -> keras.Model:
    (field,) = examples.inputs.values()
    layers = [keras.layers.Dense(count, activation="relu") for count in units]
    return keras.Sequential([keras.Input(field.shape), *layers, keras.layers.Dense(examples.outputs)])


def small_cnn(examples: ExampleSpec, settings: Any) -> keras.Model:
    layers: list[Any] = [keras.Input(examples.image("small_cnn").shape), keras.layers.Rescaling(1 / 127.5, offset=-1)]
    for width in (32, 64, 128, 256):
        layers.append(keras.layers.Conv2D(width, 3, strides=2, padding="same", use_bias=False))
        layers += [keras.layers.BatchNormalization(), keras.layers.Activation("relu")]
    return keras.Sequential([*layers, keras.layers.GlobalAveragePooling2D(), keras.layers.Dense(examples.outputs)])


@click.command(cls=OneLineCommand)
@click.option("--steps", type=click.IntRange(1), default=60, help="Updates of each run.")
@click.option("--folder", type=click.Path(path_type=Path), default=None, help="Where there is room; else the system's.")
def main(steps: int, folder: Path | None) -> None:
    """Measure the memory of each task, for each case."""
    for name, (dataset, model, *more) in CASES.items():
        with tempfile.TemporaryDirectory(prefix="sizes-", dir=folder) as place:
            run = ["run", "--dataset", f"{HERE}:{dataset}", "--model", f"{HERE}:{model}", "--steps", str(steps)]
            command = [sys.executable, "-m", "ps_cluster", *run, *_SMALL_RATE, *more, "--run-dir", f"{place}/run"]
            print_line(f"{name}: {peaks(command, RunDir(Path(place) / 'run'))}")


def peaks(command: list[str], run_dir: RunDir) -> str:
    """Run a command; return the highest RssAnon of each task of its run, and of all at one time, in MiB."""
    highest: dict[str, float] = defaultdict(float)
    with subprocess.Popen(command, stdout=subprocess.DEVNULL) as run:
        while run.poll() is None:
            now = {}
            for row in read_json(run_dir.cluster, ClusterFile).tasks if run_dir.cluster.is_file() else ():
                with contextlib.suppress(psutil.NoSuchProcess):
                    memory = psutil.Process(row.pid or 0).memory_info()
                    now[f"{row.type} {row.index}"] = (memory.rss - memory.shared) / MB
            for task, size in (now | {"all": sum(now.values())}).items():
                highest[task] = max(highest[task], size)
            time.sleep(0.3)
    return f"exit code {run.returncode}, " + ", ".join(f"{task} {size:,.0f}" for task, size in highest.items())


if __name__ == "__main__":
    main()
