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
ReadColumn = Callable[[Rates, BenchArm], list[float] | None]
"""Returns an arm's value in each round; None if the column has no value for this arm."""
About = Mapping[str, str | int]
"""The values that distinguish a case from other cases. They are the first columns of the printed table."""


@dataclass(frozen=True)
class BenchJob:
    """The settings of a measurement (a case), and the ways to train (arms) that are measured with them in turns.

    The unit of the rates is `examples_counted_as_one` examples per second.
    """

    about: About
    case: RunConfig
    arms: Sequence[BenchArm]
    examples_counted_as_one: int = 1


class Result(NamedTuple):
    """The rates of one case, and the arms that were measured on it."""

    about: About
    arms: Sequence[BenchArm]
    rates: Rates


class Column(NamedTuple):
    """A column of the table of arms. `key`: its name in the JSON file. `form`: the format of its numbers."""

    key: str
    heading: str
    form: str
    read: ReadColumn

    def spread(self, result: Result, arm: BenchArm) -> Spread | None:
        """Return the spread of an arm's values over the rounds; None if the column has no value for this arm."""
        values = self.read(result.rates, arm)
        return None if values is None else Spread.of(values)


def first_of(arms: Sequence[BenchArm]) -> BenchArm:
    """Return the arm that the other arms are compared with: the arm `cluster` if it is measured, else the first arm."""
    return next((arm for arm in arms if arm.name == CLUSTER.name), arms[0])


def rates_of(rates: Rates, arm: BenchArm) -> list[float]:
    """Return the rate of an arm in each round."""
    return list(rates[arm.name])


def ratios(rates: Rates, one: str, other: str) -> list[float]:
    """Return the ratio of one arm's rate to the other arm's rate, in each round."""
    return [rate / other_rate for rate, other_rate in zip(rates[one], rates[other], strict=True)]


def kept(rates: Rates, arm: BenchArm) -> list[float] | None:
    """Return a slowed arm's rate divided by the rate of the same arm without slow workers, in each round.

    Return None for an arm that is not slowed.
    """
    return ratios(rates, arm.name, arm.same_without_stragglers) if arm.same_without_stragglers else None


def kept_of_ideal(rates: Rates, arm: BenchArm) -> list[float] | None:
    """Return the share of its rate that a slowed arm keeps, divided by `BenchArm.ideal_share`, in each round.

    Return None for an arm that is not slowed.
    """
    shares = kept(rates, arm)
    return None if shares is None else [share / arm.ideal_share for share in shares]


class Benchmark(NamedTuple):
    """The jobs that a command measures, and the columns in which it shows their results.

    Attributes:
      cases: the number of jobs.
      unit: the plural noun for what is counted, e.g. "images".
    """

    jobs: Iterable[BenchJob]
    cases: int
    packed: PackedDataset
    unit: str
    columns: Sequence[Column]


def report(
    benchmark: Benchmark, rounds: int, output: Path | None, console: Console, *, notify: Notify, rate: RateOf = rate_of
) -> list[Result]:
    """Measure all jobs, print the table, and return the results.

    If an arm fails or the user stops, the table of the finished jobs is printed before the exception is raised.

    Args:
      output: a JSON file, into which all results so far are written after each job.
    Raises:
      UserError: an arm can't be trained with the settings of a job.
      RunFailed: an arm failed, or ended before it had a rate.
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
      UserError: an arm can't be trained with the settings of a job.
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
        yield Result(job.about, job.arms, rates)


def _write(benchmark: Benchmark, results: Sequence[Result], output: Path) -> None:
    packed = benchmark.packed
    rows = []
    for result, arm in _lines(results):
        spreads = {column.key: column.spread(result, arm) for column in benchmark.columns}
        values = {key: spread.model_dump() for key, spread in spreads.items() if spread}
        rows.append({**result.about, "arm": arm.name, **values})
    write_json(output, {"dataset": packed.name, "dataset_kind": packed.kind, "unit": benchmark.unit, "rows": rows})


def _lines(results: Sequence[Result]) -> Iterator[tuple[Result, BenchArm]]:
    """Yield each result with each of its arms, in the order of the lines of the table."""
    return ((result, arm) for result in results for arm in result.arms)


def columns_of(arms: Sequence[BenchArm], unit: str) -> list[Column]:
    """Return the columns of the table of `arms`.

    The first column has the rate of each arm. The second column has the rate of the arm `first_of(arms)` divided by the
    rate of each arm. If some arms have slow workers, two more columns follow. They have the results of `kept` and of
    `kept_of_ideal`, which compare an arm that has slow workers with the same arm without slow workers.
    """
    first = first_of(arms).name

    def first_to(rates: Rates, arm: BenchArm) -> list[float] | None:
        return None if arm.name == first or arm.same_without_stragglers else ratios(rates, first, arm.name)

    columns = [
        Column("rate", f"{unit}/s", ",.0f", rates_of),
        Column("first_to_this", f"{first} ÷ this", ".2f", first_to),
    ]
    if any(arm.same_without_stragglers for arm in arms):
        columns += [
            Column("share_kept", "share kept", ".2f", kept),
            Column("share_of_ideal", "kept ÷ ideal", ".2f", kept_of_ideal),
        ]
    return columns


def print_table(benchmark: Benchmark, results: Sequence[Result], console: Console) -> None:
    """Print a line for each arm of each case.

    Then print, for each arm with slow workers, how its "share kept" is computed, and its `BenchArm.ideal_share`.
    """
    title = "Median (min–max) over all rounds; each ratio divides two rates of the same round"
    table = Table(title=title, title_justify="left", box=None)
    for name in (*results[0].about, "arm"):
        table.add_column(name, no_wrap=True)
    for column in benchmark.columns:
        table.add_column(column.heading, justify="right", no_wrap=True)
    for result, arm in _lines(results):
        spreads = [(column.spread(result, arm), column.form) for column in benchmark.columns]
        cells = [spread.text(form) if spread else "" for spread, form in spreads]
        table.add_row(*_words(result.about), arm.name, *cells)
    console.width = max(console.width, 200)  # A narrower terminal breaks lines, but cuts no figure.
    console.print(table, highlight=False)
    for arm in results[0].arms:
        if arm.same_without_stragglers:
            ratio = f"the rate of {arm.name} ÷ the rate of {arm.same_without_stragglers}"
            ideal = f"{arm.ideal_share:.2f} if no worker waited for a slow one"
            console.print(
                f"share of the rate that is kept with slow workers: {ratio}; this would be {ideal}", highlight=False
            )


def _words(about: About) -> list[str]:
    return [f"{value:,}" if isinstance(value, int) else value for value in about.values()]
