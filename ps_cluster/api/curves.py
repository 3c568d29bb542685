"""Draw a run: metric and loss over time and over examples."""

from __future__ import annotations

import io
from collections.abc import Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from ps_cluster.comparison.style import PALETTE, grid, legend_outside, plot_style
from ps_cluster.files.json_rows import read_rows
from ps_cluster.run.rows.progress import ProgressRow
from ps_cluster.run.rows.summary import Summary
from ps_cluster.run.run_dir import RunDir

_PANEL_IN = 2.4


class RunFigure(Figure):
    """A figure that a notebook shows, also where matplotlib has not been told of notebooks."""

    def _repr_png_(self) -> bytes:
        content = io.BytesIO()
        self.savefig(content, format="png")
        return content.getvalue()


def draw(run_dir: RunDir, summary: Summary) -> Figure:
    """Return a figure of four panels. Of training it has means over the updates between two rows of progress."""
    trained = [row for row in read_rows(run_dir.progress, ProgressRow) if row.applied]
    tested = summary.evaluation.history
    metric = "accuracy" if summary.evaluation.test_error is None else "error"
    with plot_style():
        figure, panels = grid(2, 2, _PANEL_IN, RunFigure)
        for measure, row in zip((metric, "loss"), panels):
            for along, panel in zip(("train_seconds", "examples"), row):
                _line(panel, trained, along, measure, "training", PALETTE[5], "")
                _line(panel, tested, along, f"test_{measure}", "test", PALETTE[0], "o")
                panel.set_ylabel(measure)
        for panel, unit in zip(panels[-1], ("seconds of training", f"{summary.unit} trained on")):
            panel.set_xlabel(unit)
        legend_outside(figure, panels[0][:1])
    return figure


def _line(panel: Axes, rows: Sequence[Any], x: str, y: str, label: str, color: str, marker: str) -> None:
    points = [(getattr(row, x), getattr(row, y)) for row in rows]
    known = [point for point in points if None not in point]
    if known:
        panel.plot(*zip(*known), label=label, color=color, marker=marker, markersize=4)
