"""The metrics that runs are compared by, an accuracy and an error: how each is judged, shown and drawn."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from ps_cluster.errors import UserError
from ps_cluster.runs.result_rows import MeasuredMetric


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
