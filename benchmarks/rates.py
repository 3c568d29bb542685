"""Find a learning rate and a momentum for each mode of a network, on held-out training images.

    python -m benchmarks.rates --model tutorial_cnn --modes async,sync,single --epochs 4 \\
        --data-dir DATA --output runs/rates

Trains the whole grid, resumes where it was interrupted, and writes rates.md (every point), rates.json and modes.json.
The lines of modes.json belong into the recipe in the network's file. The test images are not used.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from statistics import mean
from typing import Any

import click

from ps_cluster.cli.command_line import CommaList, NameOf, Number, OneLineCommand
from ps_cluster.config import RunConfig, build_config, load_config
from ps_cluster.config.datasets import DATASETS
from ps_cluster.config.modes import MODES
from ps_cluster.config.networks import NETWORKS, FoundRates
from ps_cluster.errors import RunFailed, UserError
from ps_cluster.files import locks
from ps_cluster.files.json_files import read_json
from ps_cluster.files.writing import write_json, write_whole
from ps_cluster.report.terminal import print_line
from ps_cluster.runs.result_rows import Summary
from ps_cluster.runs.run_dir import RunDir
from ps_cluster.system import environment
from ps_cluster.tools.compare.plan import Comparison, PlannedArm, train_all

HELD_OUT = 5000
_TUNED = [
    mode.name for mode in MODES if mode.own_rule is None and not mode.rated_as
]  # modes with a rule of their own are left out: a table can't set it
_MOST_ARMS = 100  # limit of a comparison


@dataclass(frozen=True)
class Point:
    """One point of the grid. `scores`: accuracy on held-out images, 0..1, one per seed; None where the run diverged."""

    place: tuple[str, int, int]  # mode, workers, batch per worker
    learning_rate: float
    momentum: float
    scores: tuple[float | None, ...]

    @property
    def score(self) -> float | None:
        """Mean over seeds; None if one diverged."""
        sound = [score for score in self.scores if score is not None]
        return mean(sound) if len(sound) == len(self.scores) else None


@click.command(cls=OneLineCommand)
@click.option("--model", type=NameOf(NETWORKS), default="tutorial_cnn")
@click.option("--modes", type=CommaList(click.Choice(_TUNED)), default="async,sync,single")
@click.option("--batches", type=CommaList(click.IntRange(1, 10_000)), default="128", help="Batch sizes per worker.")
@click.option(
    "--factors", type=CommaList(Number(0, min_open=True)), default="0.5,1,2,4", help="Factors on the network's rate."
)
@click.option("--momenta", type=CommaList(Number(0, 0.999)), default="0,0.5,0.9")
@click.option("--epochs", type=Number(0, min_open=True), default=4.0)
@click.option("--seeds", type=click.IntRange(1, 20), default=1)
@click.option("--held-out", type=click.IntRange(1), default=HELD_OUT, help="Training images held out for choosing.")
@click.option("--dataset", type=click.Choice(DATASETS.names), default="auto")
@click.option("--data-dir", type=click.Path(path_type=Path), help="Where CIFAR-10 is.")
@click.option(
    "--output", type=click.Path(file_okay=False, path_type=Path), required=True, help="Folder of runs and table."
)
def main(output: Path, **grid: Any) -> None:
    """Train a grid of learning rates and momenta for each mode, and write the results."""
    os.environ.update(environment.for_tensorflow(os.environ))
    with locks.sole_use(output, "--output:", notify=print_line):
        roots, code = train_all(comparison(**grid), output)
        if code:
            raise RunFailed(f"stopped before all runs were trained; the same command goes on: {output}")
        points = read_points(roots)
        write_whole(output / "rates.md", table(points))
        write_whole(output / "modes.json", recipe_lines(points))
        write_json(output / "rates.json", [vars(point) | {"score": point.score} for point in points])
    for line in (*table(points).splitlines(), *recipe_lines(points).splitlines(), *at_the_edge(points)):
        print_line(line)


def comparison(
    *, model: str, modes: Sequence[str], batches: Sequence[int], factors: Sequence[float], momenta: Sequence[float],
    epochs: float, seeds: int, held_out: int, dataset: str, data_dir: Path | None,
) -> Comparison:  # fmt: skip
    """Return the grid as runs of equal work: an arm per mode, batch, rate and momentum, on one network."""
    own = build_config(None, {"model.name": model, "optimizer.rule": _rule_of(model)}).optimizer.learning_rate
    arms = [
        {
            "mode": mode,
            "set": {
                "training.batch_size_per_worker": batch,
                "optimizer.rule": _rule_of(model),
                "optimizer.learning_rate": own * factor,
                "optimizer.momentum": momentum,
            },
        }
        for mode, batch, factor, momentum in product(modes, batches, factors, momenta)
    ]
    settings = {
        "model.name": model, "training.epochs": epochs, "evaluation.validation_examples": held_out,
        "data.dataset": dataset, "data.data_dir": str(data_dir) if data_dir else None,
    }  # fmt: skip
    if len(arms) > _MOST_ARMS:
        raise UserError(f"--modes, --batches, --factors, --momenta: got {len(arms)} combinations: at most {_MOST_ARMS}")
    return Comparison(
        arms=tuple(map(PlannedArm.model_validate, arms)), seeds=seeds,
        batches=("same_per_worker",), learning_rate="same", settings=settings,
        score_every_epochs=epochs,  # only the last score is used: scoring more often takes longer than training
    )  # fmt: skip


def read_points(roots: Sequence[Path]) -> list[Point]:
    """Return the points of the grid from its finished runs, in their order."""
    scores: dict[tuple[tuple[str, int, int], float, float], list[float | None]] = {}
    for root in roots:
        run_dir = RunDir.open(root)
        config = load_config(run_dir.config)
        found = read_json(run_dir.summary, Summary).evaluation
        score = None if found.test_loss is None else found.validation_accuracy  # a loss of None is not finite
        key = (_place(config), config.optimizer.learning_rate, getattr(config.optimizer, "momentum", 0.0))
        scores.setdefault(key, []).append(score)
    return [Point(*key, tuple(values)) for key, values in scores.items()]


def best(points: Sequence[Point]) -> Iterator[Point]:
    """Yield the best point of each mode, workers and batch; none if all diverged."""
    for place in dict.fromkeys(point.place for point in points):
        sound = [point for point in points if point.place == place and point.score is not None]
        if sound:
            yield max(sound, key=lambda point: point.score or 0.0)


def table(points: Sequence[Point]) -> str:
    """Return every point as a line of Markdown, the best of each mode in bold."""
    chosen = list(best(points))
    lines = [
        "| mode | workers | batch a worker | learning rate | momentum | on images held out [%] | seeds |",
        "|---|---|---|---|---|---|---|",
    ]
    for point in points:
        text = "diverged" if point.score is None else f"{100 * point.score:.2f}"
        cells = (*point.place, f"{point.learning_rate:.4g}", f"{point.momentum:g}", text, len(point.scores))
        mark = "**" if point in chosen else ""
        lines.append("| " + " | ".join(f"{mark}{cell}{mark}" for cell in cells) + " |")
    return "\n".join(lines) + "\n"


def recipe_lines(points: Sequence[Point]) -> str:
    """Return the best points as `"modes": [...]` of a recipe. It is JSON, and Python too."""
    entries = (
        dict(zip(FoundRates.model_fields, (*point.place, point.learning_rate, point.momentum), strict=True))
        for point in best(points)
    )
    lines = ",\n".join(json.dumps(entry) for entry in entries)
    return f'{{"modes": [\n{lines}\n]}}\n'


def at_the_edge(points: Sequence[Point]) -> Iterator[str]:
    """Yield a sentence for each mode whose best rate is the lowest or highest in the grid."""
    for point in best(points):
        rates = [other.learning_rate for other in points if other.place == point.place]
        if len(set(rates)) > 1 and point.learning_rate in (min(rates), max(rates)):
            mode, _, batch = point.place
            rate = f"{point.learning_rate:.4g}"
            yield f"{mode}, batch {batch}: the best rate, {rate}, is at the edge of the grid: widen --factors"


def _rule_of(model: str) -> str:
    return build_config(None, {"model.name": model}).optimizer.rule


def _place(config: RunConfig) -> tuple[str, int, int]:
    return config.mode.name, config.training_workers, config.training.batch_size_per_worker


if __name__ == "__main__":
    main()
