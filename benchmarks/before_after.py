"""Measure examples/s of another checkout's code and of this one's, in turns, for each network and precision.

    python -m benchmarks.before_after --before OTHER_CHECKOUT --before-data PACKED --data-dir DATA

PACKED is the folder of the data set in the other checkout's packed format, which that checkout's command `data` prints.
Leave it out if the format is the same.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from itertools import count
from pathlib import Path

import click

from benchmarks.in_turns import Case, Figures, ShownFigure, measure, open_data, options, timed
from ps_cluster.cli.command_line import CommaList, NameOf, OneLineCommand
from ps_cluster.config.networks import NETWORKS
from ps_cluster.tools.bench.throughput import case

FOLDER = click.Path(exists=True, file_okay=False, path_type=Path, resolve_path=True)


@click.command(cls=OneLineCommand)
@options
@click.option(
    "--models", type=CommaList(NameOf(NETWORKS)), default="tutorial_cnn,cifar_tf_cnn,airbench", help="Networks."
)
@click.option("--precisions", type=CommaList(), default="float32,bfloat16", help="Precisions.")
@click.option("--before", type=FOLDER, required=True, help="Another checkout.")
@click.option("--before-data", type=FOLDER, help="Its packed data set, if its format is another.")
def main(
    rounds: int,
    seconds: float,
    dataset: str,
    data_dir: Path | None,
    output: Path | None,
    models: tuple[str, ...],
    precisions: tuple[str, ...],
    before: Path,
    before_data: Path | None,
) -> None:
    """Measure examples/s of another checkout's code and of this one's, in turns."""
    packed = open_data(dataset, data_dir)
    packed_before = replace(packed, directory=before_data or packed.directory)
    cases = []
    for model in models:
        for precision in precisions:
            config = case(model, precision, packed)
            earlier = partial(timed, config, packed_before, seconds, project=before)
            later = partial(timed, config, packed, seconds)
            cases.append(Case({"network": model, "precision": precision}, pair(earlier, later)))
    unit = packed.spec.unit
    shown = (
        ShownFigure(f"before [{unit}/s]", "before"),
        ShownFigure(f"now [{unit}/s]", "now"),
        ShownFigure("now ÷ before", "ratio", 3),
    )
    measure(cases, rounds, shown, output)


def pair(earlier: Callable[[], Figures], later: Callable[[], Figures]) -> Callable[[], Figures]:
    """Return a measurement of both, one after the other; every second time the later code comes first."""
    turn = count()

    def both() -> Figures:
        forth = next(turn) % 2 == 0
        found = [one()["examples_per_second"] for one in ((earlier, later) if forth else (later, earlier))]
        before, now = found if forth else reversed(found)
        return {"before": before, "now": now, "ratio": now / before}

    return both


if __name__ == "__main__":
    main()
