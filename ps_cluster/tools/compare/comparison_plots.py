"""Draw the metric of each arm over time and over examples."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from ps_cluster.report.plots import LineStyle, Plot, grid, legend_outside, line_styles, logarithmic, plot_style
from ps_cluster.tools.compare.groups import NO_STRAGGLER, Group, View, arms
from ps_cluster.tools.compare.records import ScoreInTime

_GRID_POINTS = 200
_ROW_IN = 0.13  # inches above a panel for each arm with a run that diverged
_PANEL_IN = 3.0


def make_plots(groups: Sequence[Group], views: Sequence[View]) -> list[Plot]:
    """Return the plots of the metric over training time and over examples."""
    styles, metric, unit = line_styles(arms(groups)), groups[0].metric, groups[0].unit
    name, noun = metric.name.capitalize(), metric.noun
    band = (
        "Lines are means over the seeds. At each point, a band reaches from the lowest to the highest score of the seeds. "
        "Markers show the last score of each run."
    )
    if any(group.diverged for group in groups):
        band += (
            " A run that diverged is left out of the means and has a cross above the panel, at its first score without a "
            "finite loss."
        )
    with plot_style():
        time = _curves(views, styles, lambda score: score.train_seconds, "training time [s]")
        work = _curves(views, styles, lambda score: score.examples / 1000, f"{unit} trained on [thousands]")
    return [
        Plot(f"{noun}-over-time", f"{noun.capitalize()} over time", f"{name} over seconds of training. {band}", time),
        Plot(
            f"{noun}-over-examples",
            f"{noun.capitalize()} over examples",
            f"{name} over {unit} trained on. {band}",
            work,
        ),
    ]


def _curves(
    views: Sequence[View], styles: dict[str, LineStyle], x_of: Callable[[ScoreInTime], float], x_label: str
) -> Figure:
    """Return a figure with a row of panels for each batch (`View.batch`), and a column for each `View.straggler`."""
    batches = list(dict.fromkeys(view.batch for view in views))
    columns = list(dict.fromkeys(view.straggler for view in views))
    crosses = [_first_crosses(view.groups, x_of) for view in views]
    figure, panels = grid(len(batches), len(columns), _PANEL_IN + _ROW_IN * max(map(len, crosses)))
    axes, metric = [panel for row in panels for panel in row], views[0].groups[0].metric
    for panel in axes:
        panel.set_visible(False)
        panel.sharey(axes[0])
    records = [record for view in views for group in view.groups for record in group.records if not record.diverged]
    if metric.is_log([metric.scale * value for record in records for _, value in record.track]):
        logarithmic(axes)
    for view, marks in zip(views, crosses):
        panel = panels[batches.index(view.batch)][columns.index(view.straggler)]
        panel.set_visible(True)
        for group in view.groups:
            _curve(panel, group, styles[group.arm], x_of)
        for place, (arm, x) in enumerate(marks.items()):
            panel.plot(
                x, [1 + (place + 0.6) * _ROW_IN / _PANEL_IN] * len(x), "x", color=styles[arm].color, markersize=5,
                markeredgewidth=1.4, transform=panel.get_xaxis_transform(), clip_on=False, label=f"{arm}: diverged",
            )  # fmt: skip
        straggler = "no straggler" if view.straggler == NO_STRAGGLER else f"straggler {view.straggler}"
        panel.set(xlabel=x_label, ylabel=metric.axis)
        panel.set_title(f"{straggler}\n{view.batch}", loc="left", pad=6 + 72 * _ROW_IN * len(marks))
        panel.set_xlim(0, 1.03 * max(x_of(record.scores[-1]) for group in view.groups for record in group.records))
    legend_outside(figure, axes)
    return figure


def _first_crosses(groups: Sequence[Group], x_of: Callable[[ScoreInTime], float]) -> dict[str, list[float]]:
    """Return arm → the x values of its crosses. A cross marks the first diverged score of a run that diverged."""
    crosses: dict[str, list[float]] = {}
    for group in groups:
        for record in (record for record in group.records if record.diverged):
            first = next(score for score in record.scores if score.diverged)
            crosses.setdefault(group.arm, []).append(x_of(first))
    return crosses


def _curve(axes: Axes, group: Group, style: LineStyle, x_of: Callable[[ScoreInTime], float]) -> None:
    label = group.arm if group.arm not in axes.get_legend_handles_labels()[1] else None
    not_diverged = [record for record in group.records if not record.diverged]
    tracks = [[(x_of(score), group.metric.scale * value) for score, value in record.track] for record in not_diverged]
    if not tracks:
        return
    start, end = max(track[0][0] for track in tracks), min(track[-1][0] for track in tracks)
    if end > start:
        x = np.linspace(start, end, _GRID_POINTS)
        y = np.array([np.interp(x, [at for at, _ in track], [height for _, height in track]) for track in tracks])
        axes.plot(x, y.mean(axis=0), color=style.color, linestyle=style.line, linewidth=1.6)
        if len(tracks) > 1:
            axes.fill_between(x, y.min(axis=0), y.max(axis=0), color=style.color, alpha=0.15, linewidth=0)
    for track in tracks:
        # This line has a single point. It draws the marker, and makes the entry in the legend.
        axes.plot(
            *track[-1], color=style.color, marker=style.marker, markersize=4.5, linestyle=style.line, linewidth=1.6,
            markeredgecolor="white", markeredgewidth=0.5, label=label,
        )  # fmt: skip
        label = None
