"""Write the comparison to files: the page, its plots, and the numbers as CSV and JSON. Print it."""

from __future__ import annotations

import json
import shlex
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from rich.console import Console

from ps_cluster.config import changed
from ps_cluster.files.writing import write_whole
from ps_cluster.installation import PROGRAM
from ps_cluster.report.pages import rendered
from ps_cluster.report.plots import Look, Plot, grid, legend_outside, logarithmic, looks, plot_style
from ps_cluster.tools.compare import table
from ps_cluster.tools.compare.comparison_plan import REPORT
from ps_cluster.tools.compare.groups import (
    NO_STRAGGLER,
    Group,
    View,
    arms,
    check,
    flow,
    make_groups,
    make_views,
    stragglers,
    warn_of_rates,
)
from ps_cluster.tools.compare.records import Record, ScoreInTime, read_record

# In 1, the target was called target_accuracy; in 2, differences were sentences, called findings; in 3, target_is_limit was
# called target_at_first_score.
SCHEMA = 4


@dataclass(frozen=True)
class Report:
    """A written report, and its content to print."""

    page: Path
    warnings: Sequence[str]
    headline: Sequence[str]
    tables: Sequence[table.Table]


def write_report(
    run_roots: Sequence[Path],
    output: Path,
    *,
    target: float | None = None,
    baseline: str | None = None,
    force: bool = False,
    own: Collection[str] = (),
) -> Report:
    """Compare finished runs and write report.html, plots/, rows.csv, groups.csv and report.json into `output`.

    Args:
      target: for time and examples to target, a share of 1 for accuracies; None takes the hardest round one that all
        runs crossed between two scores.
      baseline: label of the arm that others are compared with; None takes "sync" if there is one, else the arm of the
        first run given.
      force: compare runs that differ in what must be equal, and say so on top.
      own: dotted keys of settings that arms set on purpose, which may differ.
    Raises:
      UserError: a directory holds no finished run, the runs may not be compared, or no arm is the baseline.
    """
    records = [read_record(root) for root in run_roots]
    groups = make_groups(records)
    warnings = check(records, groups, force, own)
    warnings += warn_of_rates(groups)
    if any(record.summary.dataset_kind == "synthetic" for record in records):
        warnings.insert(0, f"Generated {groups[0].unit}: no number here says anything about real data.")
    target = chosen_target(records, target)
    views = make_views(groups, baseline)
    run_rows, group_rows = table.run_rows(groups, target), table.group_rows(groups, target)
    differences = table.difference_rows(groups, views, target)
    headline = [*table.verdict(groups, differences, target), *table.notes(groups, target)]
    tables = table.tables(group_rows, differences, target)
    plots = make_plots(groups, views)
    page = rendered(
        __package__,
        "report.html",
        overview=_overview(groups, target),
        warnings=warnings,
        headline=headline,
        metric=groups[0].metric,
        unit=groups[0].unit,
        tables=tables,
        plots=plots,
        **_origins(groups),
    )
    content = {
        "schema": SCHEMA,
        "warnings": warnings,
        "metric": groups[0].metric.noun,
        "unit": groups[0].unit,
        "target": target,
        "headline": headline,
        "differences": differences,
        "rows": run_rows,
        "groups": group_rows,
    }
    for plot in plots:
        write_whole(output / "plots" / f"{plot.name}.png", plot.png)
        write_whole(output / "plots" / f"{plot.name}.svg", plot.svg)
    write_whole(output / "rows.csv", table.to_csv(run_rows))
    write_whole(output / "groups.csv", table.to_csv(group_rows))
    write_whole(output / REPORT, json.dumps(content, indent=1) + "\n")
    write_whole(output / "report.html", page)
    return Report(output / "report.html", warnings, headline, tables)


def print_report(report: Report, console: Console) -> None:
    """Print warnings, what was found in words, tables, and the path of the page."""
    for line in report.warnings:
        console.print(line, style="bold yellow", highlight=False, markup=False)
    console.print()
    for line in report.headline:
        console.print(f"- {line}", highlight=False, markup=False)
    table.print_tables(report.tables, console)
    console.print()
    console.print(f"report  {report.page}", soft_wrap=True, highlight=False, markup=False)


