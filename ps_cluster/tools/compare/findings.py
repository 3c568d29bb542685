"""The findings of a comparison: the numbers of each run, of each group, and of the difference of two groups.

The page, the printed tables, the CSV files and the JSON file are made from these findings.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from ps_cluster.files.values import csv_cell
from ps_cluster.tools.compare.estimates import Estimate, SeededValues, difference, estimate, ratio
from ps_cluster.tools.compare.groups import NO_STRAGGLER, Group, View
from ps_cluster.tools.compare.measures import SPEED, Measure, Measures
from ps_cluster.tools.compare.metric import ACCURACY, Metric

Row = dict[str, object]


def run_rows(groups: Sequence[Group], target: float | None, times: Sequence[float]) -> list[Row]:
    """Return a row of rows.csv for each run, group by group.

    Args:
      target: a score. The row has the seconds and the examples that the run needed to reach it. None: no target.
      times: numbers of seconds of training. The row has a column for the metric after each of them.
    """
    workers = _worker_indices(groups)
    return [
        {
            **_identity(group),
            "seed": record.seed,
            "workers": record.config.training_workers,
            "target": target,
            "diverged": record.diverged,
            **{measure.column: measure.read(record) for measure in Measures(group.metric, target, times)},
            **{f"idle_share_worker_{index}": record.idle_shares.get(index) for index in workers},
            "run": str(record.root),
        }
        for group in groups
        for record in group.records
    ]


@dataclass(frozen=True)
class GroupFinding:
    """The results of a group of runs that differ only in the seed.

    Each measure has an estimate: the mean over the runs and, with at least two runs, a standard deviation and an
    interval. Some runs may lack a measure, because they did not reach the target or diverged. The estimate is then
    computed from the other runs, and its `n` is their number. If a run lacks the metric, the estimate of the metric is
    only a mean, without standard deviation and interval, because the other runs are not a random sample.

    Attributes:
      estimates: the estimate of each measure, by the measure's column. `finding[measure]` returns one of them.
      idle: the idle share of each worker, by its index.
    """

    group: Group
    measures: Measures
    estimates: Mapping[str, Estimate | None]
    idle: Mapping[int, Estimate | None]

    @classmethod
    def of(cls, group: Group, target: float | None, times: Sequence[float] = ()) -> GroupFinding:
        """Return the estimates (mean, standard deviation, interval) of all measures over the runs of a group.

        `times`: numbers of seconds of training. The metric after each of them is a measure, too.
        """
        measures = Measures(group.metric, target, times)
        estimates = {measure.column: estimate(group.values(measure.read)) for measure in measures}
        for measure in measures.metric_values:
            found = estimates[measure.column]
            is_selection = found is not None and found.n < len(group.records)
            estimates[measure.column] = _limited(found, group.metric, mean_only=is_selection)
        shares = {index: [one.idle_shares[index] for one in group.records if index in one.idle_shares]
                  for index in _worker_indices([group])}  # fmt: skip
        return cls(
            group, measures, estimates, {index: _limited(estimate(one), ACCURACY) for index, one in shares.items()}
        )

    def __getitem__(self, measure: Measure) -> Estimate | None:
        """Return the estimate of a measure; None if no run has a value for it."""
        return self.estimates[measure.column]

    def mean(self, measure: Measure) -> float | None:
        """Return the mean of a measure; None if no run has a value for it."""
        found = self[measure]
        return None if found is None else found.mean

    def runs_with(self, measure: Measure) -> str:
        """Return, as text, how many runs have a value for a measure, e.g. " (1 of 3 runs)"; "" if all runs have one."""
        found, runs = self[measure], len(self.group.records)
        count = found.n if found else 0
        return "" if count == runs else f" ({count} of {runs} runs)"

    def row(self, workers: Sequence[int]) -> Row:
        """Return the estimates as a row of groups.csv. `workers`: the workers for which there is a column of idle time."""
        group = self.group
        row = {**_identity(group), "n": len(group.records), "seeds": " ".join(map(str, group.seeds))}
        row |= {"target": self.measures.target, "diverged": group.diverged}
        for name, value in {**self.estimates, **{f"idle_share_worker_{i}": self.idle.get(i) for i in workers}}.items():
            row |= {
                f"{name}_mean": value and value.mean,
                f"{name}_sd": value and value.sd,
                f"{name}_low": value and value.low,
                f"{name}_high": value and value.high,
                f"{name}_n": value.n if value else 0,
            }
        return row


def group_rows(findings: Sequence[GroupFinding]) -> list[Row]:
    """Return a row of groups.csv for each group."""
    workers = _worker_indices([one.group for one in findings])
    return [one.row(workers) for one in findings]


@dataclass(frozen=True)
class GroupDifference:
    """The difference of `group` from `against`. A number that was not measured in all runs of both groups is None.

    Attributes:
      equal: what the two groups have in common, in words.
      metric_difference: the metric of `group` minus that of `against`.
      speed: the examples per second of `group` divided by those of `against`.
      time: the seconds that `group` needed to reach the target divided by those that `against` needed.
    """

    group: Group
    against: Group
    equal: str
    metric_difference: Estimate | None = None
    speed: Estimate | None = None
    time: Estimate | None = None

    @classmethod
    def of(cls, group: Group, against: Group, equal: str, target: float | None) -> GroupDifference:
        """Return the difference of `group` from `against`. It has no numbers if a run of either group diverged.

        The ratio of the times to the target needs an exact time of every run, not only an upper limit.
        """
        if group.diverged or against.diverged:
            return cls(group, against, equal)

        def compared(how: Callable[[SeededValues, SeededValues], Estimate], measure: Measure) -> Estimate | None:
            mine, theirs = group.sample(measure.read), against.sample(measure.read)
            return how(mine, theirs) if mine and theirs else None

        measures = Measures(group.metric, target)
        return cls(
            group,
            against,
            equal,
            metric_difference=compared(difference, measures.final),
            speed=compared(ratio, SPEED),
            time=compared(ratio, measures.exact_seconds_to_target),
        )

    def row(self) -> Row:
        """Return the difference as a row of report.json."""
        first = self.metric_difference
        row = {
            **_identity(self.group),
            "against": self.against.arm,
            "against_batch_per_worker": self.against.batch_per_worker,
            "against_straggler": self.against.straggler,
            "equal": self.equal,
            "n": first and first.n,
            "paired": first and first.paired,
        }
        named = {f"{self.group.metric.column}_difference": first, "speed_ratio": self.speed, "time_ratio": self.time}
        for name, value in named.items():
            row |= {
                name: value and value.mean,
                f"{name}_low": value and value.low,
                f"{name}_high": value and value.high,
            }
        return row


def differences_of(groups: Sequence[Group], views: Sequence[View], target: float | None) -> list[GroupDifference]:
    """Return each group's difference to its baseline and, for a group with a straggler, to the same arm without one.

    Two groups are compared only once, even if several of the `views` contain both.
    """
    pairs: dict[object, tuple[Group, Group, str]] = {}
    for view in views:
        for group in view.groups:
            if view.baseline and group is not view.baseline:
                pairs.setdefault((group.key, view.baseline.key), (group, view.baseline, view.batch))
    without = {(group.arm, group.batch_per_worker): group for group in groups if group.straggler == NO_STRAGGLER}
    itself = [
        (group, without[place], "the same batch")
        for group in groups
        if group.straggler != NO_STRAGGLER and (place := (group.arm, group.batch_per_worker)) in without
    ]
    return [GroupDifference.of(*pair, target) for pair in (*pairs.values(), *itself)]


def to_csv(rows: Sequence[Row]) -> str:
    text = io.StringIO()
    writer = csv.DictWriter(text, list(rows[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows({name: csv_cell(value) for name, value in row.items()} for row in rows)
    return text.getvalue()


def _identity(group: Group) -> Row:
    optimizer = group.first.config.optimizer
    return {
        "arm": group.arm,
        "batch_per_worker": group.batch_per_worker,
        "batch_per_update": group.batch,
        "straggler": group.straggler,
        "learning_rate": optimizer.learning_rate,
        "momentum": optimizer.momentum_if_any,
        "metric": group.metric.noun,
        "unit": group.unit,
    }


def _worker_indices(groups: Sequence[Group]) -> list[int]:
    return sorted({index for group in groups for record in group.records for index in record.idle_shares})


def _limited(value: Estimate | None, metric: Metric, *, mean_only: bool = False) -> Estimate | None:
    """Return the estimate with its interval limited to possible values. `mean_only`: leave out spread and interval."""
    if value is None or value.low is None or value.high is None:
        return value
    if mean_only:
        return replace(value, sd=None, low=None, high=None)
    low, high = metric.limited(value.low, value.high)
    return replace(value, low=low, high=high)
