"""The scores of an ensemble's members: a table for people, and one for programs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from math import isfinite
from pathlib import Path
from statistics import fmean
from typing import Any

from rich.console import Console
from rich.table import Table

from ps_cluster.ensemble.ensemble_plan import Ensemble, Member
from ps_cluster.files.number_text import number_text
from ps_cluster.files.writing import write_json


@dataclass(frozen=True)
class Scores:
    """Over the test examples.

    Attributes:
      metric: the objective's, an accuracy (a share) or an error. loss: the objective's, without label smoothing.
      calibration_error: the expected calibration error of a classification, Guo et al. 2017, eq. 3; None for others.
    """

    metric: float
    loss: float
    calibration_error: float | None


def mean_of(scores: Sequence[Scores]) -> Scores:
    """Return the mean of each score: what one member is worth on average."""
    off = [one.calibration_error for one in scores if one.calibration_error is not None]
    return Scores(fmean(one.metric for one in scores), fmean(one.loss for one in scores), fmean(off) if off else None)


def write_scores(
    file: Path, ensemble: Ensemble, members: Sequence[Member], scores: Sequence[Scores], *, field: str, dataset: str
) -> None:
    """Write ensemble.json. `scores`: of the members, then of the ensemble. `field`: "accuracy" or "error"."""

    def row(one: Scores) -> dict[str, Any]:
        named = {name: value if value is None or isfinite(value) else None for name, value in asdict(one).items()}
        return {f"test_{field}": named.pop("metric"), "test_loss": named.pop("loss"), **named}

    *of_members, of_ensemble = scores
    content = {
        "schema": 1,
        "dataset": dataset,
        **ensemble.content(),
        "members": [
            {
                "run": f"members/{member.name}",
                "model": member.config.model.name,
                "seed": member.config.training.seed,
                "sample": member.config.training.sample,
                **row(one),
            }
            for member, one in zip(members, of_members)
        ],
        "mean": row(mean_of(of_members)),
        "ensemble": row(of_ensemble),
    }
    write_json(file, content)


@dataclass(frozen=True)
class ScoreTable:
    """The scores in words.

    Attributes:
      names: of the members. scores: of the members, then of the ensemble. field: "accuracy" or "error".
    """

    names: tuple[str, ...]
    scores: tuple[Scores, ...]
    field: str

    @property
    def headings(self) -> list[str]:
        calibrated = self.scores[-1].calibration_error is not None
        return ["member", f"test {self.field}", "loss", *(["calibration error"] * calibrated)]

    @property
    def rows(self) -> list[list[str]]:
        """Each member, their mean, and the ensemble."""
        *of_members, of_ensemble = self.scores
        named = zip(
            (*self.names, "mean of the members", "the ensemble"), (*of_members, mean_of(of_members), of_ensemble)
        )
        return [[name, self.metric(one), f"{one.loss:.4f}", *_calibration(one)] for name, one in named]

    def metric(self, one: Scores) -> str:
        return f"{one.metric:.2%}" if self.field == "accuracy" else number_text(one.metric)

    def print_to(self, console: Console) -> None:
        """Print the table."""
        table = Table(title="on the test set", title_justify="left")
        for place, heading in enumerate(self.headings):
            table.add_column(heading, justify="right" if place else "left")
        *of_members, of_mean, of_ensemble = self.rows
        for row in of_members:
            table.add_row(*row)
        table.add_section()
        table.add_row(*of_mean)
        table.add_row(*of_ensemble, style="bold")
        console.print()
        console.print(table)


def _calibration(one: Scores) -> list[str]:
    return [] if one.calibration_error is None else [f"{one.calibration_error:.2%}"]
