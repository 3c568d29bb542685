"""The tables of a comparison: all rows as text, for the page and for a terminal."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from rich.console import Console

from ps_cluster.report.facts import number
from ps_cluster.report.terminal import FOLD, plain_table
from ps_cluster.tools.compare.metric import METRICS, Metric
from ps_cluster.tools.compare.rows import RATIOS, Row

_RIGHT = {**FOLD, "justify": "right"}


class Table(NamedTuple):
    """A table as text. `columns`: key → heading; the first three name the group of a row."""

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
    ratios = {name: _with_interval(row, name, 1, "{:.2f}".format) for name in RATIOS}
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
    """Print the tables. On a narrow terminal cells are broken between their words."""
    for one in found:
        shown = plain_table(**{heading: FOLD if key == "arm" else _RIGHT for key, heading in one.columns.items()})
        shown.title, shown.title_justify, shown.title_style = one.title, "left", "bold"
        for texts in one.texts:
            shown.add_row(*texts)
        console.print()
        console.print(shown, highlight=False, markup=False)


def _identity_cells(row: Row) -> dict[str, str]:
    batch = f"{row['batch_per_worker']} / {row['batch_per_update']}"
    return {"arm": row["arm"], "batch": batch, "straggler": row["straggler"]}


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
