"""Plot staleness histograms: how many versions behind each worker's updates were."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from ps_cluster.comparison.groups import Group, stragglers
from ps_cluster.comparison.phrases import straggler_words
from ps_cluster.reporting.plot_style import Look, grid, legend_outside, looks

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
