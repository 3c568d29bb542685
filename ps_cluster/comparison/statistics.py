"""Means with intervals, and the difference of two groups of runs."""

from __future__ import annotations

import bisect
import math
from collections.abc import Sequence
from dataclasses import dataclass

# Two-sided 95 % quantiles of Student's t (0.975) by degrees of freedom. Between two rows the row with fewer degrees is
# used, so an interval is never too narrow.
_DEGREES = (*range(1, 31), 40, 60, 120)
_QUANTILES = (
    12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228,
    2.201, 2.179, 2.160, 2.145, 2.131, 2.120, 2.110, 2.101, 2.093, 2.086,
    2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042,
    2.021, 2.000, 1.980,
)  # fmt: skip


@dataclass(frozen=True)
class Sample:
    """One number per run, with the seeds of the runs."""

    seeds: tuple[int, ...]
    values: tuple[float, ...]


@dataclass(frozen=True)
class Estimate:
    """A mean with its spread. `sd` (ddof 1) and the 95 % interval `low`..`high` are None with fewer than two values."""

    n: int
    mean: float
    sd: float | None
    low: float | None
    high: float | None


@dataclass(frozen=True)
class MeanDifference:
    """Difference of two groups' means with its 95 % interval; None where one of the groups has fewer than two runs."""

    mean: float
    low: float | None
    high: float | None
    n: int
    paired: bool

    @property
    def bounds(self) -> tuple[float, float] | None:
        """The interval; None without one."""
        return None if self.low is None or self.high is None else (self.low, self.high)

    @property
    def has_interval(self) -> bool:
        return self.bounds is not None

    @property
    def shown(self) -> bool:
        """True if there is an interval and it excludes 0."""
        return self.bounds is not None and not self.bounds[0] <= 0 <= self.bounds[1]


def t_quantile(degrees: float) -> float:
    """Return half the width of a 95 % interval, in standard errors. `degrees` of freedom: at least 1."""
    return _QUANTILES[bisect.bisect_right(_DEGREES, max(degrees, 1.0)) - 1]


def estimate(values: Sequence[float]) -> Estimate | None:
    """Return mean, standard deviation and the mean's 95 % t interval; None without values."""
    n = len(values)
    if not n:
        return None
    mean = math.fsum(values) / n
    if n == 1:
        return Estimate(1, mean, None, None, None)
    half = _half_width(values)
    return Estimate(n, mean, math.sqrt(_variance(values)), mean - half, mean + half)


def difference(of: Sample, against: Sample) -> MeanDifference:
    """Return the mean of `of` minus the mean of `against`.

    If both have the same seeds, each once, the interval is that of the paired differences; otherwise it is Welch's.
    `n` is the number of runs of the smaller group.
    """
    n = min(len(of.values), len(against.values))
    mean = math.fsum(of.values) / len(of.values) - math.fsum(against.values) / len(against.values)
    paired = sorted(of.seeds) == sorted(against.seeds) and len(set(of.seeds)) == len(of.seeds)
    if n < 2:
        return MeanDifference(mean, None, None, n, paired)
    if paired:
        others = dict(zip(against.seeds, against.values))
        pairs = [value - others[seed] for seed, value in zip(of.seeds, of.values)]
        mean, half = math.fsum(pairs) / n, _half_width(pairs)
        return MeanDifference(mean, mean - half, mean + half, n, True)
    half = _welch_half_width(of.values, against.values)
    return MeanDifference(mean, mean - half, mean + half, n, False)


def log_ratio(of: Sample, against: Sample) -> MeanDifference:
    """Return the difference of logarithms; its exponential is a ratio of geometric means. Values must be above 0."""
    return difference(_logarithms(of), _logarithms(against))


def _logarithms(sample: Sample) -> Sample:
    return Sample(sample.seeds, tuple(map(math.log, sample.values)))


def _variance(values: Sequence[float]) -> float:
    mean = math.fsum(values) / len(values)
    return math.fsum((value - mean) ** 2 for value in values) / (len(values) - 1)


def _half_width(values: Sequence[float]) -> float:
    """Return half the 95 % t interval of the mean of at least two values."""
    return t_quantile(len(values) - 1) * math.sqrt(_variance(values)) / math.sqrt(len(values))


def _welch_half_width(first: Sequence[float], second: Sequence[float]) -> float:
    """Return half the 95 % interval of a difference of means, with Welch's and Satterthwaite's degrees of freedom."""
    shares = [_variance(values) / len(values) for values in (first, second)]
    error = sum(shares)
    if error == 0:
        return 0.0
    degrees = error**2 / sum(share**2 / (len(values) - 1) for share, values in zip(shares, (first, second)))
    return t_quantile(degrees) * math.sqrt(error)
