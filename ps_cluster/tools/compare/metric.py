"""The metrics that runs are compared by, an accuracy and an error: how each is judged, shown and drawn."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from ps_cluster.config.schema import AUTO
from ps_cluster.errors import UserError
from ps_cluster.runs.monitor import MODES, Mode, Monitor
from ps_cluster.runs.result_rows import MeasuredMetric, Split


@dataclass(frozen=True)
class Metric:
    """A number over the examples that decide. Values are as in summary.json; `scale` makes them the numbers that are shown.

    Attributes:
      noun: its name in rows, such as "accuracy" or "auc".
      larger_is_better: whether a run is the better the larger it is.
      most: the largest value that there can be.
      least: the smallest one.
      examples: "test", or "validation" for held-out training examples.
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
    least: float = 0.0
    examples: Split = "test"

    @property
    def name(self) -> str:
        return f"{self.examples} {self.noun}"

    @property
    def column(self) -> str:
        """The name of the last score in tables of numbers, and of a score in summary.json."""
        return f"{self.examples}_{self.noun}"

    @property
    def best_column(self) -> str:
        return f"best_{self.column}"

    @property
    def axis(self) -> str:
        """The label of an axis. That of an accuracy and an error always has a unit."""
        return self.with_unit(self.name) if self.noun != ERROR.noun else f"{self.name} [the target's units]"

    def of(self, score: MeasuredMetric) -> float | None:
        """Return the metric of a scored checkpoint; None if it is not finite, or if this is not its metric."""
        return score.value_of(self.noun, self.examples)

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
        return max(low, self.least), min(high, self.most)

    def check_target(self, target: float) -> None:
        """Raise UserError for a target that no run can have."""
        if not (self.least < target <= self.most) or math.isinf(target):
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
        if highest <= 0:
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
_MOST = {"auc": 1.0, "f1": 1.0, "r2": 1.0, "recall": 1.0}  # the largest values of other metrics, where there is one
_NOT_BELOW_0 = ("loss", "auc", "f1", "log_loss", "rmse", "recall")


def metric_named(name: str, mode: Mode, examples: Split) -> Metric:
    """Return a metric by its name in rows. `mode`: which values are better. `examples`: those that it is measured on."""
    known = next((metric for metric in (ACCURACY, ERROR) if metric.noun == name), None)
    if known is not None:
        return replace(known, larger_is_better=mode == "max", examples=examples)
    kind = name.partition("@")[0]  # recall@10 is a recall
    return Metric(
        noun=name,
        larger_is_better=mode == "max",
        most=_MOST.get(kind, math.inf),
        scale=1.0,
        unit="",
        spec=".4g",
        difference_spec=".3g",
        how=f"a value of {name}",
        definition=f"{'Larger' if mode == 'max' else 'Smaller'} is better. Of the last scored checkpoint",
        least=0.0 if kind in _NOT_BELOW_0 else -math.inf,
        examples=examples,
    )


def metric_of(scores: Sequence[MeasuredMetric], monitor: Monitor = Monitor()) -> Metric:
    """Return the metric that the runs of a comparison are judged by.

    By default it is the objective's. An accuracy is always a number; the error of a run may never be one.
    """
    examples: Split = "validation" if any(score.deciding == "validation" for score in scores) else "test"
    noun = monitor.name
    if noun == AUTO:
        known = any(score.value_of(ACCURACY.noun, examples) is not None for score in scores)
        noun = ACCURACY.noun if known else ERROR.noun
    return metric_named(noun, monitor.mode or MODES[noun], examples)
