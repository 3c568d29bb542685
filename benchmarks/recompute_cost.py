"""Measure what it costs to compute a sample of the updates again, for the proof: images/s with it and without it, in turns.

    python -m benchmarks.recompute_cost --data-dir DATA --warm-up 40 --seconds 60 --rounds 5

Both cases have an evaluator that scores nothing meanwhile. Only the case with recomputed updates starts TensorFlow in it, which
every run pays anyway with its first score. That start, and the one update of every worker that is computed again at the
beginning of a session, fall into the warm-up. Without a warm-up they are part of the result.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path

import click

from benchmarks.before_after import pair
from benchmarks.in_turns import Case, ShownFigure, measure, open_data, options, timed
from ps_cluster.cli.command_line import CommaList, NameOf, Number, OneLineCommand
from ps_cluster.config.networks import NETWORKS
from ps_cluster.tools.bench.throughput import case

WITH_EVALUATOR = {"cluster.evaluator": True}


@click.command(cls=OneLineCommand)
@options
@click.option("--models", type=CommaList(NameOf(NETWORKS)), default="tutorial_cnn,airbench", help="Networks.")
@click.option("--precisions", type=CommaList(), default="bfloat16", help="Precisions.")
@click.option(
    "--warm-up", "warm_up_s", type=Number(0, 600), default=40.0, help="Seconds of training before the measured ones."
)
def main(
    rounds: int,
    seconds: float,
    dataset: str,
    data_dir: Path | None,
    output: Path | None,
    models: tuple[str, ...],
    precisions: tuple[str, ...],
    warm_up_s: float,
) -> None:
    """Measure images/s with and without updates that are computed again, in turns."""
    packed = open_data(dataset, data_dir)
    cases = []
    for model in models:
        for precision in precisions:
            without, with_it = (
                partial(
                    timed,
                    case(model, precision, packed, WITH_EVALUATOR | {"evaluation.recompute_updates": wanted}),
                    packed,
                    seconds,
                    warm_up_s=warm_up_s,
                )
                for wanted in (False, True)
            )
            cases.append(Case({"network": model, "precision": precision}, pair(without, with_it)))
    unit = packed.spec.unit
    shown = (
        ShownFigure(f"without [{unit}/s]", "before"),
        ShownFigure(f"with [{unit}/s]", "now"),
        ShownFigure("with ÷ without", "ratio", 3),
    )
    measure(cases, rounds, shown, output)


if __name__ == "__main__":
    main()
