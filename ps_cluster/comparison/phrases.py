"""Phrases that the sentences of a report are made of.

A difference is called one only if it has a 95 % interval and the interval excludes 0.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from ps_cluster.comparison.groups import NO_STRAGGLER, Group
from ps_cluster.comparison.metrics import Metric
from ps_cluster.comparison.run_records import Record
from ps_cluster.comparison.statistics import MeanDifference, log_ratio

NO_DIFFERENCE = "no difference shown"
ONE_SEED = "one seed: no interval"


def straggler_words(straggler: str) -> str:
    return "no straggler" if straggler == NO_STRAGGLER else f"straggler {straggler}"


def fate(group: Group) -> str:
    return f"{group.arm}: {group.diverged} of {len(group.records)} seeds diverged"


def shown(record: Record) -> float | None:
    """Return the number that is shown as a run's metric, e.g. in percent; None for a run that diverged."""
    return record.shown


def mean_shown(group: Group) -> float:
    """Return the mean of these numbers over the runs that have one."""
    values = group.values(shown)
    return math.fsum(values) / len(values)


def speed(record: Record) -> float:
    return record.examples_per_second


def seeds(found: MeanDifference) -> str:
    """Return how many seeds support the sentence before, and whether they are paired."""
    if not found.has_interval:
        return f"{ONE_SEED.capitalize()}."
    return f"{found.n} seeds, paired." if found.paired else f"At least {found.n} seeds each, not paired."


def points(found: MeanDifference, metric: Metric) -> str:
    """Return e.g. "1.15 points lower (-1.41 to -0.88)"; without an interval only the number, which claims nothing."""
    if not found.has_interval:
        return f"{metric.signed(found.mean)}{metric.points}"
    if not found.shown:
        return f"{NO_DIFFERENCE} ({interval(found, metric)}{metric.points})"
    side = "higher" if found.mean > 0 else "lower"
    return f"{metric.difference(found.mean)}{metric.points} {side} ({interval(found, metric)})"


def interval(found: MeanDifference, metric: Metric) -> str:
    """Return the interval of a difference of shown numbers."""
    if found.bounds is None:
        return ONE_SEED
    low, high = found.bounds
    return f"{metric.signed(low)} to {metric.signed(high)}"


def ratio(of: Group, against: Group, read: Callable[[Record], float | None]) -> str:
    """Return e.g. "1.52 times (1.40 to 1.65)". Every run of both groups must have the number."""
    found = log_ratio(of.sample(read), against.sample(read))
    times = f"{math.exp(found.mean):.2f} times"
    if found.bounds is None:
        return times
    low, high = map(math.exp, found.bounds)
    between = f"{low:.2f} to {high:.2f}"
    return f"{times} ({between})" if found.shown else f"{times}, {NO_DIFFERENCE} ({between})"
