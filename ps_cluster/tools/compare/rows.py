"""The numbers of a comparison as rows: of each run, of each group, and of the difference of two groups.

The page, the printed tables, CSV and JSON are made of them.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from ps_cluster.files.values import cell
from ps_cluster.tools.compare.estimates import Estimate, difference, estimate, ratio
from ps_cluster.tools.compare.groups import NO_STRAGGLER, Group, View
from ps_cluster.tools.compare.metric import ACCURACY, Metric
from ps_cluster.tools.compare.records import Record

Row = dict[str, Any]
Read = Callable[[Record], float | None]
_PARTS = ("mean", "sd", "low", "high", "n")  # of an estimate
RATIOS = {"speed_ratio": "examples_per_second", "time_ratio": "seconds_to_target"}  # column → number of a run


def numbers(metric: Metric, target: float | None) -> Mapping[str, Read]:
    """Return name with unit → function that reads it off a run. Accuracies and shares in 0..1."""

    def reached(name: str) -> Read:
        return lambda record: getattr(record.reached(target), name, None)

    return {
        metric.column: lambda record: record.final,
        metric.best_column: lambda record: record.best,
        "train_seconds": lambda record: record.summary.train_seconds,
        "examples": lambda record: record.examples,
        "examples_per_second": lambda record: record.examples_per_second,
        "seconds_to_target": reached("seconds"),
        "examples_to_target": reached("examples"),
        "target_is_limit": reached("is_limit"),
        "staleness_mean": lambda record: record.summary.staleness.mean,
        "staleness_p95": lambda record: record.summary.staleness.p95,
        "staleness_max": lambda record: record.summary.staleness.max,
        "updates_applied": lambda record: record.summary.updates.applied,
        "gradients_dropped": lambda record: record.summary.gradients.dropped or 0,
        "replays_refused": lambda record: record.summary.updates.replays_refused,
        "cpu_seconds": lambda record: record.summary.cpu_seconds,
        "peak_memory_bytes": lambda record: record.summary.peak_memory_bytes,
        "pushed_bytes": lambda record: _total(server.pushed_bytes for server in record.summary.parameter_servers),
        "pulled_bytes": lambda record: _total(server.pulled_bytes for server in record.summary.parameter_servers),
    }


def _total(counts: Iterable[int | None]) -> int | None:
    """Return their sum; None where one is unknown, or there are none."""
    known = list(counts)
    return sum(count for count in known if count is not None) if known and None not in known else None


def run_rows(groups: Sequence[Group], target: float | None) -> list[Row]:
    """Return a row for each run, group by group."""
    workers = _worker_indices(groups)
    return [
        {
            **_identity(group),
            "seed": record.seed,
            "workers": record.config.training_workers,
            "target": target,
            "diverged": record.diverged,
            **{name: read(record) for name, read in numbers(group.metric, target).items()},
            **{f"idle_share_worker_{index}": record.idle_shares.get(index) for index in workers},
            "run": str(record.root),
        }
        for group in groups
        for record in group.records
    ]


def group_rows(groups: Sequence[Group], target: float | None) -> list[Row]:
    """Return a row per group: the mean of each number and, from two seeds on, sd and 95 % interval.

    A number that some runs don't have (a target that wasn't reached, the metric of a run that diverged) has a smaller
    n of its own. If a run diverged, the metric of the others gets no spread, since they are a selection.
    """
    workers = _worker_indices(groups)
    rows = []
    for group in groups:
        metric = group.metric
        estimates = {name: estimate(group.values(read)) for name, read in numbers(metric, target).items()}
        for name in (metric.column, metric.best_column):
            estimates[name] = _limited(estimates[name], metric, alone=bool(group.diverged))
        for index in workers:
            shares = [record.idle_shares[index] for record in group.records if index in record.idle_shares]
            estimates[f"idle_share_worker_{index}"] = _limited(estimate(shares), ACCURACY)  # a share too
        seeds = " ".join(map(str, group.seeds))
        row = {**_identity(group), "n": len(group.records), "seeds": seeds, "target": target}
        row["diverged"] = group.diverged
        for name, value in estimates.items():
            row |= {f"{name}_{part}": getattr(value, part, 0 if part == "n" else None) for part in _PARTS}
        rows.append(row)
    return rows


def difference_rows(groups: Sequence[Group], views: Sequence[View], target: float | None) -> list[Row]:
    """Return a row for each group and its baseline, and for each group and itself without its straggler.

    A group that shares both batches with the baseline has one row. Nothing is said of a group with a run that diverged,
    and no ratio of times to a target that some run did not reach, or of whose time only an upper limit was measured.
    """
    pairs: dict[object, tuple[Group, Group, str]] = {}
    for view in views:
        if baseline := view.baseline:
            for group in view.others:
                pairs.setdefault((group.key, baseline.key), (group, baseline, view.batch))
    without = {(group.arm, group.batch_per_worker): group for group in groups if group.straggler == NO_STRAGGLER}
    itself = [
        (group, without[place], "the same batch")
        for group in groups
        if group.straggler != NO_STRAGGLER and (place := (group.arm, group.batch_per_worker)) in without
    ]
    return [_difference(*pair, target) for pair in (*pairs.values(), *itself)]


def _difference(group: Group, against: Group, equal: str, target: float | None) -> Row:
    both, metric = (group, against), group.metric
    estimates: dict[str, Estimate | None] = dict.fromkeys((f"{metric.column}_difference", *RATIOS))
    reads = numbers(metric, target)
    if not group.diverged and not against.diverged:
        estimates[f"{metric.column}_difference"] = difference(*(side.sample(reads[metric.column]) for side in both))
        for name, column in RATIOS.items():
            reached = [record.reached(target) for side in both for record in side.records]
            if column == "examples_per_second" or all(one and not one.is_limit for one in reached):
                estimates[name] = ratio(*(side.sample(reads[column]) for side in both))
    first = next(filter(None, estimates.values()), None)
    return {
        **_identity(group),
        "against": against.arm,
        "against_batch_per_worker": against.batch_per_worker,
        "against_straggler": against.straggler,
        "equal": equal,
        "n": first and first.n,
        "paired": first and first.paired,
    } | {
        name + part: getattr(value, part.removeprefix("_") or "mean", None)
        for name, value in estimates.items()
        for part in ("", "_low", "_high")
    }


def to_csv(rows: Sequence[Row]) -> str:
    text = io.StringIO()
    writer = csv.DictWriter(text, list(rows[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows({name: cell(value) for name, value in row.items()} for row in rows)
    return text.getvalue()


def _identity(group: Group) -> Row:
    optimizer = group.first.config.optimizer
    return {
        "arm": group.arm,
        "batch_per_worker": group.batch_per_worker,
        "batch_per_update": group.batch,
        "straggler": group.straggler,
        "learning_rate": optimizer.learning_rate,
        "momentum": getattr(optimizer, "momentum", None),
        "metric": group.metric.noun,
        "unit": group.unit,
    }


def _worker_indices(groups: Sequence[Group]) -> list[int]:
    return sorted({index for group in groups for record in group.records for index in record.idle_shares})


def _limited(value: Estimate | None, metric: Metric, *, alone: bool = False) -> Estimate | None:
    """Return the estimate with its interval limited to what the metric can be. `alone`: only the mean."""
    if value is None or value.low is None or value.high is None:
        return value
    if alone:
        return replace(value, sd=None, low=None, high=None)
    low, high = metric.limited(value.low, value.high)
    return replace(value, low=low, high=high)
