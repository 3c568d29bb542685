"""Means with intervals, the difference of two groups of runs, and the metrics that they are compared by."""

from __future__ import annotations

import bisect
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from statistics import fmean, stdev, variance

from ps_cluster.errors import UserError
from ps_cluster.runs.result_rows import MeasuredMetric

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

    `sd` (ddof 1) and the interval are None with fewer than two values. `paired`: of a difference seed by seed.
    """

    n: int
    mean: float
    sd: float | None = None
    low: float | None = None
    high: float | None = None
    paired: bool = False

    @classmethod
    def around(cls, n: int, mean: float, half: float, *, sd: float | None = None, paired: bool = False) -> Estimate:
        """Return an estimate with an interval of `half` on both sides."""
        return cls(n, mean, sd, mean - half, mean + half, paired)


def t_quantile(degrees: float, percent: int = 95) -> float:
    """Return half the width of an interval of 95 or 99 %, in standard errors. `degrees` of freedom: at least 1."""
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
    """Return the ratio of geometric means, its interval from the logarithms. Values must be above 0."""
    found = difference(*(SeededValues(one.seeds, tuple(map(math.log, one.values))) for one in (of, against)))
    low, high = (None if log is None else math.exp(log) for log in (found.low, found.high))
    return replace(found, mean=math.exp(found.mean), low=low, high=high)


# The metrics that runs are compared by, an accuracy and an error: how each is judged, shown and drawn.


@dataclass(frozen=True)
class Metric:
    """A number over the test examples, 0 or larger. Values are as in summary.json; `scale` makes them the numbers that are
    shown.

    Attributes:
      noun: its name in rows, "accuracy" or "error".
      larger_is_better: whether a run is the better the larger it is.
      most: the largest value that there can be.
      scale: shown number / value.
      unit: of shown numbers, e.g. "%"; "" for the target's own, which has no name.
      spec: how shown numbers are formatted. difference_spec: the same of a difference or a standard deviation of them.
      how: a target is written.
      definition: what it is, for the page.
    """

    noun: str
    larger_is_better: bool
    most: float
    scale: float
    unit: str
    spec: str
    difference_spec: str
    how: str
    definition: str

    @property
    def name(self) -> str:
        return f"test {self.noun}"

    @property
    def column(self) -> str:
        """The name of the last score in tables of numbers, and of a score in summary.json."""
        return f"test_{self.noun}"

    @property
    def best_column(self) -> str:
        return f"best_{self.column}"

    @property
    def axis(self) -> str:
        """The label of an axis, which always has a unit."""
        unit = self.unit or "the target's units"
        return f"{self.name} [{unit}]"

    def of(self, score: MeasuredMetric) -> float | None:
        """Return the metric of a scored checkpoint; None if it is not finite, or if this is not its metric."""
        value: float | None = getattr(score, self.column)
        return value

    def with_unit(self, heading: str) -> str:
        return f"{heading} [{self.unit}]" if self.unit else heading

    def number(self, value: float) -> str:
        """Return a value as text without its unit, e.g. "68.10"."""
        return f"{self.scale * value:{self.spec}}"

    def goal(self, target: float) -> str:
        """Return a target as short text, e.g. "60 %"."""
        return f"{self.scale * target:g} {self.unit}".rstrip()

    def signed(self, difference: float) -> str:
        """Return a difference of values with its sign, as it is shown."""
        return f"{self.scale * max(-self.most, min(self.most, difference)):+{self.difference_spec}}"

    def reaches(self, value: float, target: float) -> bool:
        """Return whether a value is as good as the target, or better."""
        return value >= target if self.larger_is_better else value <= target

    def best(self, values: Iterable[float]) -> float | None:
        """Return the best of the values; None without any."""
        return (max if self.larger_is_better else min)(values, default=None)

    def limited(self, low: float, high: float) -> tuple[float, float]:
        """Return an interval without values that the metric can't have."""
        return max(low, 0.0), min(high, self.most)

    def check_target(self, target: float) -> None:
        """Raise UserError for a target that no run can have."""
        if not 0 < target <= self.most or math.isinf(target):
            raise UserError(f"target_score: got {target:g}: write {self.how}")

    def default_target(self, best: Sequence[float], first: Sequence[float] = ()) -> float | None:
        """Return the hardest round target that every run crossed between two scores; None without one.

        Of an accuracy it is a multiple of 5 %, else of 1 %; of an error a number of two digits.

        Args:
          best: the best value of each run. first: the value of its first score, which must not be at the target yet.
        """
        if self.larger_is_better:
            lowest = min(best, default=0.0)
            multiples = (math.floor(lowest * per_unit + 1e-9) / per_unit for per_unit in (20, 100))
            return next((multiple for multiple in multiples if multiple > max(first, default=0.0)), None)
        highest = max(best, default=0.0)
        if not highest:
            return None
        digits = 1 - math.floor(math.log10(highest))
        target = round(math.ceil(round(highest * 10.0**digits, 9)) / 10.0**digits, max(digits, 0))
        return target if target < min(first, default=math.inf) else None

    def is_log(self, values: Sequence[float]) -> bool:
        """Return whether the axis of a plot with these values is logarithmic: an error falls by factors."""
        return not self.larger_is_better and len(values) > 0 and 0 < 5 * min(values) <= max(values)


# The share of what is right, shown in percent. Of several labels an example: the mean over labels.
ACCURACY = Metric(
    noun="accuracy",
    larger_is_better=True,
    most=1.0,
    scale=100.0,
    unit="%",
    spec=".2f",
    difference_spec=".2f",
    how="an accuracy as a share of 1, e.g. 0.6 for 60 %",
    definition="Of the last scored checkpoint",
)
ERROR = Metric(
    noun="error",
    larger_is_better=False,
    most=math.inf,
    scale=1.0,
    unit="",
    spec=".4g",
    difference_spec=".3g",
    how="an error above 0, in the target's own units",
    definition="In the target's own units, smaller is better. Of the last scored checkpoint",
)
METRICS = {metric.noun: metric for metric in (ACCURACY, ERROR)}


def metric_of(scores: Sequence[MeasuredMetric]) -> Metric:
    """Return the metric that a run was scored by. An accuracy is always a number; the error of a run may never be one."""
    return ACCURACY if any(ACCURACY.of(score) is not None for score in scores) else ERROR
