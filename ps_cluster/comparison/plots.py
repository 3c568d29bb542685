"""The plots of a comparison. A plot that the runs have no data for is left out."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from ps_cluster.comparison.groups import Group, View, arms, stragglers
from ps_cluster.comparison.records import Record, Score, straggler_factor
from ps_cluster.comparison.style import Look, grid, legend_above, looks, plot_style
from ps_cluster.comparison.timeline import timelines
from ps_cluster.comparison.words import straggler_words

DPI = 150
_GRID_POINTS = 200
_MOST_BARS = 20  # values of staleness that still get a bar of their own for each worker
_WIDE_RANGE = 8.0  # from this highest mean staleness on its axis is logarithmic


@dataclass(frozen=True)
class Plot:
    name: str  # of its files, without an ending
    title: str
    caption: str
    figure: Figure

    @cached_property
    def png(self) -> bytes:
        return self._saved("png")

    @cached_property
    def svg(self) -> bytes:
        return self._saved("svg")

    def _saved(self, kind: str) -> bytes:
        content = io.BytesIO()
        metadata = {"Date": None} if kind == "svg" else {"Software": None}
        with plot_style():
            self.figure.savefig(content, format=kind, dpi=DPI, metadata=metadata)
        return content.getvalue()


def make_plots(groups: Sequence[Group], views: Sequence[View]) -> list[Plot]:
    with plot_style():
        return list(_plots(groups, views))


def _plots(groups: Sequence[Group], views: Sequence[View]) -> Iterator[Plot]:
    look = looks(arms(groups))
    band = (
        "Lines are means over the seeds, bands reach from the lowest to the highest seed, a marker is where a run ends."
    )
    time = _curves(views, look, lambda score: score.train_seconds, "training time [s]")
    yield Plot("accuracy-over-time", "Accuracy over time", f"Test accuracy over seconds of training. {band}", time)
    work = _curves(views, look, lambda score: score.examples / 1000, "images trained on [thousands]")
    yield Plot("accuracy-over-examples", "Accuracy over examples", f"Test accuracy over equal work. {band}", work)
    if factors := _factors(groups):
        caption = (
            "Images per second over how many times its own time a step of the slowest worker takes (1: no straggler). "
            "Markers are means over the seeds, bars reach from the lowest to the highest."
        )
        yield Plot("throughput", "Throughput over straggler factor", caption, _throughput(factors, look))
    if stale := _stale(groups):
        caption = (
            "How many versions the updates of each worker were behind, as shares of that worker's updates, all seeds "
            "together. Groups without an update that was behind are left out."
        )
        yield Plot("staleness", "Staleness of each worker", caption, _histograms(stale))
    if len({record.staleness.mean for group in groups for record in group.records} - {None}) > 1:
        caption = "Final test accuracy over measured mean staleness, a point for each run."
        yield Plot("accuracy-over-staleness", "Accuracy against staleness", caption, _scatter(groups, look))
    for straggler, figure in timelines(groups):
        caption = (
            f"What each worker did in the same short time in the middle of the first seed's run, {straggler_words(straggler)}. "
            "A step waits until it is admitted, pulls the parameters, computes, is held back where the worker is slow on "
            "purpose, and pushes until its update is applied; blank is idle."
        )
        yield Plot(f"timeline-{_file_part(straggler)}", f"Who did what, {straggler_words(straggler)}", caption, figure)


def _file_part(text: str) -> str:
    return "".join(letter if letter.isalnum() else "-" for letter in text).strip("-")


def _curves(views: Sequence[View], look: dict[str, Look], x_of: Callable[[Score], float], x_label: str) -> Figure:
    """A row of panels for each kind of equal batch, a column for each straggler."""
    batches = list(dict.fromkeys(view.batch for view in views))
    columns = list(dict.fromkeys(view.straggler for view in views))
    figure, panels = grid(len(batches), len(columns), 3.0)
    axes = [panel for row in panels for panel in row]
    for panel in axes:
        panel.set_visible(False)
        panel.sharey(axes[0])
    for view in views:
        panel = panels[batches.index(view.batch)][columns.index(view.straggler)]
        panel.set_visible(True)
        for group in view.groups:
            _curve(panel, group, look[group.arm], x_of)
        panel.set(xlabel=x_label, ylabel="test accuracy [%]")
        panel.set_title(f"{straggler_words(view.straggler)}\n{view.batch}", loc="left")
        panel.set_xlim(left=0)
    legend_above(figure, axes)
    return figure


def _curve(axes: Axes, group: Group, look: Look, x_of: Callable[[Score], float]) -> None:
    label = group.arm if group.arm not in axes.get_legend_handles_labels()[1] else None
    tracks = [[(x_of(score), 100 * score.test_accuracy) for score in record.scores] for record in group.records]
    start, end = max(track[0][0] for track in tracks), min(track[-1][0] for track in tracks)
    if end > start:
        x = np.linspace(start, end, _GRID_POINTS)
        y = np.array([np.interp(x, *zip(*track)) for track in tracks])
        axes.plot(x, y.mean(axis=0), color=look.color, linestyle=look.line, linewidth=1.6)
        if len(tracks) > 1:
            axes.fill_between(x, y.min(axis=0), y.max(axis=0), color=look.color, alpha=0.15, linewidth=0)
    for track in tracks:
        style = {
            "color": look.color,
            "marker": look.marker,
            "markersize": 4.5,
            "linestyle": look.line,
            "linewidth": 1.6,
        }
        # The line is drawn of no length: it is in the legend that the marker needs it.
        axes.plot(*track[-1], markeredgecolor="white", markeredgewidth=0.5, label=label, **style)
        label = None


def _factors(groups: Sequence[Group]) -> list[tuple[Group, float]]:
    """The groups with a plain straggler factor; none where all have the same."""
    found = [(group, factor) for group in groups if (factor := straggler_factor(group.straggler)) is not None]
    return found if len({factor for _, factor in found}) > 1 else []


def _throughput(factors: Sequence[tuple[Group, float]], look: dict[str, Look]) -> Figure:
    """A panel for each batch per worker."""
    batches = sorted({group.batch_per_worker for group, _ in factors})
    figure, [panels] = grid(1, len(batches), 3.0)
    for panel, batch in zip(panels, batches):
        panel.sharey(panels[0])
        for arm in arms([group for group, _ in factors if group.batch_per_worker == batch]):
            mine = sorted((f, g) for g, f in _of(factors, arm, batch))
            speeds = [[record.examples_per_second for record in group.records] for _, group in mine]
            means = np.array([np.mean(values) for values in speeds])
            spread = [means - [min(values) for values in speeds], [max(values) for values in speeds] - means]
            spread = np.maximum(spread, 0)  # a mean of equal numbers may be off by a rounding
            style = {"color": look[arm].color, "linestyle": look[arm].line, "marker": look[arm].marker}
            panel.errorbar([factor for factor, _ in mine], means, yerr=spread, capsize=3, label=arm, **style)
        panel.set(xlabel="straggler factor [times its own step time]", ylabel="throughput [images/s]")
        panel.set_title(f"{batch} images per worker", loc="left")
        panel.set_ylim(bottom=0)
        panel.set_xticks(sorted({factor for _, factor in factors}))
    legend_above(figure, panels)
    return figure


def _of(factors: Sequence[tuple[Group, float]], arm: str, batch: int) -> list[tuple[Group, float]]:
    return [(group, factor) for group, factor in factors if (group.arm, group.batch_per_worker) == (arm, batch)]


def _stale(groups: Sequence[Group]) -> list[Group]:
    return [group for group in groups if any(_pooled(group, worker).keys() - {0} for worker in _workers(group))]


def _workers(group: Group) -> list[int]:
    return sorted({worker for record in group.records for worker in record.staleness_per_worker})


def _pooled(group: Group, worker: int) -> dict[int, int]:
    """Staleness → updates of one worker in all runs of the group."""
    pooled: dict[int, int] = {}
    for record in group.records:
        for value, count in record.staleness_per_worker.get(worker, {}).items():
            pooled[value] = pooled.get(value, 0) + count
    return pooled


def _histograms(groups: Sequence[Group]) -> Figure:
    """A row of panels for each arm and batch, a column for each straggler."""
    rows = list(dict.fromkeys((group.arm, group.batch_per_worker) for group in groups))
    columns = stragglers(groups)
    figure, panels = grid(len(rows), len(columns), 1.9)
    look = looks([f"worker {index}" for index in range(max(max(_workers(group)) for group in groups) + 1)])
    axes = [panel for row in panels for panel in row]
    for panel in axes:
        panel.set_visible(False)
    for group in groups:
        panel = panels[rows.index((group.arm, group.batch_per_worker))][columns.index(group.straggler)]
        panel.set_visible(True)
        _histogram(panel, group, look)
    legend_above(figure, axes)
    return figure


def _histogram(axes: Axes, group: Group, look: dict[str, Look]) -> None:
    workers = _workers(group)
    highest = max(max(_pooled(group, worker)) for worker in workers)
    values = np.arange(highest + 1)
    for place, worker in enumerate(workers):
        pooled = _pooled(group, worker)
        share = 100 * np.array([pooled.get(value, 0) for value in values]) / sum(pooled.values())
        name = f"worker {worker}"
        if highest <= _MOST_BARS:
            width = 0.84 / len(workers)
            left = values - 0.42 + (place + 0.5) * width
            axes.bar(left, share, width=width, color=look[name].color, label=name)
        else:
            edges = np.arange(highest + 2) - 0.5
            axes.stairs(share, edges, color=look[name].color, linestyle=look[name].line, linewidth=1.4, label=name)
    axes.set(xlabel="staleness [versions]", ylabel="updates [%]")
    axes.xaxis.get_major_locator().set_params(integer=True)
    axes.set_title(
        f"{group.arm}, {group.batch_per_worker} images per worker, {straggler_words(group.straggler)}", loc="left"
    )


def _scatter(groups: Sequence[Group], look: dict[str, Look]) -> Figure:
    figure, [[axes]] = grid(1, 1, 3.4)
    highest = 0.0
    for arm in arms(groups):
        runs: list[Record] = [
            record
            for group in groups
            for record in group.records
            if group.arm == arm and record.staleness.mean is not None
        ]
        x = [record.staleness.mean for record in runs]
        highest = max(highest, *x, 0.0)
        axes.scatter(
            x, [100 * record.accuracy for record in runs],
            color=look[arm].color, marker=look[arm].marker, s=32, alpha=0.85, linewidths=0.5, edgecolors="white", label=arm,
        )  # fmt: skip
    if highest >= _WIDE_RANGE:
        axes.set_xscale("symlog", linthresh=1, linscale=0.5)
        ticks = [0, *(2**power for power in range(int(np.log2(highest)) + 2))]
        axes.set_xticks(ticks, [str(tick) for tick in ticks])
        axes.minorticks_off()
    axes.set(xlabel="mean staleness [versions]", ylabel="final test accuracy [%]")
    legend_above(figure, [axes])
    return figure
