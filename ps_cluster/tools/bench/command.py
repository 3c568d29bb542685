"""The command `ps-cluster bench`."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from itertools import product
from pathlib import Path
from typing import Any

from ps_cluster.cli.options import (
    FOLDER,
    LIST,
    OUTPUT_FILE,
    CommaList,
    NameOf,
    Whole,
    command,
    config_options,
    examples,
    option,
    overrides,
)
from ps_cluster.config import RunConfig, build_config
from ps_cluster.config.networks import NETWORKS
from ps_cluster.report.terminal import make_console, print_line
from ps_cluster.tools.bench import arms


@command(
    epilog=examples(
        "bench --models tutorial_cnn --rounds 1",
        "bench --arms cluster,single --models airbench --output bench.json",
        "bench --dataset synthetic --straggler 2:5x",
    )
)
@option(
    "--arms",
    "names",
    type=LIST,
    default=",".join(arm.name for arm in arms.DEFAULT),
    help="What to measure, separated by commas; also ddp and torch_single.",
)
@option(
    "--models",
    "--model",
    type=CommaList(NameOf(NETWORKS)),
    default="tutorial_cnn,cifar_tf_cnn,airbench",
    help="Networks, separated by commas; of one without a known number of examples a short run finds it.",
)
@option("--precisions", type=LIST, default="float32,bfloat16", help="Precisions, separated by commas.")
@option("--rounds", type=Whole(1, 100), default=3, help="Measurements of each arm; the median is shown.")
@option("--straggler", help="Also measure cluster and sync with slow workers, e.g. 2:5x.")
@option("--ddp-python", type=FOLDER, help="The Python with PyTorch that runs the arms ddp and torch_single.")
@option("--set", "assignments", multiple=True, metavar="KEY=VALUE", help="A setting of all arms; repeatable.")
@option("--output", type=OUTPUT_FILE, help="Also write all figures to this JSON file.")
@config_options("--dataset", "--data-dir")
def bench(
    names: list[str],
    models: list[str],
    precisions: list[str],
    rounds: int,
    straggler: str | None,
    ddp_python: Path | None,
    assignments: tuple[str, ...],
    output: Path | None,
    **options: Any,
) -> None:
    """Measure images/s (examples/s) of a cluster, one process, all-reduce, per-variable parameter servers and PyTorch."""
    from ps_cluster.launch.local_run import resolve_data
    from ps_cluster.system import environment
    from ps_cluster.tools.bench import throughput

    os.environ.update(environment.for_tensorflow(os.environ))
    wanted = build_config(None, overrides(assignments, options))
    chosen = arms.choose(names, ddp_python)
    if straggler:
        chosen = arms.with_straggler(chosen, straggler, wanted.cluster.workers)
    dataset = resolve_data(wanted.data, notify=print_line)
    for arm, model in product(chosen, models):
        arm.check(model, dataset.spec)
    cases = throughput.cases(models, precisions, dataset, overrides(assignments, options))
    first, unit = throughput.first_of(chosen), dataset.spec.unit

    def rate(case: RunConfig) -> float | None:
        return throughput.rate_of(first, first.config(case), dataset)

    sized = list(with_lengths(cases, rate, unit=unit, arm=first.name, notify=print_line))
    rows = throughput.measure(chosen, sized, dataset, rounds, output, notify=print_line)
    throughput.print_table(chosen, rows, unit, make_console())


# Decide how many updates make a measurement of a network of which no number of examples is known.

SECONDS = 10.0  # that a measurement shall take
LEAST_STEPS = 90  # fewer would make the first and the last gradients count too much
MOST_STEPS = 50_000
_ENOUGH_S = 2.0  # a run that trains for so long tells the rate well enough
_GROWTH = 10  # from one short run to the next

Rate = Callable[[RunConfig], float | None]
"""Trains a configuration and returns its examples per second; None if it was over before there was a rate."""


def with_lengths(
    cases: Iterable[RunConfig], rate: Rate, *, unit: str, arm: str, notify: Callable[[str], None]
) -> Iterator[RunConfig]:
    """Yield the cases, each with its number of updates. All arms and rounds of a case have the same.

    Args:
      rate: runs `arm`, one after the other.
      unit: the word for several examples.
    """
    for case in cases:
        if case.training.steps is None:
            steps, per_second = _steps(case, rate)
            case = case.with_values({"training.steps": steps})
            notify(
                f"{case.model.name} {case.model.precision}: {steps * case.examples_per_step:,} {unit} make a measurement: "
                f"about {SECONDS:.0f} s, at the {per_second:,.0f} {unit}/s of a short run of arm {arm}"
            )
        yield case


def _steps(case: RunConfig, rate: Rate) -> tuple[int, float]:
    """Return the updates of a measurement and the examples per second of the last short run, 0 if it had none."""
    steps = LEAST_STEPS
    while True:
        per_second = rate(case.with_values({"training.steps": steps}))
        steps_per_second = (per_second or 0.0) / case.examples_per_step
        if per_second and steps >= _ENOUGH_S * steps_per_second or steps == MOST_STEPS:
            return min(MOST_STEPS, max(LEAST_STEPS, round(SECONDS * steps_per_second))), per_second or 0.0
        steps = min(MOST_STEPS, _GROWTH * steps)
