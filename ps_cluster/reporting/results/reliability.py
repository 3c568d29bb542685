"""Draw calibration: the share that is right, by the confidence."""

from __future__ import annotations

from dataclasses import asdict

import numpy as np
from matplotlib.figure import Figure

from ps_cluster.reporting.calibration import BINS, Calibration
from ps_cluster.reporting.plot import Plot
from ps_cluster.reporting.plot_style import PALETTE, grid, legend_outside, plot_style
from ps_cluster.reporting.results.analysis import Json

NARROW_IN, HEIGHT_IN = 4.6, 2.6  # of a figure that has another one beside it


def as_json(found: Calibration) -> Json:
    """Return the bins and the errors that are computed from them, for results.json."""
    about = {"expected_calibration_error": found.expected_error, "overconfidence": found.overconfidence}
    return about | {"bins": BINS} | asdict(found)


def reliability(found: Calibration, unit: str) -> list[Plot]:
    """Return two plots: how often predictions were right, and how many there are, both by confidence."""
    if not found.total:
        return []
    right = (
        f"The share of predictions that are right, by how sure the network was, in {BINS} bins of equal width. "
        "On the diagonal it is right as often as it says; below, it is too sure."
    )
    return [
        Plot("calibration", "Right, by confidence", right, _bars(found)),
        Plot("confidence", "How sure it was", f"How many test {unit} have which confidence.", _counts(found)),
    ]


def _bars(found: Calibration) -> Figure:
    with plot_style():
        figure, [[axes]] = grid(1, 1, HEIGHT_IN, width_in=NARROW_IN)
        heights = [100 * right if right is not None else 0.0 for right in found.right]
        axes.bar(_middles(), heights, width=100 / BINS * 0.9, color=PALETTE[0], label="right")
        axes.plot([0, 100], [0, 100], color=PALETTE[1], linestyle="--", linewidth=1.2, label="perfectly calibrated")
        axes.set(xlabel="confidence [%]", ylabel="right [%]", xlim=(0, 100), ylim=(0, 100))
        legend_outside(figure, [axes])
    return figure


def _counts(found: Calibration) -> Figure:
    with plot_style():
        figure, [[axes]] = grid(1, 1, HEIGHT_IN, width_in=NARROW_IN)
        share = 100 * np.array(found.counts) / found.total
        axes.bar(_middles(), share, width=100 / BINS * 0.9, color=PALETTE[5])
        axes.set(xlabel="confidence [%]", ylabel="predictions [%]", xlim=(0, 100))
    return figure


def _middles() -> np.ndarray:
    return 100 * (np.arange(BINS) + 0.5) / BINS
