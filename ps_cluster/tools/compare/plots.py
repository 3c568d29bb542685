"""Mark runs that diverged by crosses, in rows beyond the heights that other runs can have."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from ps_cluster.config.modes import MODES, Waits
from ps_cluster.report.pages import WIDTH_IN, Look, Plot, grid, legend_outside, logarithmic, looks, plot_style
from ps_cluster.runs.logs import PHASES, phase_times
from ps_cluster.tools.compare.groups import Group, View, arms, stragglers
from ps_cluster.tools.compare.metrics import Metric
from ps_cluster.tools.compare.records import ScoreInTime, straggler_factor
from ps_cluster.tools.compare.sentences import shown, straggler_words

_ROW = 4.0  # height of a row of crosses below zero, in points of accuracy
_ROW_SHARE = 0.055  # the same above all curves, as a share of their heights


@dataclass(frozen=True)
class Rows:
    """The rows of crosses for arms that diverged, beyond an edge of the heights that other runs can have.

    Attributes:
      edge: the height of the edge.
      step: from row to row; a factor if `is_log`.
      ticks: the lowest and the highest height that get a tick.
    """

    edge: float
    step: float
    is_log: bool
    ticks: tuple[float, float]

    def height(self, place: float) -> float:
        """Return the height of a row; the first has the place 1."""
        return self.edge * self.step**place if self.is_log else self.edge + self.step * place


def rows_of_crosses(axes: Axes, metric: Metric) -> Rows:
    """Return the rows in a panel that has its curves: below zero, or above them all."""
    if metric.diverged_below:
        return Rows(0.0, -_ROW, False, (0.0, 100.0))
    low, high = axes.get_ylim()
    if axes.get_yscale() == "log":
        return Rows(high, (high / low) ** _ROW_SHARE, True, (low, high))
    return Rows(high, _ROW_SHARE * (high - low), False, (low, high))


def diverged_marks(axes: Axes, marks: Mapping[str, Sequence[float]], look: Mapping[str, Look], rows: Rows) -> None:
    """Draw a row per arm, with a cross at each x where one of its runs diverged."""
    if not marks:
        return
    axes.axhline(rows.edge, color="#5b6570", linewidth=0.8)
    for place, (arm, x) in enumerate(marks.items(), start=1):
        y = rows.height(place)
        axes.plot(x, [y] * len(x), marker="x", markersize=5, markeredgewidth=1.4, linestyle="", color=look[arm].color)
        first, last = (_across(axes, choose(x), y) for choose in (min, max))
        end, offset, side = (min(x), -7, "right") if first > 0.45 else (max(x) if last < 0.45 else min(x), 7, "left")
        axes.annotate(
            f"{arm}: diverged", (end, y), xytext=(offset, 0), textcoords="offset points",
            ha=side, va="center", fontsize=7, color="#3b444d",
        )  # fmt: skip
    limit, (low, high) = rows.height(len(marks) + 0.8), rows.ticks
    bottom, top = (limit, None) if limit < rows.edge else (None, limit)
    axes.set_ylim(bottom=bottom, top=top)
    axes.set_yticks([tick for tick in axes.get_yticks() if low <= tick <= high])


def _across(axes: Axes, x: float, y: float) -> float:
    """Return the position of x as a share of the panel's width."""
    return float(axes.transAxes.inverted().transform(axes.transData.transform((x, y)))[0])


# Draw the plots of a comparison. A plot without data is left out.

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


# Plot staleness histograms: how many versions behind each worker's updates were.

SEEN = 0.995  # share of the updates that a histogram's axis covers
_MOST_BARS = 20  # staleness values up to which each worker gets a bar for every value
_MOST_PANELS = 8  # per figure


def histograms(groups: Sequence[Group]) -> Iterator[Figure]:
    """Yield figures for the groups that have a stale update; none where there is no such group."""
    return map(_figure, _chunks(_stale(groups)))


def _stale(groups: Sequence[Group]) -> list[Group]:
    return [group for group in groups if any(_pooled(group, worker).keys() - {0} for worker in _workers(group))]


def _workers(group: Group) -> list[int]:
    return sorted({worker for record in group.records for worker in record.staleness_per_worker})


def _pooled(group: Group, worker: int) -> dict[int, int]:
    """Return staleness → number of updates of one worker, over all runs of the group."""
    pooled: dict[int, int] = {}
    for record in group.records:
        for value, count in record.staleness_per_worker.get(worker, {}).items():
            pooled[value] = pooled.get(value, 0) + count
    return pooled


def _chunks(groups: Sequence[Group]) -> Iterator[list[Group]]:
    """Yield the groups by arm and batch, as many as fit into a figure; the same arm and batch stay together."""
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


