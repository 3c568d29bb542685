"""Compare the speed of two checkouts of the code, or of two settings, which train in turns.

    python -m benchmarks.before_after --before OTHER_CHECKOUT --data-dir DATA
    python -m benchmarks.before_after --set cluster.evaluator=true --set-before evaluation.recompute_updates=false \
        --models tutorial_cnn --set training.steps=5000 --data-dir DATA

Each side trains by the command `run` of its checkout. So any two commits can be compared if their `run` writes a
summary.json. On a noisy machine the processor time of a run scatters less than its examples/s. The second command above
measures what it costs to recompute a sample of the updates for the proof. The evaluator starts TensorFlow for this,
which takes some seconds of a core, so the training has to be long.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import product
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import click
from pydantic import BaseModel

from benchmarks.records import Column, keep, print_table
from benchmarks.training import train
from ps_cluster.cli.command_line import OneLineCommand
from ps_cluster.cli.value_types import OUTPUT_FILE, CommaList, Integer, NameOf
from ps_cluster.config.datasets import DATASETS
from ps_cluster.config.networks import NETWORKS
from ps_cluster.config.user_settings import parse_assignment
from ps_cluster.errors import UserError
from ps_cluster.files.json_files import read_json
from ps_cluster.installation import IMPORT_FOLDER
from ps_cluster.report.terminal import print_line
from ps_cluster.tools.bench.cases import RULE, UPDATES_ONLY, known_steps

FOLDER = click.Path(exists=True, file_okay=False, path_type=Path, resolve_path=True)
COLUMNS = {
    "network": Column(heading="network"),
    "precision": Column(heading="precision"),
    "before": Column(heading="before [examples/s]"),
    "now": Column(heading="now [examples/s]"),
    "ratio": Column(heading="examples/s, now ÷ before", digits=3),
    "cpu": Column(heading="processor time of a run, now ÷ before", digits=3),
    "start": Column(heading="time to the first update, now ÷ before", digits=3),
    "memory": Column(heading="memory, now ÷ before", digits=3),
}


class Measured(BaseModel):
    """The fields of summary.json that describe the speed of a run. A commit can be compared if its runs write them all."""

    examples_per_second: float | None
    cpu_seconds: float
    startup_seconds: float
    peak_memory_bytes: float


def measured(checkout: Path, settings: Mapping[str, Any]) -> Measured:
    """Train with the code of a checkout, and return the speed of the run.

    Raises:
      RunFailed: the training failed.
    """
    with TemporaryDirectory(prefix="before-after-") as folder:
        root = Path(folder) / "run"
        train(root, settings, checkout=checkout)
        return read_json(root / "summary.json", Measured)


def compared(before: Measured, now: Measured) -> dict[str, float]:
    """Return the speeds of two runs and their ratios, by the columns of the table.

    Raises:
      UserError: a run ended before its examples/s could be measured.
    """
    if not (before.examples_per_second and now.examples_per_second):
        raise UserError("--set training.steps: a run was over before it had a rate: give more steps")
    return {
        "before": before.examples_per_second,
        "now": now.examples_per_second,
        "ratio": now.examples_per_second / before.examples_per_second,
        "cpu": now.cpu_seconds / before.cpu_seconds,
        "start": now.startup_seconds / before.startup_seconds,
        "memory": now.peak_memory_bytes / before.peak_memory_bytes,
    }


@click.command(cls=OneLineCommand)
@click.option(
    "--before",
    type=FOLDER,
    default=IMPORT_FOLDER,
    help="The checkout with which this checkout is compared; default: this checkout itself, to compare settings.",
)
@click.option("--set", "both", multiple=True, metavar="KEY=VALUE", help="A setting of both checkouts; repeatable.")
@click.option(
    "--set-before",
    "earlier",
    multiple=True,
    metavar="KEY=VALUE",
    help="A setting of the checkout --before only; repeatable.",
)
@click.option(
    "--models",
    type=CommaList(NameOf(NETWORKS)),
    default="tutorial_cnn,cifar_tf_cnn,airbench",
    help="Networks to measure, separated by commas.",
)
@click.option(
    "--precisions", type=CommaList(), default="float32,bfloat16", help="Precisions to measure, separated by commas."
)
@click.option("--rounds", type=Integer(1, 100), default=5, help="How often each network is measured in each precision.")
@click.option("--dataset", type=NameOf(DATASETS), default="auto")
@click.option(
    "--data-dir", type=click.Path(exists=True, path_type=Path, resolve_path=True), help="The folder of the data set."
)
@click.option("--output", type=OUTPUT_FILE, help="Also write every figure to this JSON file, as a record.")
def main(
    before: Path, both: tuple[str, ...], earlier: tuple[str, ...], models: tuple[str, ...], precisions: tuple[str, ...],
    rounds: int, dataset: str, data_dir: Path | None, output: Path | None,
) -> None:  # fmt: skip
    """Compare the speed of two checkouts, or of two settings, in turns."""
    data = {"data.dataset": dataset, **({"data.data_dir": f"{data_dir}"} if data_dir else {})}
    shared, only_before = (dict(map(parse_assignment, words)) for words in (both, earlier))
    figures = [name for name in COLUMNS if name not in ("network", "precision")]
    rows: list[dict[str, Any]] = [
        {"network": model, "precision": precision, **{name: [] for name in figures}}
        for model, precision in product(models, precisions)
    ]
    for number, row in product(range(rounds), rows):
        print_line(f"round {number + 1}/{rounds}: {row['network']}, {row['precision']}")
        of_row = {"model.name": row["network"], "model.precision": row["precision"]}
        length = {"training.steps": steps} if (steps := known_steps(row["network"])) else {}
        settings = {**RULE, **UPDATES_ONLY, **data, **of_row, **length, **shared}
        arms = {"before": (before, settings | only_before), "now": (IMPORT_FOLDER, settings)}
        # Every second round measures `now` first, so that neither is always the first.
        found = {name: measured(*arms[name]) for name in sorted(arms, reverse=bool(number % 2))}
        for key, value in compared(found["before"], found["now"]).items():
            row[key].append(value)
        record = keep(output, [one for one in rows if one["now"]], COLUMNS)
    print_table(record)


if __name__ == "__main__":
    main()
