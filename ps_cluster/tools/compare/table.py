"""The numbers as rows: of each run, of each group, and of what differs between two groups.

The page, the printed tables, CSV and JSON are made of them.
"""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from rich import table as rich_table
from rich.console import Console

from ps_cluster.files.values import cell
from ps_cluster.report.facts import number
from ps_cluster.tools.compare.estimates import ACCURACY, METRICS, Estimate, Metric, difference, estimate, ratio
from ps_cluster.tools.compare.groups import NO_STRAGGLER, Group, View, arms
from ps_cluster.tools.compare.records import Record

Row = dict[str, Any]
Read = Callable[[Record], float | None]
_PARTS = ("mean", "sd", "low", "high", "n")  # of an estimate
_RATIOS = {"speed_ratio": "examples_per_second", "time_ratio": "seconds_to_target"}  # column → number of a run
_MOST_NAMES = 6  # listed in one line


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
    estimates: dict[str, Estimate | None] = dict.fromkeys((f"{metric.column}_difference", *_RATIOS))
    reads = numbers(metric, target)
    if not group.diverged and not against.diverged:
        estimates[f"{metric.column}_difference"] = difference(*(side.sample(reads[metric.column]) for side in both))
        for name, column in _RATIOS.items():
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


# What was found, in words: first the verdict on each arm, then what a reader must not overlook in the tables.

_MOST_VERDICTS = 8


def verdict(groups: Sequence[Group], differences: Sequence[Row], target: float | None) -> Iterator[str]:
    """Yield a sentence for each arm and its baseline. It claims nothing but what was measured."""
    if len(groups) > 1 and all(len(group.records) == 1 for group in groups):
        yield "This proves nothing: one seed. Two runs of one arm would differ too. --seeds 3 shows what differs."
    elif len(groups) > 1 and not differences:
        yield "Nothing is held against each other: no two groups have the same straggler and an equal batch."
    found = [row for row in differences if row["arm"] != row["against"]]
    for row in found[:_MOST_VERDICTS]:
        if parts := list(_verdict_parts(row, target)):
            yield f"{_pair(row)}: {'; '.join(parts)}."
    if len(found) > _MOST_VERDICTS:
        yield f"{len(found) - _MOST_VERDICTS} more pairs are in the table of differences."


def _pair(row: Row) -> str:
    slow = "" if row["straggler"] == NO_STRAGGLER else f", straggler {row['straggler']}"
    n = row["n"] or 0
    return f"{row['arm']} against {row['against']} ({row['equal']}{slow}; {n} seed{'s' * (n != 1)})"


def _verdict_parts(row: Row, target: float | None) -> Iterator[str]:
    """Yield what is said of speed, of the time to the target and of the final metric."""
    metric = METRICS[row["metric"]]
    times = "{:.2f}".format
    speed, goal = f"{row['unit']}/s", "" if target is None else metric.goal(target)
    yield from _judged(
        row, "speed_ratio", 1, (f"more {speed}", f"fewer {speed}"), speed, lambda one: f"{times(one)} times"
    )
    sooner = (f"{goal} is reached later", f"{goal} is reached sooner")
    yield from _judged(row, "time_ratio", 1, sooner, f"the time to {goal}", lambda one: f"{times(one)} times the time")
    if target is not None and row["time_ratio"] is None and row["speed_ratio"] is not None:
        yield f"the time to {goal} is not compared, as it was not measured in every run"
    final = f"final {metric.name}"
    unit = " points" if metric.unit == "%" else ""
    yield from _judged(
        row, f"{metric.column}_difference", 0, (f"a higher {final}", f"a lower {final}"), f"the {final}",
        lambda one: f"{metric.signed(one)}{unit}",
    )  # fmt: skip


def _judged(
    row: Row, name: str, nothing: float, ways: tuple[str, str], what: str, text: Callable[[float], str]
) -> Iterator[str]:
    """Yield the finding on one number, if it was measured.

    Args:
      nothing: the value that means no difference. ways: the words for a larger and for a smaller value.
      what: the number in words. text: value → text.
    """
    mean, low, high = (row[f"{name}{part}"] for part in ("", "_low", "_high"))
    if mean is None:
        return
    way = ways[0] if mean > nothing else ways[1]
    if low is None or high is None:
        yield f"{way} in this run ({text(mean)})" if mean != nothing else f"no difference in {what} in this run"
    elif low <= nothing <= high:
        yield f"no difference shown in {what} ({text(mean)}; {text(low)} to {text(high)})"
    else:
        yield f"{way} ({text(mean)}; {text(low)} to {text(high)})"


