"""Compute means with confidence intervals, and the difference between two groups of runs."""

from __future__ import annotations

import bisect
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import fmean, stdev, variance

# Two-sided quantiles of Student's t by the percentage that the interval holds and the degrees of freedom. Between two rows
# the row with fewer degrees is used, so an interval is never too narrow.
_DEGREES = (*range(1, 31), 40, 60, 120)
_QUANTILES = {
    95: (
        12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228,
        2.201, 2.179, 2.160, 2.145, 2.131, 2.120, 2.110, 2.101, 2.093, 2.086,
        2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042,
        2.021, 2.000, 1.980,
    ),
    99: (
        63.657, 9.925, 5.841, 4.604, 4.032, 3.707, 3.499, 3.355, 3.250, 3.169,
        3.106, 3.055, 3.012, 2.977, 2.947, 2.921, 2.898, 2.878, 2.861, 2.845,
        2.831, 2.819, 2.807, 2.797, 2.787, 2.779, 2.771, 2.763, 2.756, 2.750,
        2.704, 2.660, 2.617,
    ),
}  # fmt: skip


@dataclass(frozen=True)
class SeededValues:
    """One number per run, with the seeds of the runs."""

    seeds: tuple[int, ...]
    values: tuple[float, ...]


@dataclass(frozen=True)
class Estimate:
    """A mean, or a difference of two means, with its 95 % interval `low`..`high`.

    `sd` (ddof 1) and the interval are None with fewer than two values. `paired`: whether differences were taken seed by seed.
    """

    n: int
    mean: float
    sd: float | None = None
    low: float | None = None
    high: float | None = None
    paired: bool = False

    @classmethod
    def around(cls, n: int, mean: float, half: float, *, sd: float | None = None, paired: bool = False) -> Estimate:
        """Return an estimate whose interval reaches from `mean` - `half` to `mean` + `half`."""
        return cls(n, mean, sd, mean - half, mean + half, paired)

    def holds(self, value: float) -> bool:
        """Return whether a value lies in the interval."""
        return self.low is not None and self.high is not None and self.low <= value <= self.high


def t_quantile(degrees: float, percent: int = 95) -> float:
    """Return the quantile of Student's t for an interval of 95 or 99 %.

    Half the width of the interval is this quantile times the standard error. `degrees`: degrees of freedom, 1 or more.
    """
    return _QUANTILES[percent][bisect.bisect_right(_DEGREES, max(degrees, 1.0)) - 1]


def estimate(values: Sequence[float]) -> Estimate | None:
    """Return mean, standard deviation and the mean's 95 % t interval; None without values."""
    n = len(values)
    if n < 2:
        return Estimate(1, values[0]) if n else None
    sd = stdev(values)
    return Estimate.around(n, fmean(values), t_quantile(n - 1) * sd / math.sqrt(n), sd=sd)


def difference(of: SeededValues, against: SeededValues) -> Estimate:
    """Return the mean of `of` minus the mean of `against`.

    If both have the same seeds, each once, the interval is that of the paired differences; otherwise it is Welch's, with
    Satterthwaite's degrees of freedom. `n` is the number of runs of the smaller group.
    """
    n = min(len(of.values), len(against.values))
    mean = fmean(of.values) - fmean(against.values)
    paired = sorted(of.seeds) == sorted(against.seeds) and len(set(of.seeds)) == len(of.seeds)
    if n < 2:
        return Estimate(n, mean, paired=paired)
    if paired:
        others = dict(zip(against.seeds, against.values))
        pairs = [value - others[seed] for seed, value in zip(of.seeds, of.values)]
        return Estimate.around(n, fmean(pairs), t_quantile(n - 1) * stdev(pairs) / math.sqrt(n), paired=True)
    both = (of.values, against.values)
    shares = [variance(values) / len(values) for values in both]
    error = sum(shares)
    small = sum(share**2 / (len(values) - 1) for share, values in zip(shares, both))
    return Estimate.around(n, mean, t_quantile(error**2 / small) * math.sqrt(error) if error else 0.0)


def ratio(of: SeededValues, against: SeededValues) -> Estimate:
    """Return the geometric mean of `of` divided by that of `against`. All values must be > 0.

    The interval is computed from the logarithms of the values.
    """
    found = difference(*(SeededValues(one.seeds, tuple(map(math.log, one.values))) for one in (of, against)))
    low, high = (None if log is None else math.exp(log) for log in (found.low, found.high))
    return replace(found, mean=math.exp(found.mean), low=low, high=high)