def _figure(groups: Sequence[Group]) -> Figure:
    """Return a figure: a row per arm and batch, a column per straggler; with one straggler two columns of arms."""
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
    """Return the row and the column of each group."""
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
        share = 100 * np.array([pooled.get(value, 0) for value in range(highest + 1)]) / sum(pooled.values())
        name = f"worker {worker}"
        if highest <= _MOST_BARS:
            width = 0.84 / len(workers)
            left = values - 0.42 + (place + 0.5) * width
            axes.bar(left, share, width=width, color=look[name].color, label=name)
        else:
            edges = np.arange(highest + 2) - 0.5
            axes.stairs(share, edges, color=look[name].color, linestyle=look[name].line, linewidth=1.4, label=name)
    axes.set(xlabel="staleness [versions]", ylabel="updates [%]")
    axes.xaxis.get_major_locator().set_params(integer=True)  # type: ignore[call-arg]  # a MaxNLocator's
    title = f"{group.arm}, {group.batch_per_worker} {group.unit}, {straggler_words(group.straggler)}"
    axes.set_title(title, loc="left", fontsize=8)


def _quantile(counts: Mapping[int, int]) -> int:
    """Return the smallest staleness that covers the share `SEEN` of the updates."""
    values = sorted(counts)
    reached = np.cumsum([counts[value] for value in values]) >= SEEN * sum(counts.values())
    return values[int(np.argmax(reached))]


# Plot the throughput of each arm against the slowdown of the slowest worker.


def straggler_factors(groups: Sequence[Group]) -> list[tuple[Group, float]]:
    """Return the groups with a plain straggler factor; empty where all have the same."""
    found = [(group, factor) for group in groups if (factor := straggler_factor(group.straggler)) is not None]
    return found if len({factor for _, factor in found}) > 1 else []


def throughput(factors: Sequence[tuple[Group, float]], look: dict[str, Look]) -> Figure:
    steps = {factor for _, factor in factors}
    return _of_two(factors, look) if len(steps) == 2 else _of_many(factors, look)


def _of_two(factors: Sequence[tuple[Group, float]], look: dict[str, Look]) -> Figure:
    """Draw a row per arm and batch with a marker for each group, the lower of the two factors first."""
    rows: dict[tuple[str, int], list[tuple[float, Group]]] = {}
    for group, factor in sorted(factors, key=lambda pair: pair[1]):
        rows.setdefault((group.arm, group.batch_per_worker), []).append((factor, group))
    low, high = sorted({factor for _, factor in factors})
    unit = factors[0][0].unit
    figure, [[axes]] = grid(1, 1, 0.7 + 0.3 * len(rows))
    for place, ((arm, _), found) in enumerate(rows.items()):
        speeds = [_speeds(group) for _, group in found]
        means = [float(np.mean(values)) for values in speeds]
        axes.plot(means, [place] * len(means), color=look[arm].color, linewidth=1.2, alpha=0.5)
        for (factor, _), values, mean in zip(found, speeds, means):
            face = look[arm].color if factor == low else "white"
            axes.plot([min(values), max(values)], [place] * 2, color=look[arm].color, linewidth=3.5, alpha=0.4)
            axes.plot(mean, place, look[arm].marker, color=look[arm].color, markerfacecolor=face, markersize=7)
            if factor == high and found[0][0] == low:
                axes.annotate(
                    f"× {mean / means[0]:.2f}", (mean, place), xytext=(0, 6), textcoords="offset points",
                    ha="center", fontsize=7, color="#3b444d",
                )  # fmt: skip
    axes.set_yticks(range(len(rows)), [f"{arm}, {batch} {unit}" for arm, batch in rows])
    axes.set(xlabel=f"throughput [{unit}/s]", ylabel=f"arm [{unit} per worker]", ylim=(len(rows) - 0.5, -0.7))
    axes.set_xlim(left=0)
    axes.set_title(f"straggler factor {low:g} (filled) and {high:g} (open)", loc="left")
    return figure


