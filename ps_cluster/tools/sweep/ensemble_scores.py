"""The scores of an ensemble and of its members, as a table and for programs. Does not import TensorFlow."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean

from rich.console import Console

from ps_cluster.files.values import finite
from ps_cluster.files.writing import write_json
from ps_cluster.report.terminal import LEFT, RIGHT, plain_table
from ps_cluster.runs.result_rows import MetricText


@dataclass(frozen=True)
class Scores:
    """The scores of a model over the test examples.

    Attributes:
      metric: the objective's metric: an accuracy, from 0 to 1, or an error.
      loss: the objective's loss, without label smoothing.
      calibration_error: the expected calibration error of a classification (Guo et al. 2017, eq. 3), or else None.
    """

    metric: float
    loss: float
    calibration_error: float | None


@dataclass(frozen=True)
class ScoreTable:
    """The scores of each member and of the ensemble. `field`: the name of the metric, "accuracy" or "error"."""

    names: tuple[str, ...]
    of_members: tuple[Scores, ...]
    of_ensemble: Scores
    field: str

    @property
    def mean(self) -> Scores:
        """The mean of each score over the members, which is the score to expect of a single member."""
        errors = [one.calibration_error for one in self.of_members if one.calibration_error is not None]
        means = fmean(one.metric for one in self.of_members), fmean(one.loss for one in self.of_members)
        return Scores(*means, fmean(errors) if errors else None)

    @property
    def rows(self) -> list[list[str]]:
        """The cells of each row: the name, the metric, the loss and, for a classification, the calibration error."""
        names = (*self.names, "mean of the members", "the ensemble")
        rows = []
        for name, one in zip(names, (*self.of_members, self.mean, self.of_ensemble), strict=True):
            calibration = [] if one.calibration_error is None else [f"{one.calibration_error:.2%}"]
            metric = MetricText.of(self.field, one.metric).value
            rows.append([name, metric, f"{one.loss:.4f}", *calibration])
        return rows

    def print_to(self, console: Console) -> None:
        """Print the table."""
        calibrated = self.of_ensemble.calibration_error is not None
        numbers = (f"test {self.field}", "loss", *(["calibration error"] * calibrated))
        table = plain_table(member=LEFT, **dict.fromkeys(numbers, RIGHT))
        for row in self.rows:
            table.add_row(*row)
        console.print()
        console.print(table)

    def write(self, file: Path, about: Mapping[str, object], runs: Sequence[Mapping[str, object]]) -> None:
        """Write the scores of the members, of their mean and of the ensemble into a JSON file.

        Args:
          about: values of the whole ensemble, by name; they come first.
          runs: values of each member, by name.
        """
        members = [{**run, **self._named(one)} for run, one in zip(runs, self.of_members, strict=True)]
        scores = {"mean": self._named(self.mean), "ensemble": self._named(self.of_ensemble)}
        write_json(file, {**about, "members": members, **scores})

    def _named(self, one: Scores) -> dict[str, float | None]:
        error = one.calibration_error
        return {
            f"test_{self.field}": finite(one.metric),
            "test_loss": finite(one.loss),
            "calibration_error": None if error is None else finite(error),
        }