def chosen_target(records: Sequence[Record], target: float | None) -> float | None:
    """Return the target, by default the hardest round one that every run crossed between two scores.

    None where there is no such target, and where guessing reaches it.

    Runs that diverged are ignored.

    Raises:
      UserError: the metric can't have it.
    """
    metric = records[0].metric
    if target is not None:
        metric.check_target(target)
        return target
    whole = [record for record in records if not record.diverged]
    found = metric.default_target(
        [record.best for record in whole if record.best is not None],
        [record.track[0][1] for record in whole if record.track],
    )
    guesses = [record.summary.guess for record in records if record.summary.guess is not None]
    if found is not None and guesses:
        says_something = found > max(guesses) if metric.larger_is_better else found < min(guesses)
        return found if says_something else None
    return found


def _overview(groups: Sequence[Group], target: float | None) -> dict[str, str]:
    records = [record for group in groups for record in group.records]
    summaries = [record.summary for record in records]
    examples = [record.examples for record in records]
    work = f"{min(examples):,}" if min(examples) == max(examples) else f"{min(examples):,} to {max(examples):,}"
    return {
        "arms": ", ".join(arms(groups)),
        "stragglers": ", ".join(stragglers(groups)),
        "seeds": ", ".join(str(seed) for seed in sorted({record.seed for record in records})),
        "runs": str(len(records)),
        f"{groups[0].unit} trained on, each run": work,
        "scores of each run": _scored(records),
        "data set": ", ".join(dict.fromkeys(f"{run.dataset} ({run.dataset_kind})" for run in summaries)),
        "model": ", ".join(dict.fromkeys(str(run.model) for run in summaries)),
        "precision": ", ".join(dict.fromkeys(str(run.precision) for run in summaries)),
        **({} if target is None else {f"target {groups[0].metric.noun}": groups[0].metric.goal(target)}),
    }


def _scored(records: Sequence[Record]) -> str:
    """Return how many scores the runs have and, where all have as many, how far apart those of one number are."""
    whole = [record for record in records if not record.diverged] or list(records)
    counts = sorted({len(record.scores) for record in whole})
    if len(counts) > 1:
        return f"{counts[0]} to {counts[-1]}, not at the same numbers of {whole[0].summary.unit}"
    places = zip(*([score.examples for score in record.scores] for record in whole))
    apart = max(max(place) - min(place) for place in places) / min(record.examples for record in whole)
    return f"{counts[0]}, at the same numbers of {whole[0].summary.unit} (within {apart:.1%} of the training)"


# Draw the metric of each arm over time and over examples.

_GRID_POINTS = 200
_ROW_IN = 0.13  # inches above a panel for each arm of which a run diverged
_PANEL_IN = 3.0


def make_plots(groups: Sequence[Group], views: Sequence[View]) -> list[Plot]:
    look, metric, unit = looks(arms(groups)), groups[0].metric, groups[0].unit
    name, noun = metric.name.capitalize(), metric.noun
    band = (
        "Lines are means over the seeds, bands reach from the lowest to the highest seed, a marker is where a run ends."
    )
    if any(group.diverged for group in groups):
        band += " A run that diverged is a cross above, at its first score without a finite loss, and in no line."
    with plot_style():
        time = _curves(views, look, lambda score: score.train_seconds, "training time [s]")
        work = _curves(views, look, lambda score: score.examples / 1000, f"{unit} trained on [thousands]")
    return [
        Plot(f"{noun}-over-time", f"{noun.capitalize()} over time", f"{name} over seconds of training. {band}", time),
        Plot(f"{noun}-over-examples", f"{noun.capitalize()} over examples", f"{name} over equal work. {band}", work),
    ]


