"""The tables of a comparison, with all cells as text, for the page and for a terminal."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from rich.console import Console

from ps_cluster.report.facts import number
from ps_cluster.report.terminal import FOLD, ColumnOptions, plain_table
from ps_cluster.tools.compare.estimates import Estimate
from ps_cluster.tools.compare.findings import GroupDifference, GroupFinding
from ps_cluster.tools.compare.groups import Group
from ps_cluster.tools.compare.measures import (
    CPU_SECONDS,
    GRADIENTS_DROPPED,
    PEAK_MEMORY,
    REPLAYS_REFUSED,
    SPEED,
    STALENESS_MAX,
    STALENESS_MEAN,
    STALENESS_P95,
    UPDATES_APPLIED,
    Measure,
)

_RIGHT: ColumnOptions = {**FOLD, "justify": "right"}


class Table(NamedTuple):
    """A table as text. `columns`: key → heading. The first three columns identify the group of a row."""

    title: str
    columns: Mapping[str, str]
    rows: Sequence[Mapping[str, str]]

    @property
    def texts(self) -> list[list[str]]:
        return [[row[key] for key in self.columns] for row in self.rows]


def tables(findings: Sequence[GroupFinding], differences: Sequence[GroupDifference]) -> list[Table]:
    """Return the tables of a report. A single table with all numbers of a group would be too wide for a terminal."""
    metric, unit, target = findings[0].group.metric, findings[0].group.unit, findings[0].measures.target
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
            "memory": "peak memory [MB]",
        },
    }
    if times := findings[0].measures.times:
        title = f"{metric.noun.capitalize()} after the same time (mean ± sd over seeds)"
        by_title[title] = {f"after {seconds:g}": metric.with_unit(f"after {seconds:g} s") for seconds in times}
    texts = [cells(one) for one in findings]
    found = [Table(title, identity | columns, texts) for title, columns in by_title.items()]
    if differences:
        columns = {
            "against": "against",
            "difference": metric.with_unit(metric.name),
            "speed_ratio": f"{unit}/s, ratio",
            "time_ratio": f"s to {goal}, ratio",
        }
        title = "Differences (95 % interval; ~ means no clear difference)"
        found.append(Table(title, identity | columns, [_difference_cells(one) for one in differences]))
    return found


def cells(finding: GroupFinding) -> dict[str, str]:
    """Return a group's results as text, by column key: mean ± standard deviation.

    An unknown value is "–", e.g. the time to a target that no run reached.
    """
    group, mean, measures = finding.group, finding.mean, finding.measures
    metric, optimizer, final = group.metric, group.first.config.optimizer, finding[measures.final]
    some = finding.runs_with(measures.seconds_to_target) if mean(measures.seconds_to_target) is not None else ""
    limit = "≤ " if mean(measures.target_is_limit) else ""
    stale = [mean(measure) for measure in (STALENESS_MEAN, STALENESS_P95, STALENESS_MAX)]
    counts = (mean(measure) for measure in (UPDATES_APPLIED, GRADIENTS_DROPPED, REPLAYS_REFUSED))
    memory, interval = mean(PEAK_MEMORY), "–"
    if final and final.low is not None and final.high is not None:
        interval = f"{metric.number(final.low)} to {metric.number(final.high)}"
    return _identity_cells(group) | {
        "n": str(len(group.records)),
        "rate": f"{number(optimizer.learning_rate, '.3g')} / {number(optimizer.momentum_if_any, '.3g')}",
        "metric": _metric(finding, measures.final),
        "interval": interval,
        **{f"after {time:g}": _metric(finding, measures.after(time)) for time in measures.times},
        "speed": _spread(finding[SPEED], ",.0f"),
        "seconds": limit + _spread(finding[measures.seconds_to_target], ",.1f") + some,
        "examples": limit + _spread(finding[measures.examples_to_target], ",.0f"),
        "staleness": " / ".join(map(number, stale, (".2f", ".0f", ".0f"))) if stale[0] is not None else "–",
        "updates": " / ".join(number(count, ",.0f") for count in counts),
        "idle": ", ".join(number(None if one is None else 100 * one.mean, ".0f") for one in finding.idle.values())
        or "–",
        "cpu": number(mean(CPU_SECONDS), ",.0f"),
        "memory": "–" if memory is None else f"{memory / 1e6:,.0f}",
    }


def _difference_cells(one: GroupDifference) -> dict[str, str]:
    against, metric = one.against, one.group.metric
    straggler = "" if against.straggler == one.group.straggler else f", straggler {against.straggler}"
    return _identity_cells(one.group) | {
        "against": f"{against.arm} {against.batch_per_worker}{straggler}",
        "difference": _with_interval(one.metric_difference, 0, metric.signed),
        "speed_ratio": _with_interval(one.speed, 1, "{:.2f}".format),
        "time_ratio": _with_interval(one.time, 1, "{:.2f}".format),
    }


def _with_interval(found: Estimate | None, no_difference: float, text: Callable[[float], str]) -> str:
    """Return a mean and its interval, e.g. "-1.15 (-1.41 to -0.88)".

    The text begins with ~ if the interval contains `no_difference`, the value that means no difference.
    """
    if found is None or found.low is None or found.high is None:
        return "–" if found is None else text(found.mean)
    return f"{'~ ' if found.holds(no_difference) else ''}{text(found.mean)} ({text(found.low)} to {text(found.high)})"


def print_tables(found: Sequence[Table], console: Console) -> None:
    """Print the tables. On a narrow terminal cells are broken between their words."""
    for one in found:
        shown = plain_table(**{heading: FOLD if key == "arm" else _RIGHT for key, heading in one.columns.items()})
        shown.title, shown.title_justify, shown.title_style = one.title, "left", "bold"
        for texts in one.texts:
            shown.add_row(*texts)
        console.print()
        console.print(shown, highlight=False, markup=False)


def _identity_cells(group: Group) -> dict[str, str]:
    return {"arm": group.arm, "batch": f"{group.batch_per_worker} / {group.batch}", "straggler": group.straggler}


def _metric(finding: GroupFinding, measure: Measure) -> str:
    group, found = finding.group, finding[measure]
    if found is None:
        return "diverged" if group.diverged == len(group.records) else "–"
    metric = group.metric
    diverged = f" ({group.diverged} of {len(group.records)} diverged)" if group.diverged else ""
    some = diverged if found.n == len(group.records) - group.diverged else diverged + finding.runs_with(measure)
    spread = "" if found.sd is None else f" ± {metric.scale * found.sd:{metric.difference_spec}}"
    return metric.number(found.mean) + spread + some


def _spread(found: Estimate | None, spec: str) -> str:
    if found is None:
        return "–"
    return f"{found.mean:{spec}}" + ("" if found.sd is None else f" ± {found.sd:{spec}}")