def notes(groups: Sequence[Group], target: float | None) -> Iterator[str]:
    """Yield what diverged or did not learn, and what could not be compared."""
    diverged, lost = [], []
    for arm in arms(groups):
        records = [record for group in groups if group.arm == arm for record in group.records]
        broken = sum(record.diverged for record in records)
        diverged += [f"{arm} ({broken} of {len(records)} runs)"] * bool(broken)
        lost += [arm] * any(record.summary.learned is False and not record.diverged for record in records)
    if diverged:
        yield f"Diverged: {_some(diverged)}."
    if lost:
        yield f"Not better than guessing in some run: {_some(lost)}."
    records = [record for group in groups for record in group.records]
    reached = [record.reached(target) for record in records]
    if limits := sum(bool(one and one.is_limit) for one in reached):
        yield (
            f"{limits} of {len(reached)} runs had no score shortly before the one that was at the target: their times to it "
            "are upper limits (≤), and in no ratio."
        )
    if target is None and not all(record.diverged for record in records):
        yield (
            "No time to a target is compared: no round score that says more than a guess was crossed between two scores in "
            "all runs. --target-score chooses one."
        )


def _some(names: Sequence[str]) -> str:
    more = len(names) - _MOST_NAMES
    return ", ".join(names[:_MOST_NAMES]) + (f" and {more} more" if more > 0 else "")


# The tables that a reader sees: all rows as text, on the page and on a terminal.


class Table(NamedTuple):
    """A table as text. `columns`: key → heading; the first three say of which group a row is."""

    title: str
    columns: Mapping[str, str]
    rows: Sequence[Mapping[str, str]]

    @property
    def texts(self) -> list[list[str]]:
        """The cells of each row, in the order of the columns."""
        return [[row[key] for key in self.columns] for row in self.rows]


def tables(rows: Sequence[Row], differences: Sequence[Row], target: float | None) -> list[Table]:
    """Return the tables. All numbers of a group are too many for one in a terminal."""
    metric, unit = METRICS[rows[0]["metric"]], rows[0]["unit"]
    goal = metric.goal(target) if target is not None else "target"
    identity = {"arm": "arm", "batch": "batch per worker / update", "straggler": "straggler"}
    by_title = {
        f"{metric.noun.capitalize()} (mean ± sd over seeds)": {
            "n": "seeds",
            "rate": "learning rate / momentum",
            "metric": metric.with_unit(metric.name),
            "interval": metric.with_unit("95 % interval"),
        },
        "Speed (mean ± sd over seeds)": {
            "speed": f"{unit}/s",
            "seconds": f"s to {goal}",
            "examples": f"{unit} to {goal}",
        },
        "Staleness, work and cost (means over seeds)": {
            "staleness": "staleness mean / p95 / max",
            "updates": "updates applied / dropped / replayed",
            "idle": "idle share of worker 0, 1, … [%]",
            "cpu": "CPU [s]",
            "memory": "peak memory [MiB]",
        },
    }
    texts = [cells(row) for row in rows]
    found = [Table(title, identity | columns, texts) for title, columns in by_title.items()]
    if differences:
        columns = {
            "against": "against",
            "difference": metric.with_unit(metric.name),
            "speed_ratio": f"{unit}/s, times",
            "time_ratio": f"s to {goal}, times",
        }
        title = "Differences (95 % interval; ~: it holds no difference)"
        found.append(Table(title, identity | columns, [_difference_cells(row) for row in differences]))
    return found


