"""Measure arms in turns, compare their rates within each round, and show them as a table.

Rounds go A B C, A B C, …, so that a drift of the machine's speed affects all arms alike.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from statistics import median
from typing import NamedTuple

from pydantic import BaseModel
from rich.console import Console
from rich.table import Table

from ps_cluster.config import RunConfig
from ps_cluster.data.packed import PackedDataset
from ps_cluster.errors import RunFailed
from ps_cluster.files.writing import write_json
from ps_cluster.notices import Notify
from ps_cluster.tools.bench.arms import CLUSTER, BenchArm
from ps_cluster.tools.bench.running import RateOf, rate_of


class Spread(BaseModel):
    """The values of all rounds, and their median, minimum, maximum and number."""

    median: float
    min: float
    max: float
    n: int
    values: list[float]

    @classmethod
    def of(cls, values: list[float]) -> Spread:
        return cls(median=median(values), min=min(values), max=max(values), n=len(values), values=values)

    def text(self, spec: str) -> str:
        """Return "median (min–max)", each number in the format `spec`."""
        return f"{self.median:{spec}} ({self.min:{spec}}–{self.max:{spec}})"


Rates = Mapping[str, Sequence[float]]
"""The rates of all rounds by the names of the arms."""
FiguresOf = Callable[[Sequence[BenchArm], Rates], "dict[str, Spread]"]
About = Mapping[str, str | int]
"""The values that distinguish a case from other cases: the first columns of the table."""


@dataclass(frozen=True)
class BenchJob:
    """One case, and the arms that are measured on it in turns. Rates count `examples_counted_as_one` examples as one unit."""

    about: About
    case: RunConfig
    arms: Sequence[BenchArm]
    examples_counted_as_one: int = 1


class Result(NamedTuple):
    """The figures of one case: rates by the names of the arms, and ratios by names like "cluster_to_single"."""

    about: About
    figures: dict[str, Spread]


class Column(NamedTuple):
    """A column of the table of arms.

    Attributes:
      figure: the name of the figure, with "{arm}" in place of the arm's name.
      form: the format of its numbers.
    """

    heading: str
    figure: str
    form: str


def first_of(arms: Sequence[BenchArm]) -> BenchArm:
    """Return the arm that the other arms are compared with: the cluster if it is measured, else the first."""
    return next((arm for arm in arms if arm.name == CLUSTER.name), arms[0])


def figures(arms: Sequence[BenchArm], rates: Rates) -> dict[str, Spread]:
    """Return each figure's spread over the rounds: rates, the first arm's ratios to other arms, and what slowed arms keep.

    A slowed arm keeps a share of its rate: its rate with slow workers divided by its rate without them. A second figure
    divides this share by the ideal share.
    """
    found, first = {name: list(values) for name, values in rates.items()}, first_of(arms)
    for arm in arms:
        if arm.slowed:
            found[f"{arm.name}_to_{arm.slowed}"] = kept = ratios(rates, arm.name, arm.slowed)
            found[f"{arm.name}_to_ideal"] = [share / arm.ideal for share in kept]
        elif arm != first:
            found[f"{first.name}_to_{arm.name}"] = ratios(rates, first.name, arm.name)
    return {name: Spread.of(values) for name, values in found.items()}


def ratios(rates: Rates, one: str, other: str) -> list[float]:
    """Return the ratio of one arm's rate to the other arm's rate, in each round."""
    return [rate / other_rate for rate, other_rate in zip(rates[one], rates[other], strict=True)]


class Benchmark(NamedTuple):
    """The jobs that a command measures, and the columns in which it shows their results.

    Attributes:
      unit: the plural noun for what is counted, e.g. "images".
      arms: the arms that are shown.
      cases: the number of jobs.
      figures_of: turns the rates of a job into its figures.
    """

    jobs: Iterable[BenchJob]
    cases: int
    packed: PackedDataset
    unit: str
    arms: Sequence[BenchArm]
    columns: Sequence[Column]
    figures_of: FiguresOf = figures


def report(
    benchmark: Benchmark, rounds: int, output: Path | None, console: Console, *, notify: Notify, rate: RateOf = rate_of
) -> list[Result]:
    """Measure all jobs, print the table, and return the results.

    If an arm fails or the user stops, the table of the finished jobs is printed before the exception is raised.

    Args:
      output: a JSON file that gets all results so far after each job.
    Raises: as `measure`.
    """
    results: list[Result] = []
    try:
        for result in measure(benchmark, rounds, notify=notify, rate=rate):
            results.append(result)
            if output:
                _write(benchmark, results, output)
    finally:
        if results:
            print_table(benchmark, results, console)
            if len(results) < benchmark.cases:
                console.print(f"unfinished: {len(results)} of {benchmark.cases} cases were measured", highlight=False)
    return results


def measure(benchmark: Benchmark, rounds: int, *, notify: Notify, rate: RateOf = rate_of) -> Iterator[Result]:
    """Measure the arms of each job in turns, and yield its result.

    Raises:
      UserError: a job's case does not fit an arm.
      RunFailed: an arm failed, or ended before it had a rate.
    """
    packed, unit = benchmark.packed, benchmark.unit
    for job in benchmark.jobs:
        configs = [arm.config(job.case) for arm in job.arms]  # so that mistakes are found before any measurement
        rates: dict[str, list[float]] = {arm.name: [] for arm in job.arms}
        named = ", ".join(f"{name} {word}" for name, word in zip(job.about, _words(job.about), strict=True))
        for number, (arm, config) in product(range(rounds), list(zip(job.arms, configs, strict=True))):
            if (per_second := rate(arm, config, packed)) is None:
                too_short = f"arm {arm.name} measured no rate in {config.training.steps} updates"
                raise RunFailed(f"{too_short}: set a larger training.steps")
            rates[arm.name].append(per_second / job.examples_counted_as_one)
            notify(f"{named}: round {number + 1}/{rounds}: {arm.name} {rates[arm.name][-1]:,.0f} {unit}/s")
        yield Result(job.about, benchmark.figures_of(job.arms, rates))


def _write(benchmark: Benchmark, results: Sequence[Result], output: Path) -> None:
    packed = benchmark.packed
    # A row has the figures of a case, and the values that distinguish it from other cases.
    rows = [{**about, **{name: one.model_dump() for name, one in found.items()}} for about, found in results]
    write_json(output, {"dataset": packed.name, "dataset_kind": packed.kind, "unit": benchmark.unit, "rows": rows})


def columns_of(arms: Sequence[BenchArm], unit: str) -> list[Column]:
    """Return two columns of the table: the rate of each arm, and the rate of the first arm divided by this rate."""
    first = first_of(arms).name
    return [Column(f"{unit}/s", "{arm}", ",.0f"), Column(f"{first} ÷ this", f"{first}_to_{{arm}}", ".2f")]


def print_table(benchmark: Benchmark, results: Sequence[Result], console: Console) -> None:
    """Print a line of figures for each arm, then the share of its rate that each slowed arm keeps."""
    title = "Median (min–max) over all rounds; each ratio divides two rates of the same round"
    table = Table(title=title, title_justify="left", box=None)
    for name in (*results[0].about, "arm"):
        table.add_column(name, no_wrap=True)
    for column in benchmark.columns:
        table.add_column(column.heading, justify="right", no_wrap=True)
    for result, arm in product(results, benchmark.arms):
        found = [(result.figures.get(column.figure.format(arm=arm.name)), column.form) for column in benchmark.columns]
        cells = [figure.text(form) if figure else "" for figure, form in found]
        table.add_row(*_words(result.about), arm.name, *cells)
    console.width = max(console.width, 200)  # A narrower terminal breaks lines, but cuts no figure.
    console.print(table, highlight=False)
    for result, arm in product(results, (arm for arm in benchmark.arms if arm.slowed)):
        kept, of_ideal = (result.figures[f"{arm.name}_to_{other}"].text(".2f") for other in (arm.slowed, "ideal"))
        ideal = f"{of_ideal} of the ideal, which is {arm.ideal:.2f}"
        line = f"{arm.name} reaches {kept} of the rate of {arm.slowed}, and {ideal}"
        console.print(f"{' '.join(_words(result.about))}: {line}", highlight=False, soft_wrap=True)


def _words(about: About) -> list[str]:
    return [f"{value:,}" if isinstance(value, int) else value for value in about.values()]
