"""Draw a run for a notebook: metric and loss over time and over examples."""

from __future__ import annotations

import io

from matplotlib.figure import Figure

from ps_cluster.report.pages import ALONG, Curves, grid, legend_outside, plot_style
from ps_cluster.runs.result_rows import Summary
from ps_cluster.runs.run_dir import RunDir

_PANEL_IN = 2.4


class RunFigure(Figure):
    """A figure that a notebook shows, also where matplotlib has not been told of notebooks."""

    def _repr_png_(self) -> bytes:
        content = io.BytesIO()
        self.savefig(content, format="png")
        return content.getvalue()


def draw(run_dir: RunDir, summary: Summary) -> Figure:
    """Return a figure of four panels. Of training it has means over the updates between two rows of progress."""
    curves = Curves.of(run_dir, summary)
    with plot_style():
        figure, panels = grid(2, 2, _PANEL_IN, RunFigure)
        for measure, row in zip(curves.measures, panels):
            for along, panel in zip(ALONG, row):
                curves.draw(panel, along, measure)
        for panel, along in zip(panels[-1], ALONG):
            panel.set_xlabel(curves.label(along))
        legend_outside(figure, panels[0][:1])
    return figure