def _of_many(factors: Sequence[tuple[Group, float]], look: dict[str, Look]) -> Figure:
    """Draw a panel per batch per worker with a line for each arm."""
    batches = sorted({group.batch_per_worker for group, _ in factors})
    figure, [panels] = grid(1, len(batches), 3.0)
    unit = factors[0][0].unit
    for panel, batch in zip(panels, batches):
        panel.sharey(panels[0])
        for arm in arms([group for group, _ in factors if group.batch_per_worker == batch]):
            mine = sorted(_only(factors, arm, batch), key=lambda pair: pair[1])
            speeds = [_speeds(group) for group, _ in mine]
            means = np.array([np.mean(values) for values in speeds])
            reach = [means - [min(values) for values in speeds], [max(values) for values in speeds] - means]
            spread = np.maximum(reach, 0)  # the mean of equal numbers may be off by rounding
            panel.errorbar(
                [factor for _, factor in mine], means, yerr=spread, capsize=3, label=arm,
                color=look[arm].color, linestyle=look[arm].line, marker=look[arm].marker,
            )  # fmt: skip
        panel.set(xlabel="straggler factor [times its own step time]", ylabel=f"throughput [{unit}/s]")
        panel.set_title(f"{batch} {unit} per worker", loc="left")
        panel.set_ylim(bottom=0)
        panel.set_xticks(sorted({factor for _, factor in factors}))
    legend_outside(figure, panels)
    return figure


def _speeds(group: Group) -> list[float]:
    return [record.examples_per_second for record in group.records]


def _only(factors: Sequence[tuple[Group, float]], arm: str, batch: int) -> list[tuple[Group, float]]:
    return [(group, factor) for group, factor in factors if (group.arm, group.batch_per_worker) == (arm, batch)]


# Plot what each worker did in a short time in the middle of a run: wait, pull, compute, be held back, push.

# A colour for each of PHASES, and a hatch for readers who don't see the colours.
_LOOKS = (("#c3c9d0", "////"), ("#56B4E9", ""), ("#0072B2", ""), ("#E69F00", "...."), ("#D55E00", ""), ("#009E73", ""))
_STEPS = 7


def timelines(groups: Sequence[Group]) -> Iterator[tuple[str, Figure]]:
    """Yield a figure per straggler: a panel for each kind of mode (its first arm and batch), all as long."""
    for straggler in stragglers(groups):
        chosen: dict[tuple[object, ...], Group] = {}
        for group in groups:
            if group.straggler == straggler and len(group.first.ledger):
                chosen.setdefault(_kind(group), group)
        if chosen:
            yield straggler, _timeline(list(chosen.values()))


def _kind(group: Group) -> tuple[object, ...]:
    """Return what decides who waits for whom: neither the optimizer nor the staleness method."""
    mode = group.first.config.mode
    return (mode.name,) if MODES[mode.name].waits is Waits.FOR_NOBODY else tuple(mode.model_dump().items())


def _timeline(groups: Sequence[Group]) -> Figure:
    """Draw the panels. They share one time axis, labelled under the last panel."""
    heights = [0.45 + 0.2 * len(np.unique(group.first.ledger["worker"])) for group in groups]
    figure = Figure(figsize=(WIDTH_IN, 0.8 + sum(heights)), layout="constrained")
    column = figure.subplots(len(groups), 1, squeeze=False, sharex=True, height_ratios=heights)
    panels = [panel for [panel] in column.tolist()]
    seconds = _STEPS * float(np.median([_step_seconds(group.first.ledger) for group in groups]))
    for panel, group in zip(panels, groups):
        _draw(panel, group.first.ledger, seconds)
        panel.set_title(f"{group.arm}, {group.batch_per_worker} {group.unit} per worker", loc="left")
    panels[-1].set_xlabel("time [ms]")
    legend_outside(figure, panels)
    return figure


def _step_seconds(ledger: np.ndarray) -> float:
    """Return the quickest worker's median seconds from one update to its next."""
    applied = [np.sort(ledger["applied_time"][ledger["worker"] == worker]) for worker in np.unique(ledger["worker"])]
    gaps = [float(np.median(np.diff(times))) for times in applied if len(times) > 1]
    return min(gaps, default=float(np.ptp(ledger["applied_time"])))


def _draw(axes: Axes, ledger: np.ndarray, seconds: float) -> None:
    edges = phase_times(ledger)
    middle = (edges.min() + edges.max()) / 2
    start, end = middle - seconds / 2, middle + seconds / 2
    inside = (edges[-1] > start) & (edges[0] < end)
    clipped = 1000 * (np.clip(edges[:, inside], start, end) - start)
    workers = np.unique(ledger["worker"])
    rows = np.searchsorted(workers, ledger["worker"][inside])
    for phase, (name, (color, hatch)) in enumerate(zip(PHASES, _LOOKS, strict=True)):
        left, right = clipped[phase], clipped[phase + 1]
        axes.barh(
            rows,
            right - left,
            left=left,
            height=0.7,
            color=color,
            hatch=hatch,
            edgecolor="white",
            linewidth=0,
            label=name,
        )
    axes.set_yticks(range(len(workers)), [f"{worker:.0f}" for worker in workers])
    axes.set(ylabel="worker\n[index]", xlim=(0, 1000 * seconds))
    axes.set_ylim(len(workers) - 0.5, -0.5)
    axes.grid(visible=False)
