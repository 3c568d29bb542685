"""The numbers as rows, one per run and one per group. The page, the printed table, CSV and JSON are made of them."""

from __future__ import annotations

import csv
import io
import math
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from ps_cluster.config import RunConfig, build_config, has_rates, rates_found
from ps_cluster.files.values import cell
from ps_cluster.files.yaml_files import read_yaml
from ps_cluster.installation import PROGRAM
from ps_cluster.report.closing_table import number
from ps_cluster.tools.compare.groups import Group
from ps_cluster.tools.compare.metrics import ACCURACY, METRICS, Estimate, Metric, estimate
from ps_cluster.tools.compare.records import Record

Row = dict[str, Any]
_FOLDING = ("arm", "slow", "idle")  # columns that fold in a terminal; the others are as wide as their numbers
Numbers = Mapping[str, Callable[[Record], float | None]]


def tables(metric: Metric) -> dict[str, tuple[str, ...]]:
    """Return title → columns. Too many for one table in a terminal: each starts with the columns that name the group."""
    return {
        f"{metric.noun.capitalize()} (mean ± sd over seeds)": ("n", "rate", "metric", "interval"),
        "Speed (mean ± sd over seeds)": ("speed", "seconds", "examples"),
        "Staleness, work and cost (means over seeds)": ("staleness", "updates", "idle", "cpu", "memory"),
    }


def numbers(metric: Metric, target: float | None) -> Numbers:
    """Return name with unit → function that reads it off a run. Accuracies and shares in 0..1."""

    def reached(name: str) -> Callable[[Record], float | None]:
        return lambda record: (
            getattr(found, name) if target is not None and (found := record.reached(target)) is not None else None
        )

    return {
        metric.column: lambda record: record.final,
        metric.best_column: lambda record: record.best,
        "train_seconds": lambda record: record.train_seconds,
        "examples": lambda record: record.examples,
        "examples_per_second": lambda record: record.examples_per_second,
        "seconds_to_target": reached("seconds"),
        "examples_to_target": reached("examples"),
        "target_at_first_score": reached("at_first_score"),
        "staleness_mean": lambda record: record.staleness.mean,
        "staleness_p95": lambda record: record.staleness.p95,
        "staleness_max": lambda record: record.staleness.max,
        "updates_applied": lambda record: record.updates_applied,
        "gradients_dropped": lambda record: record.gradients_dropped,
        "replays_refused": lambda record: record.replays_refused,
        "cpu_seconds": lambda record: record.cpu_seconds,
        "peak_memory_bytes": lambda record: record.peak_memory_bytes,
    }


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
            row |= _estimate_columns(name, value)
        rows.append(row)
    return rows


