"""The result of a training. The files of the run are read when an attribute needs them."""

from __future__ import annotations

import io
import os
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ps_cluster.config import user_code
from ps_cluster.config.lazy import keras
from ps_cluster.errors import UserError
from ps_cluster.evaluation.predictor import TrainedRun
from ps_cluster.files.json_files import read_json
from ps_cluster.files.values import reason
from ps_cluster.report.terminal import print_line
from ps_cluster.runs import ledger_csv
from ps_cluster.runs.result_rows import Outcome, Summary
from ps_cluster.runs.run_dir import RunDir

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_PANEL_IN = 2.4


class Result:
    """A run that has ended. `Result("runs/mine")` also opens a run that the command `run` has trained.

    Attributes:
      run_dir: the folder of all its files.
    """

    def __init__(self, run_dir: str | os.PathLike[str], *, code: Sequence[str | os.PathLike[str]] = ()):
        """Open a run.

        Args:
          code: the files of the code that built the network. The attribute `model` may then run them, as with the
            option `--code`. No files are needed if all layers are Keras's, or if this process started the run.

        Raises:
          UserError: the folder is not a run directory, or its run has not ended.
        """
        for file in code:
            user_code.trust(Path(file))
        self._files = RunDir.open(Path(run_dir))
        try:
            self._summary = read_json(self._files.summary, Summary)
        except FileNotFoundError as error:
            raise UserError(
                f"run directory '{run_dir}' has no {self._files.summary.name}: its run has not ended"
            ) from error

    @property
    def run_dir(self) -> Path:
        return self._files.root

    @property
    def summary(self) -> dict[str, Any]:
        """The content of summary.json (docs/glossary.md)."""
        return self._summary.model_dump(mode="json")

    @property
    def outcome(self) -> Outcome:
        """How the run ended: "completed", "stopped", "diverged", "nan_loss" or "failed"."""
        return self._summary.outcome

    @property
    def history(self) -> list[dict[str, Any]]:
        """The scores, oldest first: a dictionary for each checkpoint, with `step`, `test_accuracy`, …"""
        return [row.model_dump() for row in self._summary.evaluation.history]

    @cached_property
    def ledger(self) -> Any:
        """A row for each applied update: a pandas DataFrame if pandas is installed, else a NumPy structured array.

        `ledger["staleness"]` is a column of both types.
        """
        rows = ledger_csv.read_csv(self._files.updates)
        try:
            import pandas
        except ImportError:
            return rows
        return pandas.DataFrame.from_records(rows)

    @cached_property
    def model(self) -> keras.Model:
        """The best model, a plain Keras model that takes raw examples. It is loaded when it is first read.

        Raises:
          UserError: no checkpoint was scored, so there is no best model; or the model needs the code that built it, and
            `code` does not name that code; or the file can't be read, e.g. because it is damaged.
        """
        file = self._files.best_model
        if not file.is_file():
            raise UserError(f"model: '{file}' is not there: no checkpoint was scored; train with evaluator=True")
        try:
            return keras.saving.load_model(file, compile=False)
        except Exception:  # Keras does not know a layer in it; a damaged file can raise almost any exception
            from ps_cluster.models.best import load_best

        try:
            run = TrainedRun.open(self.run_dir, None, print_line, needs_examples=False)
            return load_best(file, run.config.model, run.spec)
        except UserError as error:
            raise UserError(f"model: {error}; in Python: Result(run_dir, code=[…])") from error
        except Exception as error:
            raise UserError(
                f"model: '{file}' can't be loaded ({reason(error, 300)}): if a layer in it is your own, name its file: "
                "Result(run_dir, code=[…])"
            ) from error

    def plot(self) -> Figure:
        """Return a figure of four panels: metric and loss, over time and over examples, for training and test examples.

        The values of the training are means over the updates between two progress rows.
        """
        from matplotlib.figure import Figure  # it takes half a second to import

        from ps_cluster.report.curves import X_AXES, Curves
        from ps_cluster.report.plots import grid, legend_outside, plot_style

        class RunFigure(Figure):
            """A figure that a notebook shows even if matplotlib was not set up for notebooks."""

            def _repr_png_(self) -> bytes:
                content = io.BytesIO()
                self.savefig(content, format="png")
                return content.getvalue()

        curves = Curves.of(self._files, self._summary)
        with plot_style():
            figure, panels = grid(2, 2, _PANEL_IN, RunFigure)
            for measure, row in zip(curves.measures, panels):
                for x_axis, panel in zip(X_AXES, row):
                    curves.draw(panel, x_axis, measure)
            for panel, x_axis in zip(panels[-1], X_AXES):
                panel.set_xlabel(curves.label(x_axis))
            legend_outside(figure, panels[0][:1])
        return figure

    def __repr__(self) -> str:
        scores = self._summary.evaluation.history
        scored = f", {', '.join(scores[-1].scores)} at step {scores[-1].step}" if scores else ""
        return f"Result('{self.run_dir}': {self.outcome}{scored})"
