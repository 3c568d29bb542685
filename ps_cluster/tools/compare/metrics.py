"""Means with intervals, the difference of two groups of runs, and the metrics that they are compared by."""

from __future__ import annotations

import bisect
import math
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from statistics import fmean, stdev, variance

from ps_cluster.errors import UserError
from ps_cluster.runs.result_rows import MeasuredMetric

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


def t_quantile(degrees: float) -> float:
    """Return half the width of a 95 % interval, in standard errors. `degrees` of freedom: at least 1."""
    return _QUANTILES[bisect.bisect_right(_DEGREES, max(degrees, 1.0)) - 1]


def estimate(values: Sequence[float]) -> Estimate | None:
    """Return mean, standard deviation and the mean's 95 % t interval; None without values."""
    n = len(values)
    if n < 2:
        return Estimate(1, values[0]) if n else None
    sd = stdev(values)
    return Estimate.around(n, fmean(values), t_quantile(n - 1) * sd / math.sqrt(n), sd=sd)


def difference(of: Sample, against: Sample) -> Estimate:
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


def ratio(of: Sample, against: Sample) -> Estimate:
    """Return the ratio of geometric means, its interval from the logarithms. Values must be above 0."""
    found = difference(*(Sample(one.seeds, tuple(map(math.log, one.values))) for one in (of, against)))
    low, high = (None if log is None else math.exp(log) for log in (found.low, found.high))
    return replace(found, mean=math.exp(found.mean), low=low, high=high)


# The metrics that runs are compared by, an accuracy and an error: how each is judged, shown and drawn.


class Metric(ABC):
    """A number over the test examples. Values are as in summary.json; `scale` makes them the numbers that are shown.

    Attributes:
      noun: its name in rows, "accuracy" or "error".
      scale: shown number / value.
      unit: of shown numbers, e.g. "%"; "" for the target's own, which has no name.
      axis_unit: the same on the axis of a plot, where a unit always stands.
      spec: how shown numbers are formatted. difference_spec: the same of a difference or a standard deviation of them.
      widest: the largest difference that there can be, shown.
      beyond: the word for values that are better than a target.
      definition: what it is, for the page.
    """

    noun = ""
    scale = 1.0
    unit = ""
    axis_unit = ""
    spec = ""
    difference_spec = ""
    widest = math.inf
    beyond = ""
    definition = ""

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
        """The label of an axis."""
        return f"{self.name} [{self.axis_unit}]"

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

    def difference(self, shown: float) -> str:
        """Return a difference of shown numbers without its sign."""
        return f"{abs(shown):{self.difference_spec}}"

    def signed(self, shown: float) -> str:
        """Return a difference of shown numbers with its sign."""
        return f"{max(-self.widest, min(self.widest, shown)):+{self.difference_spec}}"

    @abstractmethod
    def reaches(self, value: float, target: float) -> bool:
        """Return whether a value is as good as the target, or better."""

    @abstractmethod
    def best(self, values: Iterable[float]) -> float | None:
        """Return the best of the values; None without any."""

    @abstractmethod
    def limited(self, low: float, high: float) -> tuple[float, float]:
        """Return an interval without values that the metric can't have."""

    @abstractmethod
    def check_target(self, target: float) -> None:
        """Raise UserError for a target that no run can have."""

    @abstractmethod
    def default_target(self, best: Sequence[float]) -> float | None:
        """Return the hardest round target that every run reached; None without one. `best`: the best value of each run."""

    @abstractmethod
    def is_log(self, values: Sequence[float]) -> bool:
        """Return whether the axis of a plot with these values is logarithmic."""


class Accuracy(Metric):
    """The share of what is right, 0..1, shown in percent. Of several labels an example: the mean over labels."""

    noun = "accuracy"
    scale = 100.0
    unit = axis_unit = "%"
    spec = difference_spec = ".2f"
    widest = 100.0
    beyond = "above"
    definition = "Of the last scored checkpoint"

    def reaches(self, value: float, target: float) -> bool:
        return value >= target

    def best(self, values: Iterable[float]) -> float | None:
        return max(values, default=None)

    def limited(self, low: float, high: float) -> tuple[float, float]:
        return max(low, 0.0), min(high, 1.0)

    def check_target(self, target: float) -> None:
        if not 0 < target <= 1:
            raise UserError(f"target_score: got {target:g}: write an accuracy as a share of 1, e.g. 0.6 for 60 %")

    def default_target(self, best: Sequence[float]) -> float | None:
        """Return the largest multiple of 5 % that every run reached, else of 1 %; None if a run reached neither."""
        lowest = min(best, default=0.0)
        for per_unit in (20, 100):
            multiple = math.floor(lowest * per_unit + 1e-9)
            if multiple:
                return multiple / per_unit
        return None

    def is_log(self, values: Sequence[float]) -> bool:
        return False


class Error(Metric):
    """A mean error, 0 or larger, in the target's own units."""

    noun = "error"
    axis_unit = "the target's units"
    spec = ".4g"
    difference_spec = ".3g"
    beyond = "below"
    definition = "In the target's own units, smaller is better. Of the last scored checkpoint"

    def reaches(self, value: float, target: float) -> bool:
        return value <= target

    def best(self, values: Iterable[float]) -> float | None:
        return min(values, default=None)

    def limited(self, low: float, high: float) -> tuple[float, float]:
        return max(low, 0.0), high

    def check_target(self, target: float) -> None:
        if not 0 < target < math.inf:
            raise UserError(f"target_score: got {target:g}: write an error above 0, in the target's own units")

    def default_target(self, best: Sequence[float]) -> float | None:
        """Return the smallest number of two digits that the error of every run fell to."""
        highest = max(best, default=0.0)
        if not highest:
            return None
        digits = 1 - math.floor(math.log10(highest))
        return round(math.ceil(round(highest * 10.0**digits, 9)) / 10.0**digits, max(digits, 0))

    def is_log(self, values: Sequence[float]) -> bool:
        """Return whether the values are above 0 and far apart: an error falls by factors."""
        return len(values) > 0 and min(values) > 0 and max(values) >= 5 * min(values)


ACCURACY = Accuracy()
ERROR = Error()
METRICS: dict[str, Metric] = {metric.noun: metric for metric in (ACCURACY, ERROR)}


def metric_of(scores: Sequence[MeasuredMetric]) -> Metric:
    """Return the metric that a run was scored by. An accuracy is always a number; the error of a run may never be one."""
    return ACCURACY if any(ACCURACY.of(score) is not None for score in scores) else ERROR
