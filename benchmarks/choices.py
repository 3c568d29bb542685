"""What the settings of the cluster are worth: each beside the default, alternating in one call.

    python -m benchmarks.choices --rounds 3 --data-dir ../shared/data

Steps a dispatch, threads of a worker, and the precision of what goes over the wire, for a small and a large network.
"""

from __future__ import annotations

import os
from pathlib import Path

import click
from rich.console import Console
from rich.table import Table

from benchmarks.arms import CLUSTER
from benchmarks.throughput import case, measure_once, spread
from ps_cluster.cluster import environment
from ps_cluster.cluster.start import resolve_data

CHOICES = {
    "default (4 steps, 1 thread, bfloat16)": {},
    "1 step a dispatch": {"cluster.steps_per_dispatch": 1},
    "16 steps a dispatch": {"cluster.steps_per_dispatch": 16},
    "2 threads a worker": {"cluster.intra_op_threads": 2},
    "float32 on the wire": {"cluster.wire": "float32"},
}


@click.command()
@click.option("--models", default="tutorial_cnn,airbench")
@click.option("--rounds", type=click.IntRange(1), default=3)
@click.option("--dataset", default="auto")
@click.option("--data-dir", type=click.Path(path_type=Path))
def main(models: str, rounds: int, dataset: str, data_dir: Path | None) -> None:
    os.environ.update(environment.for_tensorflow(os.environ))
    packed = resolve_data(dataset, data_dir, notify=click.echo)
    table = Table(title="images/s of 3 workers + 1 ps in bfloat16, and the median of the ratios to the default")
    for name in ("network", "setting", "median (min–max)", "ratio (min–max)"):
        table.add_column(name)
    for model in models.split(","):
        rates: dict[str, list[float]] = {name: [] for name in CHOICES}
        for _ in range(rounds):
            for name, values in CHOICES.items():
                rates[name].append(measure_once(CLUSTER, case(model, "bfloat16", packed).with_values(values), packed))
                click.echo(f"{model}: {name} {rates[name][-1]:,.0f} images/s")
        default = next(iter(rates.values()))
        for name, values in rates.items():
            ratio = spread([value / base for value, base in zip(values, default)])
            rate = spread(values)
            table.add_row(
                model, name, f"{rate['median']:,.0f} ({rate['min']:,.0f}–{rate['max']:,.0f})",
                f"{ratio['median']:.2f} ({ratio['min']:.2f}–{ratio['max']:.2f})",
            )  # fmt: skip
    Console().print(table)


if __name__ == "__main__":
    main()
