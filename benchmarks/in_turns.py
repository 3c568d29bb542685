"""Measure cases in turns and print them as a table, for the benchmarks that vary one thing."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import click
from rich.console import Console
from rich.table import Table

from ps_cluster.cli.options import OUTPUT_FILE, NameOf, Number, Whole
from ps_cluster.config.datasets import DATASETS
from ps_cluster.data.packed import PackedDataset
from ps_cluster.files.writing import write_json
from ps_cluster.launch.local_run import resolve_data
from ps_cluster.report.terminal import print_line
from ps_cluster.system import environment
from ps_cluster.tools.bench.throughput import shown, spread

Figures = Mapping[str, Any]  # of one round
NOTHING = "–"  # shown where a case lacks a figure


@dataclass(frozen=True)
class Case:
    about: Mapping[str, Any]  # what distinguishes it from the others
    measure: Callable[[], Figures]

    def __str__(self) -> str:
        return ", ".join(f"{name} {value}" for name, value in self.about.items())


@dataclass(frozen=True)
class Column:
    """A column of a table: figures of all rounds as text."""

    heading: str
    text: Callable[[Sequence[Figures]], str]


def over_rounds(heading: str, name: str, spec: str, factor: float = 1.0) -> Column:
    """Return a column with median, lowest and highest of a figure."""
    return Column(heading, lambda rounds: shown(spread([factor * found[name] for found in rounds]), spec))


def medians(heading: str, names: Sequence[str], spec: str, factor: float = 1.0) -> Column:
    """Return a column with the medians of several figures, joined by slashes. A name may be `section.key`."""

    def text(rounds: Sequence[Figures]) -> str:
        return "/".join(shown_median([_figure(found, name) for found in rounds]) for name in names)

    def shown_median(values: Sequence[float | None]) -> str:
        sound = [value for value in values if value is not None]
        return f"{factor * median(sound):{spec}}" if len(sound) == len(values) else NOTHING

    return Column(heading, text)


def _figure(found: Figures, name: str) -> float | None:
    section, _, key = name.rpartition(".")
    return (found.get(section, {}) if section else found).get(key)


CPU = medians(
    "CPU [ms a step]\nchief/ps/workers",
    [f"cpu_seconds_per_step.{kind}" for kind in ("chief", "ps", "worker")],
    ".3g",
    1e3,
)


def options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add --rounds, --seconds, --dataset, --data-dir and --output."""
    for option in (
        click.option(
            "--output",
            type=OUTPUT_FILE,
            help="Also write every figure to this JSON file.",
        ),
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


def measure(cases: Sequence[Case], rounds: int, output: Path | None) -> list[dict[str, Any]]:
    """Return a row per case with the figures of each round. Rounds go A B C, A B C, …: a drift is fair to all."""
    rows = [{**case.about, "rounds": []} for case in cases]
    for number in range(rounds):
        for case, row in zip(cases, rows):
            print_line(f"round {number + 1}/{rounds}: {case}")
            row["rounds"].append(case.measure())
            if output:
                write_json(output, {"rows": rows})
    return rows


def print_table(title: str, rows: Sequence[Mapping[str, Any]], columns: Sequence[Column], console: Console) -> None:
    """Print a line per row: what distinguishes its case, then `columns`."""
    table = Table(title=title, title_justify="left", box=None, padding=(0, 1, 0, 0))
    names = [name for name in rows[0] if name != "rounds"]
    for name in (*names, *(column.heading for column in columns)):
        table.add_column(name, justify="right", overflow="fold")
    for row in rows:
        table.add_row(*(str(row[name]) for name in names), *(column.text(row["rounds"]) for column in columns))
    console.print(table, highlight=False)
