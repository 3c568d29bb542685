"""Style of all plots: a palette for colour-blind readers, with a line style and a marker beside each colour."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import cycle
from typing import Any, Literal

import matplotlib
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

# Okabe and Ito, "Color Universal Design", 2008, without their yellow, which is faint on white. The numbers of colours,
# lines and markers share no divisor, so 35 arms differ in colour or line, and more arms in their marker.
PALETTE = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
Line = str | tuple[int, tuple[int, ...]]  # as matplotlib takes it: a name, or an offset and lengths of dashes and gaps
LINES: tuple[Line, ...] = ("-", "--", "-.", ":", (0, (5, 1, 1, 1, 1, 1)))
MARKERS = ("o", "s", "^", "D", "v", "P", "p", "<")  # no cross: it marks a run that diverged
WIDTH_IN = 9.0
_HANDLE_IN, _LETTER_IN = 0.75, 0.078  # legend: width of a line with the space around it, and of one letter
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


def grid(
    rows: int, columns: int, height_in: float, kind: type[Figure] = Figure, width_in: float = WIDTH_IN
) -> tuple[Figure, list[list[Axes]]]:
    """Return a figure of panels, each `height_in` inches high. `width_in`: of the whole figure."""
    figure = kind(figsize=(width_in, 0.6 + rows * height_in), layout="constrained")
    return figure, figure.subplots(rows, columns, squeeze=False).tolist()


def legend_outside(figure: Figure, axes: Sequence[Axes]) -> None:
    """Add one legend for all panels, each label once: above them if it fits into one line, else below."""
    found: dict[str, Artist] = {}
    for panel in axes:
        for handle, label in zip(*panel.get_legend_handles_labels()):
            found.setdefault(label, handle)
    if not found:
        return
    widths, room = [_HANDLE_IN + _LETTER_IN * len(label) for label in found], figure.get_figwidth()
    fits = sum(widths) <= room
    columns = len(found) if fits else max(1, int(room / max(widths)))
    place: Literal["outside upper left", "outside lower left"] = "outside upper left" if fits else "outside lower left"
    figure.legend(found.values(), found.keys(), loc=place, ncols=columns, handlelength=3.2)


def logarithmic(axes: Sequence[Axes]) -> None:
    """Make the heights of the panels logarithmic, with plain numbers at the ticks."""
    for panel in axes:
        panel.set_yscale("log")
        panel.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        panel.yaxis.set_major_formatter(FuncFormatter(lambda height, _: f"{height:g}"))
        panel.yaxis.set_minor_locator(NullLocator())
