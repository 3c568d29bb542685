"""The plots of a comparison. A plot that the runs have no data for is left out."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from ps_cluster.comparison.groups import Group, View, arms, stragglers
from ps_cluster.comparison.records import Record, Score, straggler_factor
from ps_cluster.comparison.style import Look, diverged_marks, grid, legend_outside, looks, plot_style
from ps_cluster.comparison.timeline import timelines
from ps_cluster.comparison.words import straggler_words

DPI = 150
_GRID_POINTS = 200
_MOST_BARS = 20  # values of staleness that still get a bar of their own for each worker
_MOST_PANELS = 8  # of the histograms in one figure
_SEEN = 0.995  # share of the updates that the axis of a histogram reaches to
_ROW = 4.0  # height of a line of crosses for an arm that diverged, in points of accuracy
_ROW_IN = 0.13  # what it adds to the height of a panel
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
    crossed = any(group.diverged for group in groups)
    band = (
        "Lines are means over the seeds, bands reach from the lowest to the highest seed, a marker is where a run ends."
    )
    if crossed:
        band += " A run that diverged is a cross below zero, at its first score without a finite loss, and in no line."
    time = _curves(views, look, lambda score: score.train_seconds, "training time [s]")
    yield Plot("accuracy-over-time", "Accuracy over time", f"Test accuracy over seconds of training. {band}", time)
    work = _curves(views, look, lambda score: score.examples / 1000, "images trained on [thousands]")
    yield Plot("accuracy-over-examples", "Accuracy over examples", f"Test accuracy over equal work. {band}", work)
    if factors := _factors(groups):
        caption = (
            "Images per second, by how many times its own time a step of the slowest worker takes (1: no straggler). "
            "Markers are means over the seeds, bars reach from the lowest to the highest."
        )
        if len({factor for _, factor in factors}) == 2:
            caption += " Filled: no straggler; open: with it, and what is left of the throughput."
        yield Plot("throughput", "Throughput over straggler factor", caption, _throughput(factors, look))
    for number, stale in enumerate(_chunks(_stale(groups)), start=1):
        caption = (
            "How many versions the updates of each worker were behind, as shares of that worker's updates, all seeds "
            f"together, up to the staleness that {_SEEN:.1%} of the updates kept within. Groups without an update that was "
            "behind are left out."
        )
        again = f"-{number}" if number > 1 else ""
        title = f"Staleness of each worker{', continued' if again else ''}"
        yield Plot(f"staleness{again}", title, caption, _histograms(stale))
    if len({record.staleness.mean for group in groups for record in group.records} - {None}) > 1:
        caption = "Final test accuracy over measured mean staleness, a point for each run."
        if crossed:
            caption += " Runs that diverged are crosses below zero."
        yield Plot("accuracy-over-staleness", "Accuracy against staleness", caption, _scatter(groups, look))
    for straggler, figure in timelines(groups):
        caption = (
            f"What each worker did in the same short time in the middle of the first seed's run, {straggler_words(straggler)}. "
            "A step waits until it is admitted, pulls the parameters, computes, is held back where the worker is slow on "
            "purpose, and pushes until its update is applied; blank is idle. In mode sync the push is the all-reduce, in which "
            "the quick wait for the slow. Gradients that were dropped are not in the picture. A mode with several arms is "
            "shown by its first."
        )
        yield Plot(f"timeline-{_file_part(straggler)}", f"Who did what, {straggler_words(straggler)}", caption, figure)


def _file_part(text: str) -> str:
    return "".join(letter if letter.isalnum() else "-" for letter in text).strip("-")


def _curves(views: Sequence[View], look: dict[str, Look], x_of: Callable[[Score], float], x_label: str) -> Figure:
    """A row of panels for each kind of equal batch, a column for each straggler."""
    batches = list(dict.fromkeys(view.batch for view in views))
    columns = list(dict.fromkeys(view.straggler for view in views))
    crosses = [_first_crosses(view.groups, x_of) for view in views]
    figure, panels = grid(len(batches), len(columns), 3.0 + _ROW_IN * max(map(len, crosses)))
    axes = [panel for row in panels for panel in row]
    for panel in axes:
        panel.set_visible(False)
        panel.sharey(axes[0])
    for view, marks in zip(views, crosses):
        panel = panels[batches.index(view.batch)][columns.index(view.straggler)]
        panel.set_visible(True)
        for group in view.groups:
            _curve(panel, group, look[group.arm], x_of)
        panel.set(xlabel=x_label, ylabel="test accuracy [%]")
        panel.set_title(f"{straggler_words(view.straggler)}\n{view.batch}", loc="left")
        panel.set_xlim(0, 1.03 * max(x_of(record.scores[-1]) for group in view.groups for record in group.records))
    for view, marks in zip(views, crosses):
        diverged_marks(panels[batches.index(view.batch)][columns.index(view.straggler)], marks, look, _ROW)
    legend_outside(figure, axes)
    return figure


def _first_crosses(groups: Sequence[Group], x_of: Callable[[Score], float]) -> dict[str, list[float]]:
    """Arm → where each run of it that diverged was first found to have."""
    crosses: dict[str, list[float]] = {}
    for group in groups:
        for record in (record for record in group.records if record.diverged):
            first = next(score for score in record.scores if score.diverged)
            crosses.setdefault(group.arm, []).append(x_of(first))
    return crosses


def _curve(axes: Axes, group: Group, look: Look, x_of: Callable[[Score], float]) -> None:
    label = group.arm if group.arm not in axes.get_legend_handles_labels()[1] else None
    whole = [record for record in group.records if not record.diverged]
    tracks = [[(x_of(score), 100 * score.test_accuracy) for score in record.scores] for record in whole]
    if not tracks:
        return
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
    steps = {factor for _, factor in factors}
    return _throughput_of_two(factors, look) if len(steps) == 2 else _throughput_of_many(factors, look)


def _throughput_of_two(factors: Sequence[tuple[Group, float]], look: dict[str, Look]) -> Figure:
    """A row for each arm and batch, on it a marker for each of the two factors."""
    rows: dict[tuple[str, int], list[tuple[float, Group]]] = {}
    for group, factor in factors:
        rows.setdefault((group.arm, group.batch_per_worker), []).append((factor, group))
    low, high = sorted({factor for _, factor in factors})
    figure, [[axes]] = grid(1, 1, 0.7 + 0.3 * len(rows))
    for place, ((arm, _), found) in enumerate(rows.items()):
        speeds = {factor: [record.examples_per_second for record in group.records] for factor, group in found}
        means = {factor: float(np.mean(values)) for factor, values in speeds.items()}
        axes.plot(list(means.values()), [place] * len(means), color=look[arm].color, linewidth=1.2, alpha=0.5)
        for factor, values in speeds.items():
            face = look[arm].color if factor == low else "white"
            axes.plot([min(values), max(values)], [place] * 2, color=look[arm].color, linewidth=3.5, alpha=0.4)
            axes.plot(means[factor], place, look[arm].marker, color=look[arm].color, markerfacecolor=face, markersize=7)
        if len(means) == 2:
            axes.annotate(
                f"× {means[high] / means[low]:.2f}", (means[high], place), xytext=(0, 6), textcoords="offset points",
                ha="center", fontsize=7, color="#3b444d",
            )  # fmt: skip
    axes.set_yticks(range(len(rows)), [f"{arm}, {batch} images" for arm, batch in rows])
    axes.set(xlabel="throughput [images/s]", ylabel="arm [images per worker]", ylim=(len(rows) - 0.5, -0.7))
    axes.set_xlim(left=0)
    axes.set_title(f"straggler factor {low:g} (filled) and {high:g} (open)", loc="left")
    return figure


def _throughput_of_many(factors: Sequence[tuple[Group, float]], look: dict[str, Look]) -> Figure:
    """A panel for each batch per worker, in it a line for each arm."""
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
    legend_outside(figure, panels)
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


def _chunks(groups: Sequence[Group]) -> Iterator[list[Group]]:
    """The groups by arm and batch, as many as a figure holds; the same arm and batch stay together."""
    by_row: dict[tuple[str, int], list[Group]] = {}
    for group in groups:
        by_row.setdefault((group.arm, group.batch_per_worker), []).append(group)
    chunk: list[Group] = []
    for row in by_row.values():
        if chunk and len(chunk) + len(row) > _MOST_PANELS:
            yield chunk
            chunk = []
        chunk += row
    if chunk:
        yield chunk


def _histograms(groups: Sequence[Group]) -> Figure:
    """A row of panels for each arm and batch, a column for each straggler; two columns of arms where there is one."""
    places = _places(groups)
    rows, columns = (max(place[axis] for place in places) + 1 for axis in (0, 1))
    figure, panels = grid(rows, columns, 1.6)
    look = looks([f"worker {index}" for index in range(max(max(_workers(group)) for group in groups) + 1)])
    axes = [panel for row in panels for panel in row]
    for panel in axes:
        panel.set_visible(False)
    for group, (row, column) in zip(groups, places):
        panels[row][column].set_visible(True)
        _histogram(panels[row][column], group, look)
    legend_outside(figure, axes)
    return figure


def _places(groups: Sequence[Group]) -> list[tuple[int, int]]:
    """The row and the column of each group."""
    kinds = stragglers(groups)
    if len(kinds) == 1:
        return [divmod(index, 2) for index in range(len(groups))]
    rows = list(dict.fromkeys((group.arm, group.batch_per_worker) for group in groups))
    return [(rows.index((group.arm, group.batch_per_worker)), kinds.index(group.straggler)) for group in groups]


def _histogram(axes: Axes, group: Group, look: dict[str, Look]) -> None:
    workers = _workers(group)
    highest = max(_quantile(_pooled(group, worker)) for worker in workers)
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
    title = f"{group.arm}, {group.batch_per_worker} images, {straggler_words(group.straggler)}"
    axes.set_title(title, loc="left", fontsize=8)


def _quantile(counts: Mapping[int, int]) -> int:
    """The smallest staleness that the share `_SEEN` of the updates kept within."""
    values = sorted(counts)
    reached = np.cumsum([counts[value] for value in values]) >= _SEEN * sum(counts.values())
    return values[int(np.argmax(reached))]


def _scatter(groups: Sequence[Group], look: dict[str, Look]) -> Figure:
    crosses = _crosses_by_staleness(groups)
    figure, [[axes]] = grid(1, 1, 3.4 + _ROW_IN * len(crosses))
    highest = max(record.staleness.mean or 0.0 for group in groups for record in group.records)
    for arm in arms(groups):
        runs: list[Record] = [
            record
            for group in groups
            for record in group.records
            if group.arm == arm and record.staleness.mean is not None and not record.diverged
        ]
        if not runs:
            continue
        x = [record.staleness.mean for record in runs]
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
    axes.set_xlim(right=max(highest, 0.1) * (1.3 if highest >= _WIDE_RANGE else 1.06))
    diverged_marks(axes, crosses, look, _ROW)
    legend_outside(figure, [axes])
    return figure


def _crosses_by_staleness(groups: Sequence[Group]) -> dict[str, list[float]]:
    crosses: dict[str, list[float]] = {}
    for group in groups:
        for record in group.records:
            if record.diverged and record.staleness.mean is not None:
                crosses.setdefault(group.arm, []).append(record.staleness.mean)
    return crosses
