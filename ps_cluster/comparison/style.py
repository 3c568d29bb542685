"""Style of all plots: a palette for colour-blind readers, with a line style and a marker beside each colour."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import cycle
from typing import Any, Literal

import matplotlib
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

from ps_cluster.comparison.metrics import Metric

# Okabe and Ito, "Color Universal Design", 2008, without their yellow, which is faint on white. The numbers of colours,
# lines and markers share no divisor, so 35 arms differ in colour or line, and more arms in their marker.
PALETTE = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
Line = str | tuple[int, tuple[int, ...]]  # as matplotlib takes it: a name, or an offset and lengths of dashes and gaps
LINES: tuple[Line, ...] = ("-", "--", "-.", ":", (0, (5, 1, 1, 1, 1, 1)))
MARKERS = ("o", "s", "^", "D", "v", "P", "p", "<")  # no cross: it marks a run that diverged
WIDTH_IN = 9.0
_HANDLE_IN, _LETTER_IN = 0.75, 0.078  # legend: width of a line with the space around it, and of one letter
_ROW = 4.0  # height of a row of crosses below zero, in points of accuracy
_ROW_SHARE = 0.055  # the same above all curves, as a share of their heights
_RC: dict[Any, Any] = {
    "font.family": "sans-serif", "font.size": 9, "axes.titlesize": 9, "axes.spines.top": False,
    "axes.spines.right": False, "axes.grid": True, "grid.color": "#e3e6ea", "grid.linewidth": 0.6, "axes.axisbelow": True,
    "axes.edgecolor": "#5b6570", "legend.frameon": False, "figure.facecolor": "white", "savefig.facecolor": "white",
    "svg.hashsalt": "ps_cluster", "text.parse_math": False,
}  # fmt: skip


@dataclass(frozen=True)
class Look:
    """The look of one arm in every plot."""

    color: str
    line: Line
    marker: str


def looks(arms: Sequence[str]) -> dict[str, Look]:
    parts = zip(cycle(PALETTE), cycle(LINES), cycle(MARKERS))
    return {arm: Look(color, line, marker) for arm, (color, line, marker) in zip(arms, parts)}


@contextmanager
def plot_style() -> Iterator[None]:
    with matplotlib.rc_context(_RC):
        yield


def grid(rows: int, columns: int, height_in: float, kind: type[Figure] = Figure) -> tuple[Figure, list[list[Axes]]]:
    """Return a figure of panels, each `height_in` inches high."""
    figure = kind(figsize=(WIDTH_IN, 0.6 + rows * height_in), layout="constrained")
    return figure, figure.subplots(rows, columns, squeeze=False).tolist()


def legend_outside(figure: Figure, axes: Sequence[Axes]) -> None:
    """Add one legend for all panels, each label once: above them if it fits into one line, else below."""
    found: dict[str, Artist] = {}
    for panel in axes:
        for handle, label in zip(*panel.get_legend_handles_labels()):
            found.setdefault(label, handle)
    if not found:
        return
    widths = [_HANDLE_IN + _LETTER_IN * len(label) for label in found]
    fits = sum(widths) <= WIDTH_IN
    columns = len(found) if fits else max(1, int(WIDTH_IN / max(widths)))
    place: Literal["outside upper left", "outside lower left"] = "outside upper left" if fits else "outside lower left"
    figure.legend(found.values(), found.keys(), loc=place, ncols=columns, handlelength=3.2)


def logarithmic(axes: Sequence[Axes]) -> None:
    """Make the heights of the panels logarithmic, with plain numbers at the ticks."""
    for panel in axes:
        panel.set_yscale("log")
        panel.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        panel.yaxis.set_major_formatter(FuncFormatter(lambda height, _: f"{height:g}"))
        panel.yaxis.set_minor_locator(NullLocator())


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
