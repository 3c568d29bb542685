"""How every plot looks: a palette that colour-blind people can tell apart, and a line style and marker besides."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import cycle

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure

# Okabe and Ito, "Color Universal Design", 2008; their yellow comes last, as it is faint on white.
PALETTE = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#F0E442")
LINES = ("-", "--", "-.", ":", (0, (5, 1, 1, 1, 1, 1)))
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*")
WIDTH_IN = 9.0
_RC = {
    "font.family": "sans-serif", "font.size": 9, "axes.titlesize": 9, "axes.spines.top": False,
    "axes.spines.right": False, "axes.grid": True, "grid.color": "#e3e6ea", "grid.linewidth": 0.6, "axes.axisbelow": True,
    "axes.edgecolor": "#5b6570", "legend.frameon": False, "figure.facecolor": "white", "savefig.facecolor": "white",
    "svg.hashsalt": "ps_cluster", "text.parse_math": False,
}  # fmt: skip


@dataclass(frozen=True)
class Look:
    """What belongs to one arm in every plot."""

    color: str
    line: str | tuple
    marker: str


def looks(arms: Sequence[str]) -> dict[str, Look]:
    return {arm: Look(*parts) for arm, parts in zip(arms, zip(cycle(PALETTE), cycle(LINES), cycle(MARKERS)))}


@contextmanager
def plot_style() -> Iterator[None]:
    with matplotlib.rc_context(_RC):
        yield


def grid(rows: int, columns: int, height_in: float) -> tuple[Figure, list[list[Axes]]]:
    """A figure of panels, each of them `height_in` high."""
    figure = Figure(figsize=(WIDTH_IN, 0.6 + rows * height_in), layout="constrained")
    return figure, figure.subplots(rows, columns, squeeze=False).tolist()


def legend_above(figure: Figure, axes: Sequence[Axes]) -> None:
    """One legend for all panels, each label once."""
    found = {}
    for panel in axes:
        for handle, label in zip(*panel.get_legend_handles_labels()):
            found.setdefault(label, handle)
    figure.legend(found.values(), found.keys(), loc="outside upper left", ncols=min(5, len(found)), handlelength=3.2)