def to_csv(rows: Sequence[Row]) -> str:
    text = io.StringIO()
    writer = csv.DictWriter(text, list(rows[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows({name: cell(value) for name, value in row.items()} for row in rows)
    return text.getvalue()


def headings(metric: Metric, unit: str, target: float | None) -> dict[str, str]:
    """Return key → heading of the columns of `cells`. `unit`: the word for several examples."""
    goal = metric.goal(target) if target is not None else "target"
    return {
        "n": "seeds",
        "rate": "learning rate / momentum",
        "metric": metric.with_unit(metric.name),
        "interval": metric.with_unit("95 % interval"),
        "speed": f"{unit}/s",
        "seconds": f"s to {goal}",
        "examples": f"{unit} to {goal}",
        "staleness": "staleness mean / p95 / max",
        "updates": "updates applied / dropped / replayed",
        "idle": "idle share of worker 0, 1, … [%]",
        "cpu": "CPU [s]",
        "memory": "peak memory [MiB]",
    }


def cells(row: Row) -> dict[str, str]:
    """Return a group's row as readable text: mean ± standard deviation; "–" for unknown or not reached."""
    idle = [row[f"{name}_mean"] for name in _idle_names(row)]
    metric = METRICS[row["metric"]]
    low, high = row[f"{metric.column}_low"], row[f"{metric.column}_high"]
    n_reached = row["seconds_to_target_n"]
    some = f" ({n_reached} of {row['n']})" if 0 < n_reached < row["n"] else ""
    limit = "≤ " if row["target_at_first_score_mean"] else ""
    stale = (row["staleness_mean_mean"], row["staleness_p95_mean"], row["staleness_max_mean"])
    counts = (row[f"{name}_mean"] for name in ("updates_applied", "gradients_dropped", "replays_refused"))
    memory = row["peak_memory_bytes_mean"]
    return {
        "n": str(row["n"]),
        "rate": f"{row['learning_rate']:.3g} / {row['momentum']:.3g}",
        "metric": _metric(row, metric),
        "interval": "–" if None in (low, high) else f"{metric.number(low)} to {metric.number(high)}",
        "speed": _spread(row, "examples_per_second", ",.0f"),
        "seconds": limit + _spread(row, "seconds_to_target", ",.1f") + some,
        "examples": limit + _spread(row, "examples_to_target", ",.0f"),
        "staleness": "–"
        if stale[0] is None
        else f"{stale[0]:.2f} / {number(stale[1], '.0f')} / {number(stale[2], '.0f')}",
        "updates": " / ".join(number(count, ",.0f") for count in counts),
        "idle": ", ".join("–" if share is None else f"{share * 100:.0f}" for share in idle) or "–",
        "cpu": number(row["cpu_seconds_mean"], ",.0f"),
        "memory": "–" if memory is None else f"{memory / 2**20:,.0f}",
    }


def print_tables(rows: Sequence[Row], target: float | None, console: Console) -> None:
    """Print the groups in tables that fit a terminal of 80 columns: names and lists fold, numbers don't."""
    metric, unit = METRICS[rows[0]["metric"]], rows[0]["unit"]
    for title, keys in tables(metric).items():
        heads = _printed_heads(headings(metric, unit, target), keys)
        table = Table(title=title, title_justify="left", title_style="bold", box=None, padding=(0, 1), pad_edge=False)
        lines = [_printed(row, keys) for row in rows]
        for name, head, *values in zip(("arm", "batch", "slow", *keys), heads, *lines):
            width = None if name in _FOLDING else max(map(len, (*values, *head.split())))
            table.add_column(head, justify="left" if name == "arm" else "right", overflow="fold", width=width)
        for line in lines:
            table.add_row(*line)
        console.print()
        console.print(table, highlight=False, markup=False)


def _printed_heads(names: Mapping[str, str], keys: Sequence[str]) -> list[str]:
    """Return the headings of a printed table; they wrap at their spaces."""
    return ["arm", "batch /worker /update", "slow"] + [
        names[key].replace(" / ", " /").replace(" %", "%") for key in keys
    ]


def _printed(row: Row, keys: Sequence[str]) -> list[str]:
    """Return a line of a printed table: `cells` without the spaces that only a page has room for."""
    shown = cells(row)
    numbers = [re.sub(r" (±|/) ", r"\1", shown[key]).replace(", ", " ") for key in keys]
    return [row["arm"], f"{row['batch_per_worker']}/{row['batch_per_update']}", row["straggler"], *numbers]


def _identity(group: Group) -> Row:
    return {
        "arm": group.arm,
        "batch_per_worker": group.batch_per_worker,
        "batch_per_update": group.batch,
        "straggler": group.straggler,
        "learning_rate": group.first.config.optimizer.learning_rate,
        "momentum": getattr(group.first.config.optimizer, "momentum", None),
        "metric": group.metric.noun,
        "unit": group.unit,
    }


def _worker_indices(groups: Sequence[Group]) -> list[int]:
    return sorted({index for group in groups for record in group.records for index in record.idle_shares})


def _idle_names(row: Row) -> list[str]:
    """Return the column names of this row's workers. Later columns belong to groups with more workers."""
    names = [name.removesuffix("_mean") for name in row if name.startswith("idle_share") and name.endswith("_mean")]
    while names and row[f"{names[-1]}_mean"] is None:
        names.pop()
    return names


def _estimate_columns(name: str, value: Estimate | None) -> Row:
    if value is None:
        return {f"{name}_{part}": None for part in ("mean", "sd", "low", "high")} | {f"{name}_n": 0}
    return {
        f"{name}_mean": value.mean, f"{name}_sd": value.sd, f"{name}_low": value.low, f"{name}_high": value.high,
        f"{name}_n": value.n,
    }  # fmt: skip


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
    return metric.number(mean) + ("" if sd is None else f" ± {metric.difference(metric.scale * sd)}") + some


def _spread(row: Row, name: str, spec: str) -> str:
    mean, sd = row[f"{name}_mean"], row[f"{name}_sd"]
    if mean is None:
        return "–"
    return f"{mean:{spec}}" + ("" if sd is None else f" ± {sd:{spec}}")


# Tell whether an arm's learning rate was found for its mode, or is its network's rate, scaled or as it is.

PLAN = "comparison.yaml"  # beside runs/
SCALED = "rates_scaled"  # key in it: names of the runs whose rate the comparison multiplied


def warn_of_scaled(groups: Sequence[Group]) -> Iterator[str]:
    """Yield a warning for the top of a report where learning rates were only scaled."""
    outputs = {_output(record) for group in groups for record in group.records}
    noted = {output: _noted(output / PLAN) for output in outputs}

    def is_scaled(record: Record) -> bool:
        names = noted[_output(record)]
        return looks_scaled(record.config) if names is None else record.root.name in names

    scaled = {_named(group): group.first.config for group in groups if any(map(is_scaled, group.records))}
    if not scaled:
        return
    rules = ", ".join(sorted({config.optimizer.rule for config in scaled.values()}))
    yield (
        f"Learning rates that were not found for their mode but scaled by the {groups[0].unit} of an update: "
        f"{', '.join(scaled)}. That is a rule for SGD (Goyal et al. 2017), and the optimizer is {rules}: at rates of their own "
        f"these arms may come out otherwise. `{PROGRAM} sweep --mode MODE --vary optimizer.learning_rate=LOW..HIGH:log` finds "
        "such."
    )


def warn_of_unknown(groups: Sequence[Group]) -> Iterator[str]:
    """Yield a warning for the top of a report whose network has no rates of single modes at all."""
    configs = [record.config for group in groups for record in group.records]
    models = dict.fromkeys(config.model.name for config in configs if not has_rates(config))
    if models:
        yield (
            f"No learning rates were found for single modes of {', '.join(models)}: the network's recipe has none. At rates "
            "of their own the modes may come out otherwise."
        )


def was_found(config: RunConfig) -> bool:
    """Return whether rate and momentum are those of the network's recipe for this mode, workers and batch."""
    found = rates_found(config)
    optimizer = config.optimizer
    return found is not None and (found.learning_rate, found.momentum) == (
        optimizer.learning_rate,
        getattr(optimizer, "momentum", 0.0),
    )


def looks_scaled(config: RunConfig) -> bool:
    """Return whether the rate is the network's own x examples per update / its batch, and was not found for the mode.

    For runs whose comparison did not record it. A batch or rate that the user chose can't be judged.
    """
    # With a given rule nothing comes from the recipe's table: this is the network's own rate.
    own = build_config(None, {"model.name": config.model.name, "optimizer.rule": config.optimizer.rule})
    examples = config.training.batch_size_per_worker * config.gradients_per_update
    times = examples / own.training.batch_size_per_worker
    scaled = math.isclose(config.optimizer.learning_rate, own.optimizer.learning_rate * times, rel_tol=1e-6)
    return scaled and not math.isclose(times, 1) and not was_found(config)


def _output(record: Record) -> Path:
    """Return the folder of the comparison that a run would belong to."""
    return record.root.parent.parent


def _noted(plan: Path) -> Collection[str] | None:
    """Return the names of the runs whose rate a comparison scaled; None if no comparison recorded them."""
    names = read_yaml(plan).get(SCALED) if plan.is_file() else None
    return names if isinstance(names, list) else None


def _named(group: Group) -> str:
    return f"{group.arm} {group.batch_per_worker}/{group.batch} ({group.first.config.optimizer.learning_rate:.3g})"
