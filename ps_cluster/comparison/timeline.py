"""Plot what each worker did in a short time in the middle of a run: wait, pull, compute, be held back, push."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from ps_cluster.catalogue.modes import MODES, Waits
from ps_cluster.comparison.groups import Group, stragglers
from ps_cluster.reporting.plot_style import WIDTH_IN, legend_outside
from ps_cluster.run.phases import PHASES, phase_times

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
