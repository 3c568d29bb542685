"""Mark runs that diverged by crosses, in rows beyond the heights that other runs can have."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from matplotlib.axes import Axes

from ps_cluster.comparison.metrics import Metric
from ps_cluster.reporting.plot_style import Look

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
