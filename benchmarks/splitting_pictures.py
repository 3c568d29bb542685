"""Draw the pictures of docs/splitting.md: `python -m benchmarks.splitting_pictures docs/images`."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from ps_cluster.files.writing import write_whole
from ps_cluster.report.pages import PALETTE, WIDTH_IN, Plot, plot_style

WORKERS = 3
_GREY = "#5b6570"


def _box(panel: Axes, x: float, y: float, text: str, color: str = _GREY) -> None:
    style = {"boxstyle": "round,pad=0.35", "facecolor": "white", "edgecolor": color, "linewidth": 1.6}
    panel.text(x, y, text, ha="center", va="center", fontsize=9, bbox=style)


def _arrow(panel: Axes, start: tuple[float, float], end: tuple[float, float], both: bool = False) -> None:
    look = {"arrowstyle": "<->" if both else "->", "color": _GREY, "shrinkA": 20, "shrinkB": 24, "linewidth": 1.1}
    panel.annotate("", xy=end, xytext=start, arrowprops=look)


def data(panel: Axes) -> None:
    """One network; each worker has other batches of the same data."""
    _box(panel, 0, 1, "one data set")
    for worker in range(WORKERS):
        y = 2.0 - worker
        _box(panel, 3, y, f"worker {worker}\nsome of the batches", PALETTE[worker])
        _arrow(panel, (0.3, 1), (2.6, y))
        _arrow(panel, (3.5, y), (6.1, 1), both=True)
    _box(panel, 6.4, 1, "parameter server\none network")


def sweep(panel: Axes) -> None:
    """Many networks, one is kept; each worker trains whole trials."""
    _box(panel, 0, 1, "Optuna\ndraws settings")
    for worker in range(WORKERS):
        y = 2.0 - worker
        _box(panel, 3, y, f"worker {worker}\na trial, then the next", PALETTE[worker])
        _arrow(panel, (0.4, 1), (2.7, y))
        _arrow(panel, (3.4, y), (5.6, 1))
    _box(panel, 6.4, 1, "held-out examples judge:\nthe best settings")


def ensemble(panel: Axes) -> None:
    """Several networks, all are kept; their probabilities are averaged."""
    for worker in range(WORKERS):
        y = 2.0 - worker
        _box(panel, 0, y, "all examples, a shard,\nor a bootstrap sample")
        _box(panel, 3, y, f"worker {worker}\nnetwork {worker}", PALETTE[worker])
        _arrow(panel, (0.6, y), (2.7, y))
        _arrow(panel, (3.4, y), (6.0, 1))
    _box(panel, 6.4, 1, "mean of the\nprobabilities")


PICTURES: tuple[Callable[[Axes], None], ...] = (data, sweep, ensemble)


def main(folder: Path) -> None:
    for draw in PICTURES:
        with plot_style():
            figure = Figure(figsize=(WIDTH_IN, 2.6), layout="constrained")
            panel = figure.subplots()
            draw(panel)
            panel.set_xlim(-1.1, 7.8)
            panel.set_ylim(-0.5, 2.5)
            panel.axis("off")
        plot = Plot(f"split-{draw.__name__}", draw.__name__, draw.__doc__ or "", figure)
        write_whole(folder / f"{plot.name}.svg", plot.svg)
        print(folder / f"{plot.name}.svg")


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("Error: give one folder: python -m benchmarks.splitting_pictures docs/images")
    main(Path(sys.argv[1]))