def _curves(views: Sequence[View], look: dict[str, Look], x_of: Callable[[ScoreInTime], float], x_label: str) -> Figure:
    """Return a figure with a row of panels for each kind of equal batch and a column for each straggler."""
    batches = list(dict.fromkeys(view.batch for view in views))
    columns = list(dict.fromkeys(view.straggler for view in views))
    crosses = [_first_crosses(view.groups, x_of) for view in views]
    figure, panels = grid(len(batches), len(columns), _PANEL_IN + _ROW_IN * max(map(len, crosses)))
    axes, metric = [panel for row in panels for panel in row], views[0].groups[0].metric
    for panel in axes:
        panel.set_visible(False)
        panel.sharey(axes[0])
    if metric.is_log([height for view in views for group in view.groups for height in _heights(group)]):
        logarithmic(axes)
    for view, marks in zip(views, crosses):
        panel = panels[batches.index(view.batch)][columns.index(view.straggler)]
        panel.set_visible(True)
        for group in view.groups:
            _curve(panel, group, look[group.arm], x_of)
        for place, (arm, x) in enumerate(marks.items()):
            panel.plot(
                x, [1 + (place + 0.6) * _ROW_IN / _PANEL_IN] * len(x), "x", color=look[arm].color, markersize=5,
                markeredgewidth=1.4, transform=panel.get_xaxis_transform(), clip_on=False, label=f"{arm}: diverged",
            )  # fmt: skip
        straggler = "no straggler" if view.straggler == NO_STRAGGLER else f"straggler {view.straggler}"
        panel.set(xlabel=x_label, ylabel=metric.axis)
        panel.set_title(f"{straggler}\n{view.batch}", loc="left", pad=6 + 72 * _ROW_IN * len(marks))
        panel.set_xlim(0, 1.03 * max(x_of(record.scores[-1]) for group in view.groups for record in group.records))
    legend_outside(figure, axes)
    return figure


def _first_crosses(groups: Sequence[Group], x_of: Callable[[ScoreInTime], float]) -> dict[str, list[float]]:
    """Return arm → the x at which each of its diverged runs was first found to have diverged."""
    crosses: dict[str, list[float]] = {}
    for group in groups:
        for record in (record for record in group.records if record.diverged):
            first = next(score for score in record.scores if score.diverged)
            crosses.setdefault(group.arm, []).append(x_of(first))
    return crosses


def _heights(group: Group) -> list[float]:
    """Return the shown numbers of all scores of the runs that did not diverge."""
    whole = (record for record in group.records if not record.diverged)
    return [group.metric.scale * value for record in whole for _, value in record.track]


def _curve(axes: Axes, group: Group, look: Look, x_of: Callable[[ScoreInTime], float]) -> None:
    label = group.arm if group.arm not in axes.get_legend_handles_labels()[1] else None
    whole = [record for record in group.records if not record.diverged]
    tracks = [[(x_of(score), group.metric.scale * value) for score, value in record.track] for record in whole]
    if not tracks:
        return
    start, end = max(track[0][0] for track in tracks), min(track[-1][0] for track in tracks)
    if end > start:
        x = np.linspace(start, end, _GRID_POINTS)
        y = np.array([np.interp(x, [at for at, _ in track], [height for _, height in track]) for track in tracks])
        axes.plot(x, y.mean(axis=0), color=look.color, linestyle=look.line, linewidth=1.6)
        if len(tracks) > 1:
            axes.fill_between(x, y.min(axis=0), y.max(axis=0), color=look.color, alpha=0.15, linewidth=0)
    for track in tracks:
        # A line without length: only the legend needs the marker.
        axes.plot(
            *track[-1], color=look.color, marker=look.marker, markersize=4.5, linestyle=look.line, linewidth=1.6,
            markeredgecolor="white", markeredgewidth=0.5, label=label,
        )  # fmt: skip
        label = None


# Say where each run comes from: its settings that are not the defaults, and the machine.

_PLACES = ("data.data_dir",)  # depend on the machine


def _origins(groups: Sequence[Group]) -> dict[str, Any]:
    """Return the settings that all runs share and those of each group, and the machines with their runs."""
    records = [record for group in groups for record in group.records]
    settings = [_changed(record) for record in records]
    common = {key: value for key, value in settings[0].items() if all(other.get(key) == value for other in settings)}
    own = [
        {key: value for key, value in _changed(group.first).items() if key not in common and key != "training.seed"}
        for group in groups
    ]
    machines = Counter(json.dumps(record.summary.machine) for record in records if record.summary.machine)
    return {
        "common": common,
        "groups": [(group, _options(one)) for group, one in zip(groups, own)],
        "again": f"{PROGRAM} run --config RUN_DIR/config.yaml",
        "machines": [
            {"runs": str(runs)} | {name: flow(value) for name, value in json.loads(machine).items()}
            for machine, runs in machines.items()
        ],
    }


def _changed(record: Record) -> dict[str, str]:
    return {key: flow(one.value) for key, one in changed(record.config).items() if key not in _PLACES}


def _options(settings: Mapping[str, str]) -> str:
    return " ".join(f"--set {shlex.quote(f'{key}={value}')}" for key, value in settings.items())
