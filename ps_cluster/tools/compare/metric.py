"""The metrics by which runs are compared: how each is judged, shown and drawn."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from ps_cluster.config.setting_types import AUTO
from ps_cluster.errors import UserError
from ps_cluster.runs.monitor import BETTER, Monitor
from ps_cluster.runs.result_rows import Better, CheckpointScores, Split


@dataclass(frozen=True)
class Metric:
    """A metric by which runs are compared. Its values are those in summary.json. Pages show them multiplied by `scale`.

    Attributes:
      noun: its name in the rows of evaluation results, such as "accuracy" or "auc".
      larger_is_better: whether larger values are better.
      most: the largest possible value.
      least: the smallest possible value.
      examples: the split on which it is measured: "test", or "validation" for held-out training examples.
      scale: the factor from a value to the number that is shown.
      unit: the unit of shown numbers, e.g. "%". It is "" for a metric without a unit, and for an error, whose unit is
        that of the values to predict.
      spec: the format of shown numbers.
      difference_spec: the format of a difference or a standard deviation of shown numbers.
      target_form: how to write a target, in words for a message.
    """

    noun: str
    larger_is_better: bool
    target_form: str
    most: float = math.inf
    least: float = 0.0
    examples: Split = "test"
    scale: float = 1.0
    unit: str = ""
    spec: str = ".4g"
    difference_spec: str = ".3g"

    @property
    def name(self) -> str:
        return f"{self.examples} {self.noun}"

    @property
    def column(self) -> str:
        """The name of the metric in summary.json. In rows.csv it is the name of the column with a run's final score."""
        return f"{self.examples}_{self.noun}"

    @property
    def best_column(self) -> str:
        return f"best_{self.column}"

    @property
    def definition(self) -> str:
        """A sentence for the page that says which values are better."""
        better = "Larger" if self.larger_is_better else "Smaller"
        known = {ACCURACY.noun: "", ERROR.noun: "It has the units of the values to predict. Smaller is better. "}
        return known.get(self.noun, f"{better} is better. ")

    @property
    def axis(self) -> str:
        """The label of an axis. The label of an accuracy or an error always has a unit."""
        return self.with_unit(self.name) if self.noun != ERROR.noun else f"{self.name} [the target's units]"

    def of(self, score: CheckpointScores) -> float | None:
        """Return the metric of a scored checkpoint; None if the checkpoint has no finite value of it."""
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
        """Return the best of the values; None without values."""
        return (max if self.larger_is_better else min)(values, default=None)

    def limited(self, low: float, high: float) -> tuple[float, float]:
        """Return the part of an interval that consists of possible values of the metric."""
        return max(low, self.least), min(high, self.most)

    def check_target(self, target: float) -> None:
        """Raise UserError for a target that no run can reach."""
        if not (self.least < target <= self.most) or math.isinf(target):
            raise UserError(f"target_score: got {target:g}: write {self.target_form}")

    def default_target(self, best: Sequence[float], first: Sequence[float] = ()) -> float | None:
        """Return the hardest round target that every run reached, but not at its first score; None if there is none.

        For an accuracy it is a multiple of 5 % or, failing that, of 1 %. For an error it has two significant digits.

        Args:
          best: the best value of each run.
          first: the value of each run's first score.
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
        """Return whether a plot's axis is logarithmic: if smaller is better and the values span a factor of at least 5."""
        return not self.larger_is_better and len(values) > 0 and 0 < 5 * min(values) <= max(values)


# The share of right predictions, shown in percent. With several labels per example, it is the mean over the labels.
ACCURACY = Metric(
    "accuracy", True, "an accuracy as a share of 1, e.g. 0.6 for 60 %",
    most=1.0, scale=100.0, unit="%", spec=".2f", difference_spec=".2f",
)  # fmt: skip
ERROR = Metric("error", False, "an error above 0, in the units of the values to predict")
_MOST = {"auc": 1.0, "f1": 1.0, "r2": 1.0, "recall": 1.0}  # the largest values of other metrics, if they have one
_NOT_BELOW_0 = ("loss", "auc", "f1", "log_loss", "rmse", "recall")


def metric_named(name: str, better: Better | None, examples: Split) -> Metric:
    """Return the metric that has this name in the rows of evaluation results, and is measured on `examples`.

    `better`: whether larger ("max") or smaller ("min") values are better. It may be None for a metric that
    `runs.monitor.BETTER` lists.
    """
    better = better or BETTER[name]
    known = next((metric for metric in (ACCURACY, ERROR) if metric.noun == name), None)
    if known is not None:
        return replace(known, larger_is_better=better == "max", examples=examples)
    kind = name.partition("@")[0]  # recall@10 is a recall
    least = 0.0 if kind in _NOT_BELOW_0 else -math.inf
    return Metric(name, better == "max", f"a value of {name}", _MOST.get(kind, math.inf), least, examples)


def metric_of(scores: Sequence[CheckpointScores], monitor: Monitor = Monitor()) -> Metric:
    """Return the metric by which a comparison judges the run that has these `scores`: the metric that `monitor` names.

    If `monitor.name` is "auto", the metric is accuracy if any score has an accuracy. Otherwise it is error, even if no
    score has a finite error, as when the run has diverged.
    """
    examples: Split = "validation" if any(score.deciding == "validation" for score in scores) else "test"
    noun = monitor.name
    if noun == AUTO:
        known = any(score.value_of(ACCURACY.noun, examples) is not None for score in scores)
        noun = ACCURACY.noun if known else ERROR.noun
    return metric_named(noun, monitor.better, examples)
