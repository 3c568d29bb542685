"""Draw and save the plots of all pages. Curves differ in colour (also for colour-blind readers), line and marker."""

from __future__ import annotations

import base64
import io
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from itertools import cycle
from typing import Any, Literal

import matplotlib
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullLocator

from ps_cluster.report.colours import PALETTE

DPI = 150


@dataclass(frozen=True)
class Plot:
    """A drawn figure with its title and caption."""

    name: str  # the name of its files, without the ending
    title: str
    caption: str
    figure: Figure

    @cached_property
    def png(self) -> bytes:
        return self._saved("png")

    @cached_property
    def svg(self) -> bytes:
        return self._saved("svg")

    @property
    def data_uri(self) -> str:
        """The picture as the source of an <img>, so that a page needs no other file."""
        return f"data:image/svg+xml;base64,{base64.b64encode(self.svg).decode()}"

    def _saved(self, kind: str) -> bytes:
        content = io.BytesIO()
        metadata = {"Date": None} if kind == "svg" else {"Software": None}
        with plot_style():
            self.figure.savefig(content, format=kind, dpi=DPI, metadata=metadata)
        return content.getvalue()


# The numbers of colours, lines and markers have no common divisor. So 35 arms differ in colour or line, and more arms
# differ in their marker.
Line = str | tuple[int, tuple[int, ...]]  # as matplotlib takes it: a name, or an offset and lengths of dashes and gaps
LINES: tuple[Line, ...] = ("-", "--", "-.", ":", (0, (5, 1, 1, 1, 1, 1)))
MARKERS = ("o", "s", "^", "D", "v", "P", "p", "<")  # no cross, because a cross marks a run that diverged
WIDTH_IN = 9.0
NARROW_IN, HEIGHT_IN = 4.6, 2.6  # width and height of each of two figures side by side
_HANDLE_IN, _LETTER_IN = 0.75, 0.078  # widths in a legend: of a line with the space around it, and of a letter
_RC: dict[Any, Any] = {
    "font.family": "sans-serif", "font.size": 9, "axes.titlesize": 9, "axes.spines.top": False,
    "axes.spines.right": False, "axes.grid": True, "grid.color": "#e3e6ea", "grid.linewidth": 0.6, "axes.axisbelow": True,
    "axes.edgecolor": "#5b6570", "legend.frameon": False, "figure.facecolor": "white", "savefig.facecolor": "white",
    "svg.hashsalt": "ps_cluster", "text.parse_math": False,
}  # fmt: skip


@dataclass(frozen=True)
class LineStyle:
    """The colour, the line style and the marker of one arm of a comparison, e.g. of one mode.

    They are the same in every plot.
    """

    color: str
    line: Line
    marker: str


def line_styles(arms: Sequence[str]) -> dict[str, LineStyle]:
    """Return the line style of each arm, by the arm's name."""
    parts = zip(cycle(PALETTE), cycle(LINES), cycle(MARKERS))
    return {arm: LineStyle(color, line, marker) for arm, (color, line, marker) in zip(arms, parts)}


@contextmanager
def plot_style() -> Iterator[None]:
    with matplotlib.rc_context(_RC):
        yield


def grid(
    rows: int, columns: int, height_in: float, kind: type[Figure] = Figure, width_in: float = WIDTH_IN
) -> tuple[Figure, list[list[Axes]]]:
    """Return a figure and its panels, each `height_in` inches high.

    `width_in`: the width of the whole figure, in inches.
    """
    figure = kind(figsize=(width_in, 0.6 + rows * height_in), layout="constrained")
    return figure, figure.subplots(rows, columns, squeeze=False).tolist()


def small_plot(name: str, title: str, caption: str, draw: Callable[[Axes], None]) -> Plot:
    """Return a plot of one panel, for a page that shows two plots side by side.

    `draw`: a function that draws into the panel.
    """
    with plot_style():
        figure, [[axes]] = grid(1, 1, HEIGHT_IN, width_in=NARROW_IN)
        draw(axes)
        legend_outside(figure, [axes])
    return Plot(name, title, caption, figure)


def legend_outside(figure: Figure, axes: Sequence[Axes]) -> None:
    """Add one legend for all panels, with each label once: above the panels if it fits into one line, else below."""
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
    """Make the vertical axes of the panels logarithmic, with plain numbers at the ticks."""
    for panel in axes:
        panel.set_yscale("log")
        panel.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        panel.yaxis.set_major_formatter(FuncFormatter(lambda height, _: f"{height:g}"))
        panel.yaxis.set_minor_locator(NullLocator())


def plain_ticks(panel: Axes) -> None:
    """Give the horizontal axis few ticks with short numbers, so that these do not overlap."""
    panel.xaxis.set_major_locator(MaxNLocator(5))
    panel.xaxis.set_major_formatter(FuncFormatter(lambda place, _: _short_number(place)))


def _short_number(value: float) -> str:
    """Return a number in a few characters: 950, 40 k, 1.25 M."""
    for unit, name in ((1e9, " G"), (1e6, " M"), (1e4, " k")):
        if abs(value) >= unit:
            return f"{value / (1e3 if name == ' k' else unit):g}{name}"
    return f"{value:g}"
