"""Plot the throughput of each arm against the slowdown of the slowest worker."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from matplotlib.figure import Figure

from ps_cluster.comparison.groups import Group, arms
from ps_cluster.comparison.run_records import straggler_factor
from ps_cluster.reporting.plot_style import Look, grid, legend_outside


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
