"""Means with intervals, and the difference of two groups of runs."""

from __future__ import annotations

import bisect
import math
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from ps_cluster.errors import UserError
from ps_cluster.runs.result_rows import Measured

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


# The metrics that runs are compared by, an accuracy and an error: how each is judged, said and drawn.

LEARNED = 1.5  # how many times better than a guess a network is that counts as having learned


class Metric(ABC):
    """A number over the test examples. Values are as in summary.json; `scale` makes them the numbers that are shown.

    Attributes:
      noun: its name in rows, "accuracy" or "error".
      scale: shown number / value.
      unit: of shown numbers, e.g. "%"; "" for the target's own, which has no name.
      axis_unit: the same on the axis of a plot, where a unit always stands.
      spec: how shown numbers are formatted. rough_spec: the same in the main findings.
      difference_spec: how a difference or a standard deviation of shown numbers is formatted.
      points: the word after a difference, with a space before it.
      widest: the largest difference that there can be, shown.
      beyond, harder: words for values that are better than a target, and for a target that is.
      guesser: the beginning of a sentence that ends with the metric of a guess.
      definition: what it is, for the page.
      diverged_below: whether a plot marks runs that diverged below zero; otherwise above all other runs.
      diverged_at: the same in words.
    """

    noun = ""
    scale = 1.0
    unit = ""
    axis_unit = ""
    spec = ""
    rough_spec = ""
    difference_spec = ""
    points = ""
    widest = math.inf
    beyond = ""
    harder = ""
    guesser = ""
    definition = ""
    diverged_below = False
    diverged_at = "above all others"

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

    def of(self, score: Measured) -> float | None:
        """Return the metric of a scored checkpoint; None if it is not finite, or if this is not its metric."""
        value: float | None = getattr(score, self.column)
        return value

    def with_unit(self, heading: str) -> str:
        return f"{heading} [{self.unit}]" if self.unit else heading

    def number(self, value: float) -> str:
        """Return a value as text without its unit, e.g. "68.10"."""
        return f"{self.scale * value:{self.spec}}"

    def text(self, shown: float, spec: str = "") -> str:
        """Return a shown number as text with its unit, e.g. "68.10 %"."""
        return f"{shown:{spec or self.spec}} {self.unit}".rstrip()

    def goal(self, target: float) -> str:
        """Return a target as short text, e.g. "60 %"."""
        return self.text(self.scale * target, "g")

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
    def at(self, target: float) -> str:
        """Return a value as a place in a sentence, e.g. "60 % test accuracy"."""

    @abstractmethod
    def bar(self, guess: float) -> float:
        """Return the value from which a network counts as having learned.

        Args:
          guess: the metric of an answer that does not look at the inputs.
        """

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
    rough_spec = ".1f"
    points = " points"
    widest = 100.0
    beyond = "above"
    harder = "higher"
    guesser = "guessing gives"
    definition = "Of the last scored checkpoint"
    diverged_below = True
    diverged_at = "below zero"

    def reaches(self, value: float, target: float) -> bool:
        return value >= target

    def best(self, values: Iterable[float]) -> float | None:
        return max(values, default=None)

    def limited(self, low: float, high: float) -> tuple[float, float]:
        return max(low, 0.0), min(high, 1.0)

    def at(self, target: float) -> str:
        return f"{self.goal(target)} {self.name}"

    def bar(self, guess: float) -> float:
        return round(LEARNED * guess, 12)  # 0.15 of ten classes, not 0.15000000000000002

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
    rough_spec = ".3g"
    difference_spec = ".3g"
    beyond = "below"
    harder = "lower"
    guesser = "always answering the mean of the training targets gives"
    definition = "In the target's own units, smaller is better. Of the last scored checkpoint"

    def reaches(self, value: float, target: float) -> bool:
        return value <= target

    def best(self, values: Iterable[float]) -> float | None:
        return min(values, default=None)

    def limited(self, low: float, high: float) -> tuple[float, float]:
        return max(low, 0.0), high

    def at(self, target: float) -> str:
        return f"a {self.name} of {self.goal(target)}"

    def bar(self, guess: float) -> float:
        return float(f"{guess / LEARNED:{self.spec}}")  # a round one, as it is shown

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


def metric_of(scores: Sequence[Measured]) -> Metric:
    """Return the metric that a run was scored by. An accuracy is always a number; the error of a run may never be one."""
    return ACCURACY if any(ACCURACY.of(score) is not None for score in scores) else ERROR
