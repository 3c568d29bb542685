"""Compare exported files with the original on the test set."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
from rich.console import Console
from rich.table import Table
from rich.text import Text

from ps_cluster.catalogue.examples import ExampleSpec
from ps_cluster.catalogue.objectives import OBJECTIVES
from ps_cluster.data.packed import PackedDataset
from ps_cluster.export.export_format import spaced
from ps_cluster.prediction.given import BATCH_SIZE
from ps_cluster.prediction.predictor import Inputs
from ps_cluster.reporting.data_tables import megabytes

Predictions = Callable[[Inputs], np.ndarray]


@dataclass(frozen=True)
class Compared:
    """The results of an exported file on the test examples.

    Attributes:
      metric: its accuracy, or its mean absolute error.
      same: the share of examples for which it decides as the original does; None for a regression.
      largest, mean: the differences of its predictions from the original's.
    """

    metric: float
    same: float | None
    largest: float
    mean: float


class _Tally:
    """Sums over examples."""

    def __init__(self, spec: ExampleSpec):
        self._objective, self._has_classes = OBJECTIVES[spec.objective], bool(spec.classes)
        self._count = 0
        self._metric = self._same = self._mean = self._largest = 0.0

    def add(self, target: np.ndarray, original: np.ndarray, found: np.ndarray) -> None:
        apart = np.abs(found - original)
        self._count += len(target)
        self._metric += float(self._objective.metrics(target, found).sum())
        self._mean += float(apart.mean(1).sum())
        self._largest = float(np.maximum(self._largest, apart.max()))  # NaN stays
        same = self._objective.decisions(found) == self._objective.decisions(original)
        self._same += float(same.reshape(len(target), -1).all(1).sum())

    def result(self) -> Compared:
        same = self._same / self._count if self._has_classes else None
        return Compared(self._metric / self._count, same, self._largest, self._mean / self._count)


def compare(
    dataset: PackedDataset, original: Predictions, others: Mapping[str, Predictions], most: int
) -> dict[str, Compared]:
    """Return name → what each does on test examples, evenly spaced if there are more than `most`."""
    tallies = {name: _Tally(dataset.spec) for name in others}
    inputs, target = dataset.inputs("test"), dataset.target("test")
    ids = spaced(dataset.test_examples, most)
    for start in range(0, len(ids), BATCH_SIZE):
        some = ids[start : start + BATCH_SIZE]
        batch, wanted = {name: np.asarray(rows[some]) for name, rows in inputs.items()}, np.asarray(target[some])
        expected = original(batch)
        for name, predictions in others.items():
            tallies[name].add(wanted, expected, predictions(batch))
    return {name: tally.result() for name, tally in tallies.items()}


@dataclass(frozen=True)
class Checked:
    """A line of the report. `bytes` and `file` are of what was written; `allowed`: the largest difference, if bounded."""

    name: str
    file: str
    bytes: int
    compared: Compared
    allowed: float | None

    @property
    def fails(self) -> bool:
        """True if the file differs more than is allowed. A difference that is NaN or infinite always fails."""
        largest = self.compared.largest
        return not np.isfinite(largest) or (self.allowed is not None and largest > self.allowed)


def print_checked(rows: list[Checked], spec: ExampleSpec, console: Console) -> None:
    """Print the table of all files."""
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    table.add_column("format", overflow="fold")
    field = OBJECTIVES[spec.objective].field
    for heading in ("size", field, "same", "max diff", "mean diff", "allowed"):
        table.add_column(heading, justify="right")
    for row in rows:
        found = row.compared
        metric = f"{found.metric:.2%}" if field == "accuracy" else f"{found.metric:.5g}"
        same = "–" if found.same is None else f"{found.same:.2%}"
        allowed = "–" if row.allowed is None else f"{row.allowed:.1g}"
        largest = Text(f"{found.largest:.2g}", "red" if row.fails else "")
        table.add_row(row.name, megabytes(row.bytes), metric, same, largest, f"{found.mean:.1g}", allowed)
    console.print(table)
