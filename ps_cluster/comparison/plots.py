"""Draw the plots of a comparison. A plot without data is left out."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from ps_cluster.comparison.crosses import diverged_marks, rows_of_crosses
from ps_cluster.comparison.groups import Group, View, arms
from ps_cluster.comparison.histograms import SEEN, histograms
from ps_cluster.comparison.phrases import shown, straggler_words
from ps_cluster.comparison.run_records import ScoreInTime
from ps_cluster.comparison.throughput_plot import straggler_factors, throughput
from ps_cluster.comparison.timeline import timelines
from ps_cluster.reporting.plot import Plot
from ps_cluster.reporting.plot_style import Look, grid, legend_outside, logarithmic, looks, plot_style

_GRID_POINTS = 200
_ROW_IN = 0.13  # inches that a row of crosses, for an arm that diverged, adds to the height of a panel
_WIDE_RANGE = 8.0  # highest mean staleness from which its axis is logarithmic


def make_plots(groups: Sequence[Group], views: Sequence[View]) -> list[Plot]:
    with plot_style():
        return list(_plots(groups, views))


def _plots(groups: Sequence[Group], views: Sequence[View]) -> Iterator[Plot]:
    look, metric, unit = looks(arms(groups)), groups[0].metric, groups[0].unit
    name, noun = metric.name.capitalize(), metric.noun
    crossed = any(group.diverged for group in groups)
    band = (
        "Lines are means over the seeds, bands reach from the lowest to the highest seed, a marker is where a run ends."
    )
    if crossed:
        band += (
            f" A run that diverged is a cross {metric.diverged_at}, at its first score without a finite loss, and in no "
            "line."
        )
    time = _curves(views, look, lambda score: score.train_seconds, "training time [s]")
    yield Plot(f"{noun}-over-time", f"{noun.capitalize()} over time", f"{name} over seconds of training. {band}", time)
    work = _curves(views, look, lambda score: score.examples / 1000, f"{unit} trained on [thousands]")
    yield Plot(f"{noun}-over-examples", f"{noun.capitalize()} over examples", f"{name} over equal work. {band}", work)
    if factors := straggler_factors(groups):
        caption = (
            f"{unit.capitalize()} per second, by how many times its own time a step of the slowest worker takes (1: no "
            "straggler). Markers are means over the seeds, bars reach from the lowest to the highest."
        )
        if len({factor for _, factor in factors}) == 2:
            caption += " Filled: no straggler; open: with it, and what is left of the throughput."
        yield Plot("throughput", "Throughput over straggler factor", caption, throughput(factors, look))
    for number, figure in enumerate(histograms(groups), start=1):
        caption = (
            "How many versions the updates of each worker were behind, as shares of that worker's updates, all seeds "
            f"together, up to the staleness that {SEEN:.1%} of the updates kept within. Groups without an update that was "
            "behind are left out."
        )
        again = f"-{number}" if number > 1 else ""
        title = f"Staleness of each worker{', continued' if again else ''}"
        yield Plot(f"staleness{again}", title, caption, figure)
    if len({record.staleness.mean for group in groups for record in group.records} - {None}) > 1:
        caption = f"Final {metric.name} over measured mean staleness, a point for each run."
        if crossed:
            caption += f" Runs that diverged are crosses {metric.diverged_at}."
        title = f"{noun.capitalize()} against staleness"
        yield Plot(f"{noun}-over-staleness", title, caption, _scatter(groups, look))
    for straggler, figure in timelines(groups):
        caption = (
            f"What each worker did in the same short time in the middle of the first seed's run, {straggler_words(straggler)}. "
            "A step waits until it is admitted, pulls the parameters, computes, is held back where the worker is slow on "
            "purpose, pushes, and is applied when its turn comes; blank is idle. In mode sync the push is the all-reduce, in "
            "which the quick wait for the slow. Gradients that were dropped are not in the picture. A mode with several arms "
            "is shown by its first."
        )
        yield Plot(f"timeline-{_file_part(straggler)}", f"Who did what, {straggler_words(straggler)}", caption, figure)


def _file_part(text: str) -> str:
    return "".join(letter if letter.isalnum() else "-" for letter in text).strip("-")


def _curves(views: Sequence[View], look: dict[str, Look], x_of: Callable[[ScoreInTime], float], x_label: str) -> Figure:
    """Return a figure with a row of panels for each kind of equal batch and a column for each straggler."""
    batches = list(dict.fromkeys(view.batch for view in views))
    columns = list(dict.fromkeys(view.straggler for view in views))
    crosses = [_first_crosses(view.groups, x_of) for view in views]
    figure, panels = grid(len(batches), len(columns), 3.0 + _ROW_IN * max(map(len, crosses)))
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
        panel.set(xlabel=x_label, ylabel=metric.axis)
        panel.set_title(f"{straggler_words(view.straggler)}\n{view.batch}", loc="left")
        panel.set_xlim(0, 1.03 * max(x_of(record.scores[-1]) for group in view.groups for record in group.records))
    rows = rows_of_crosses(axes[0], metric)
    for view, marks in zip(views, crosses):
        diverged_marks(panels[batches.index(view.batch)][columns.index(view.straggler)], marks, look, rows)
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


def _scatter(groups: Sequence[Group], look: dict[str, Look]) -> Figure:
    crosses = _crosses_by_staleness(groups)
    figure, [[axes]] = grid(1, 1, 3.4 + _ROW_IN * len(crosses))
    metric = groups[0].metric
    if metric.is_log([height for group in groups for height in group.values(shown)]):
        logarithmic([axes])
    highest = max(record.staleness.mean or 0.0 for group in groups for record in group.records)
    for arm in arms(groups):
        records = (record for group in groups if group.arm == arm for record in group.records)
        points = [
            (mean, height)
            for record in records
            if (mean := record.staleness.mean) is not None and (height := record.shown) is not None
        ]
        if not points:
            continue
        axes.scatter(
            [mean for mean, _ in points], [height for _, height in points],
            color=look[arm].color, marker=look[arm].marker, s=32, alpha=0.85, linewidths=0.5, edgecolors="white", label=arm,
        )  # fmt: skip
    if highest >= _WIDE_RANGE:
        axes.set_xscale("symlog", linthresh=1, linscale=0.5)
        ticks = [0, *(2**power for power in range(int(np.log2(highest)) + 2))]
        axes.set_xticks(ticks, [str(tick) for tick in ticks])
        axes.minorticks_off()
    axes.set(xlabel="mean staleness [versions]", ylabel=f"final {metric.axis}")
    axes.set_xlim(right=max(highest, 0.1) * (1.3 if highest >= _WIDE_RANGE else 1.06))
    diverged_marks(axes, crosses, look, rows_of_crosses(axes, metric))
    legend_outside(figure, [axes])
    return figure


def _crosses_by_staleness(groups: Sequence[Group]) -> dict[str, list[float]]:
    crosses: dict[str, list[float]] = {}
    for group in groups:
        for record in group.records:
            if record.diverged and record.staleness.mean is not None:
                crosses.setdefault(group.arm, []).append(record.staleness.mean)
    return crosses
