"""Read and draw the curves of a run: metric and loss, over time and over examples."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, get_args

from matplotlib.axes import Axes
from matplotlib.ticker import PercentFormatter

from ps_cluster.files.json_rows import some_rows
from ps_cluster.report.colours import PALETTE
from ps_cluster.report.plots import plain_ticks
from ps_cluster.report.points import Point, scored_points, trained_points
from ps_cluster.runs.result_rows import Measure, ProgressRow, ScoreRow, Summary
from ps_cluster.runs.run_dir import RunDir

MOST_ROWS = 1000  # the most progress rows that are read
XAxis = Literal["train_seconds", "examples"]
X_AXES: tuple[XAxis, ...] = get_args(XAxis)


@dataclass(frozen=True)
class Curves:
    """The points of the curves of a run.

    Attributes:
      trained: progress rows, whose values are means over the updates since the previous row. Of a long run, only some
        rows are read, evenly spaced.
      tested: the scores of checkpoints.
      metric: the metric of the objective.
      unit: the plural noun for the examples, e.g. "images".
    """

    trained: Sequence[ProgressRow]
    tested: Sequence[ScoreRow]
    metric: Literal["accuracy", "error"]
    unit: str

    @classmethod
    def of(cls, run_dir: RunDir, summary: Summary) -> Curves:
        trained = [row for row in some_rows(run_dir.progress, ProgressRow, MOST_ROWS) if row.applied]
        tested = summary.evaluation.history
        is_error = any(row.error is not None for row in trained) or any(row.test_error is not None for row in tested)
        return cls(trained, tested, "error" if is_error else "accuracy", summary.unit)

    @property
    def measures(self) -> tuple[Measure, Measure]:
        return self.metric, "loss"

    def label(self, x_axis: XAxis) -> str:
        """Return the label of an axis."""
        return "seconds of training" if x_axis == "train_seconds" else f"{self.unit} trained on"

    def draw(self, panel: Axes, x_axis: XAxis, measure: Measure) -> None:
        """Draw the curves of a measure on the training, test and, if there are any, held-out training examples."""
        _line(panel, trained_points(self.trained, measure), x_axis, "training", PALETTE[5], "")
        _line(panel, scored_points(self.tested, measure, "test"), x_axis, "test", PALETTE[1], "o")
        _line(panel, scored_points(self.tested, measure, "validation"), x_axis, "validation", PALETTE[2], "s")
        panel.set_ylabel(measure)
        plain_ticks(panel)
        if measure == "accuracy":
            panel.yaxis.set_major_formatter(PercentFormatter(1.0, symbol=" %"))


def _line(panel: Axes, points: Sequence[Point], x_axis: XAxis, label: str, color: str, marker: str) -> None:
    places = ((one.train_seconds if x_axis == "train_seconds" else one.examples, one.value) for one in points)
    known = [place for place in places if place[0] is not None]
    if known:
        panel.plot(*zip(*known), label=label, color=color, marker=marker, markersize=4)
