"""Read and draw the curves of a run: metric and loss, over time and over examples."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from matplotlib.axes import Axes
from matplotlib.ticker import PercentFormatter

from ps_cluster.files.json_rows import some_rows
from ps_cluster.report.colours import PALETTE
from ps_cluster.report.plots import plain_ticks
from ps_cluster.runs.result_rows import ProgressRow, ScoreRow, Summary
from ps_cluster.runs.run_dir import RunDir

MOST_ROWS = 1000  # of progress that are read
X_AXES = ("train_seconds", "examples")


@dataclass(frozen=True)
class Curves:
    """The points of the curves of a run.

    Attributes:
      trained: means over the updates between two rows of progress. Of a long run, only some rows are read, evenly
        spaced.
      tested: the scores of checkpoints.
      metric: "accuracy" or "error".
      unit: the word for several examples, e.g. "images".
    """

    trained: Sequence[ProgressRow]
    tested: Sequence[ScoreRow]
    metric: str
    unit: str

    @classmethod
    def of(cls, run_dir: RunDir, summary: Summary) -> Curves:
        trained = [row for row in some_rows(run_dir.progress, ProgressRow, MOST_ROWS) if row.applied]
        tested = summary.evaluation.history
        is_error = any(row.error is not None for row in trained) or any(row.test_error is not None for row in tested)
        return cls(trained, tested, "error" if is_error else "accuracy", summary.unit)

    @property
    def measures(self) -> tuple[str, str]:
        return self.metric, "loss"

    def label(self, x_axis: str) -> str:
        """Return the label of one of X_AXES."""
        return "seconds of training" if x_axis == "train_seconds" else f"{self.unit} trained on"

    def draw(self, panel: Axes, x_axis: str, measure: str) -> None:
        """Draw a measure over training, test and, if there are any, held-out training examples."""
        _line(panel, self.trained, x_axis, measure, "training", PALETTE[5], "")
        _line(panel, self.tested, x_axis, f"test_{measure}", "test", PALETTE[1], "o")
        _line(panel, self.tested, x_axis, f"validation_{measure}", "validation", PALETTE[2], "s")
        panel.set_ylabel(measure)
        plain_ticks(panel)
        if measure == "accuracy":
            panel.yaxis.set_major_formatter(PercentFormatter(1.0, symbol=" %"))


def _line(
    panel: Axes, rows: Sequence[ProgressRow | ScoreRow], x: str, y: str, label: str, color: str, marker: str
) -> None:
    points = [(getattr(row, x), getattr(row, y)) for row in rows]
    known = [point for point in points if None not in point]
    if known:
        panel.plot(*zip(*known), label=label, color=color, marker=marker, markersize=4)