def cells(row: Row) -> dict[str, str]:
    """Return a group's row as readable text: mean ± standard deviation; "–" for unknown or not reached."""
    metric = METRICS[row["metric"]]
    low, high = row[f"{metric.column}_low"], row[f"{metric.column}_high"]
    n_reached = row["seconds_to_target_n"]
    some = f" ({n_reached} of {row['n']})" if 0 < n_reached < row["n"] else ""
    limit = "≤ " if row["target_is_limit_mean"] else ""
    stale = [row[f"staleness_{name}_mean"] for name in ("mean", "p95", "max")]
    counts = (row[f"{name}_mean"] for name in ("updates_applied", "gradients_dropped", "replays_refused"))
    memory = row["peak_memory_bytes_mean"]
    idle = [row[name] for name in row if re.fullmatch(r"idle_share_worker_\d+_mean", name)]
    while idle and idle[-1] is None:  # later columns belong to groups with more workers
        idle.pop()
    return _identity_cells(row) | {
        "n": str(row["n"]),
        "rate": f"{row['learning_rate']:.3g} / {number(row['momentum'], '.3g')}",
        "metric": _metric(row, metric),
        "interval": "–" if None in (low, high) else f"{metric.number(low)} to {metric.number(high)}",
        "speed": _spread(row, "examples_per_second", ",.0f"),
        "seconds": limit + _spread(row, "seconds_to_target", ",.1f") + some,
        "examples": limit + _spread(row, "examples_to_target", ",.0f"),
        "staleness": " / ".join(map(number, stale, (".2f", ".0f", ".0f"))) if stale[0] is not None else "–",
        "updates": " / ".join(number(count, ",.0f") for count in counts),
        "idle": ", ".join("–" if share is None else f"{share * 100:.0f}" for share in idle) or "–",
        "cpu": number(row["cpu_seconds_mean"], ",.0f"),
        "memory": "–" if memory is None else f"{memory / 2**20:,.0f}",
    }


def _difference_cells(row: Row) -> dict[str, str]:
    metric = METRICS[row["metric"]]
    straggler = "" if row["against_straggler"] == row["straggler"] else f", straggler {row['against_straggler']}"
    ratios = {name: _with_interval(row, name, 1, "{:.2f}".format) for name in _RATIOS}
    of_metric = _with_interval(row, f"{metric.column}_difference", 0, metric.signed)
    against = f"{row['against']} {row['against_batch_per_worker']}{straggler}"
    return _identity_cells(row) | {"against": against, "difference": of_metric} | ratios


def _with_interval(row: Row, name: str, nothing: float, text: Callable[[float], str]) -> str:
    """Return e.g. "-1.15 (-1.41 to -0.88)", with ~ before it where the interval holds the value `nothing`."""
    mean, low, high = (row[f"{name}{part}"] for part in ("", "_low", "_high"))
    if mean is None or low is None or high is None:
        return "–" if mean is None else text(mean)
    return f"{'~ ' if low <= nothing <= high else ''}{text(mean)} ({text(low)} to {text(high)})"


def print_tables(found: Sequence[Table], console: Console) -> None:
    """Print tables that fit a terminal of 80 columns: names, lists and intervals fold, numbers don't."""
    short = {"batch": "batch /worker /update", "straggler": "slow"}
    for title, columns, rows in found:
        shown = rich_table.Table(
            title=title, title_justify="left", title_style="bold", box=None, padding=(0, 1), pad_edge=False
        )
        folding = ("arm", "straggler", "idle", "against")
        for name, head in columns.items():
            heading = short.get(name, head.replace(" / ", " /").replace(" %", "%"))
            texts = [_compact(row[name]) for row in rows]
            if name in ("difference", *_RATIOS):
                texts = " ".join(texts).split(" ")
            width = None if name in folding else max(map(len, (*texts, *heading.split())))
            shown.add_column(heading, justify="left" if name == "arm" else "right", overflow="fold", width=width)
        for row in rows:
            shown.add_row(*(_compact(row[name]) for name in columns))
        console.print()
        console.print(shown, highlight=False, markup=False)


def _compact(text: str) -> str:
    """Return a cell without the spaces that only a page has room for; an interval in brackets is one word."""
    whole = re.sub(r"\((\S+) to (\S+)\)$", r"(\1…\2)", text)
    return re.sub(r" (±|/) |~ ", lambda found: found[0].strip(), whole).replace(", ", " ")


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


def _identity_cells(row: Row) -> dict[str, str]:
    batch = f"{row['batch_per_worker']} / {row['batch_per_update']}"
    return {"arm": row["arm"], "batch": batch, "straggler": row["straggler"]}


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


def _metric(row: Row, metric: Metric) -> str:
    if row["diverged"] == row["n"]:
        return "diverged"
    some = f" ({row['diverged']} of {row['n']} diverged)" if row["diverged"] else ""
    mean, sd = row[f"{metric.column}_mean"], row[f"{metric.column}_sd"]
    return metric.number(mean) + ("" if sd is None else f" ± {metric.scale * sd:{metric.difference_spec}}") + some


def _spread(row: Row, name: str, spec: str) -> str:
    mean, sd = row[f"{name}_mean"], row[f"{name}_sd"]
    if mean is None:
        return "–"
    return f"{mean:{spec}}" + ("" if sd is None else f" ± {sd:{spec}}")
