"""Compare exported files with the original on the test set."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from rich.console import Console
from rich.text import Text

from ps_cluster.config.objectives import OBJECTIVES, TEXT, ExampleSpec
from ps_cluster.data.packed import PackedDataset
from ps_cluster.data.text_rows import texts_of
from ps_cluster.evaluation.example_files import BATCH_SIZE
from ps_cluster.evaluation.raw_rows import Predictions
from ps_cluster.evaluation.scorer import spaced
from ps_cluster.report.terminal import FOLD, RIGHT, megabytes, plain_table


@dataclass(frozen=True)
class ExportCheck:
    """The score of an exported file on the test examples, and how its predictions differ from those of the original.

    Attributes:
      metric: the accuracy, or the mean absolute error.
      same: the share of examples with the same decision as the original; None for a regression.
      largest: the largest difference between the file's predictions and those of the original.
      mean: the mean difference.
    """

    metric: float
    same: float | None
    largest: float
    mean: float


def compare(
    dataset: PackedDataset, original: Predictions, others: Mapping[str, Predictions], most: int
) -> dict[str, ExportCheck]:
    """Compare models with the original on at most `most` test examples, evenly spaced. Return the results by name."""
    objective = OBJECTIVES[dataset.spec.objective]
    sums = {name: np.zeros(3) for name in others}  # the sums of metrics, equal decisions and mean differences
    largest = dict.fromkeys(others, 0.0)
    inputs, target = dataset.inputs("test"), dataset.target("test")
    ids = spaced(dataset.test_examples, most)
    for start in range(0, len(ids), BATCH_SIZE):
        some = ids[start : start + BATCH_SIZE]
        batch, wanted = {name: np.asarray(rows[some]) for name, rows in inputs.items()}, np.asarray(target[some])
        texts = [name for name, field in dataset.spec.inputs.items() if field.dtype == TEXT]
        batch |= {name: texts_of(batch[name]) for name in texts}
        expected = original(batch)
        for name, predictions in others.items():
            found = predictions(batch)
            differences = np.abs(found - expected)
            same = (objective.decisions(found) == objective.decisions(expected)).reshape(len(some), -1).all(1)
            sums[name] += objective.metrics(wanted, found).sum(), same.sum(), differences.mean(1).sum()
            largest[name] = float(np.maximum(largest[name], differences.max()))  # np.maximum keeps NaN
    checks = {}
    for name, total in sums.items():
        metric, share, mean = (total / len(ids)).tolist()
        checks[name] = ExportCheck(metric, share if dataset.spec.classes else None, largest[name], mean)
    return checks


@dataclass(frozen=True)
class CheckedModel:
    """A line of the report: an exported file, or the original."""

    name: str  # the name of the format, or "best model" and its precision
    file: str
    bytes: int
    compared: ExportCheck
    allowed: float | None  # the largest allowed difference; None: any difference is allowed

    @property
    def fails(self) -> bool:
        """Whether the file differs by more than is allowed. A difference that is NaN or infinite is never allowed."""
        largest = self.compared.largest
        return not np.isfinite(largest) or (self.allowed is not None and largest > self.allowed)


def print_checked(rows: list[CheckedModel], spec: ExampleSpec, console: Console) -> None:
    """Print the table of all files."""
    field = OBJECTIVES[spec.objective].metric_name
    table = plain_table(
        format=FOLD, **dict.fromkeys(("size", field, "same", "max diff", "mean diff", "allowed"), RIGHT)
    )
    for row in rows:
        found = row.compared
        metric = f"{found.metric:.2%}" if field == "accuracy" else f"{found.metric:.5g}"
        same = "–" if found.same is None else f"{found.same:.2%}"
        allowed = "–" if row.allowed is None else f"{row.allowed:.1g}"
        largest = Text(f"{found.largest:.2g}", "red" if row.fails else "")
        table.add_row(row.name, megabytes(row.bytes), metric, same, largest, f"{found.mean:.1g}", allowed)
    console.print(table)
