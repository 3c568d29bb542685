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

MOST_ROWS = 1000
ALONG = ("train_seconds", "examples")


@dataclass(frozen=True)
class Curves:
    """The points of a run. `metric`: "accuracy" or "error". `unit`: the word for several examples.

    `trained` has means over the updates between two rows of progress; of a long run some rows, evenly spaced.
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

    def label(self, along: str) -> str:
        """Return the words for one of ALONG."""
        return "seconds of training" if along == "train_seconds" else f"{self.unit} trained on"

    def draw(self, panel: Axes, along: str, measure: str) -> None:
        """Draw a measure of the training, of the test examples, and of held-out training examples if there are any."""
        _line(panel, self.trained, along, measure, "training", PALETTE[5], "")
        _line(panel, self.tested, along, f"test_{measure}", "test", PALETTE[0], "o")
        _line(panel, self.tested, along, f"validation_{measure}", "validation", PALETTE[1], "s")
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
