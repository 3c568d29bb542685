"""Measure cases in turns, for the benchmarks that vary one thing: a drift of the machine's speed is fair to all."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from benchmarks.records import Column, Record, keep, print_table
from ps_cluster.cli.command_line import OUTPUT_FILE, NameOf, Number, Whole
from ps_cluster.config import RunConfig
from ps_cluster.config.datasets import DATASETS
from ps_cluster.data.packed import PackedDataset
from ps_cluster.installation import IMPORT_FOLDER
from ps_cluster.launch.local_run import resolve_data
from ps_cluster.report.terminal import print_line
from ps_cluster.system import environment
from ps_cluster.tools.bench.arms import BenchArm
from ps_cluster.tools.bench.throughput import run_arm

MOST_STEPS_PER_S = 5_000  # so high that no run is done before its time is over
Figures = Mapping[str, Any]  # of one round


@dataclass(frozen=True)
class Case:
    about: Mapping[str, Any]  # what distinguishes it from the others
    measure: Callable[[], Figures]

    def __str__(self) -> str:
        return ", ".join(f"{name} {value}" for name, value in self.about.items())


@dataclass(frozen=True)
class ShownFigure:
    """A figure of every round as a column of the table. Its name may be `section.key`. `factor`: shown / measured."""

    heading: str
    name: str
    digits: int = 0
    factor: float = 1.0

    def value(self, figures: Figures) -> float:
        section, _, key = self.name.rpartition(".")
        measured: float = (figures[section] if section else figures)[key]
        return self.factor * measured


def options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add --rounds, --seconds, --dataset, --data-dir and --output."""
    for option in (
        click.option("--output", type=OUTPUT_FILE, help="Also write every figure to this JSON file, as a record."),
        click.option("--data-dir", type=click.Path(path_type=Path), help="Where the data set is."),
        click.option("--dataset", type=NameOf(DATASETS), default="auto"),
        click.option("--seconds", type=Number(1, 300), default=12.0, help="Duration of each measurement."),
        click.option("--rounds", type=Whole(1, 100), default=3, help="Measurements of each case."),
    ):
        command = option(command)
    return command


def open_data(dataset: str, data_dir: Path | None) -> PackedDataset:
    """Return the data set that the runs map. Prepares this process and its children for TensorFlow."""
    os.environ.update(environment.for_tensorflow(os.environ))
    return resolve_data(DATASETS[dataset].Settings(dataset=dataset, data_dir=data_dir), notify=print_line)


def measure(cases: Sequence[Case], rounds: int, shown: Sequence[ShownFigure], output: Path | None) -> Record:
    """Measure all cases in every round, A B C, A B C, …; print the table and return its record.

    Args:
      output: gets the record of what is known after each measurement.
    """
    columns = {name: Column(heading=name) for name in cases[0].about}
    columns |= {one.name: Column(heading=one.heading, digits=one.digits) for one in shown}
    rows: list[dict[str, Any]] = [
        {**{name: f"{value}" for name, value in case.about.items()}, **{one.name: [] for one in shown}}
        for case in cases
    ]
    for number in range(rounds):
        for case, row in zip(cases, rows):
            print_line(f"round {number + 1}/{rounds}: {case}")
            figures = case.measure()
            for one in shown:
                row[one.name].append(one.value(figures))
            record = keep(output, [row for row in rows if row[shown[0].name]], columns)
    print_table(record)
    return record


def timed(
    config: RunConfig,
    packed: PackedDataset,
    seconds: float,
    *body: str,
    project: Path = IMPORT_FOLDER,
    warm_up_s: float = 0.0,
) -> dict[str, Any]:
    """Return the result of a project's `benchmarks.timed_run` over `seconds` of training; `body` as there.

    Raises RunFailed if it fails.
    """
    steps = round(MOST_STEPS_PER_S * (warm_up_s + seconds + 10))
    warm_up = ("--warm-up", str(warm_up_s)) if warm_up_s else ()  # an earlier checkout does not know it
    arm = BenchArm("timed_run", "benchmarks.timed_run", (str(seconds), *warm_up, *body), project=project)
    return run_arm(arm, config.with_values({"training.steps": steps}), packed)
