"""Show wrongly predicted test examples on the page of a run, as pictures or as rows of a table."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ps_cluster.config.objectives import TARGET
from ps_cluster.data.describing import example_rows
from ps_cluster.data.packed import PackedDataset
from ps_cluster.report.pictures import as_source

MOST_COLUMNS = 10
_SIDE = 96  # pixels of a picture's longer side


@dataclass(frozen=True)
class ShownExamples:
    """Some test examples, as pictures or as rows of a table.

    Attributes:
      pictures: for each example, the source of an <img>.
      names, rows: the names of the columns of the table, and for each example the texts in these columns.
      more_columns: the number of columns that are not shown.
      lacking: the reason why examples can't be shown; empty if they can, or if there are none to show.
    """

    pictures: tuple[str, ...] = ()
    names: tuple[str, ...] = ()
    rows: tuple[tuple[str, ...], ...] = ()
    more_columns: int = 0
    lacking: str = ""


def shown_examples(dataset: PackedDataset | None, target: np.ndarray, ids: Sequence[int]) -> ShownExamples:
    """Return the test examples with the indices `ids`, as pictures or as rows of a table.

    Args:
      dataset: the data set of the run; None if its packed copy is missing.
      target: the targets of all test examples at the time of the predictions, [N] or [N, outputs].
    """
    if dataset is None:
        return ShownExamples(lacking="the packed copy of the data set is not on this machine any more")
    chosen = np.asarray(ids, np.int64)
    if not len(chosen):
        return ShownExamples()
    if not _are_the_same(dataset, target, chosen):
        return ShownExamples(lacking="the packed copy of the data set has changed since the predictions")
    image = next((name for name, field in dataset.spec.inputs.items() if field.is_image), None)
    if image is not None:
        return ShownExamples(
            pictures=tuple(as_source(picture, _SIDE) for picture in dataset.inputs("test")[image][chosen])
        )
    names, rows = example_rows(dataset, chosen, "test")
    columns = [index for index, name in enumerate(names) if name != TARGET]
    shown = columns[:MOST_COLUMNS]
    return ShownExamples(
        names=tuple(names[index] for index in shown),
        rows=tuple(tuple(row[index] for index in shown) for row in rows),
        more_columns=len(columns) - len(shown),
    )


def _are_the_same(dataset: PackedDataset, target: np.ndarray, ids: np.ndarray) -> bool:
    """Return whether the data set still has the predicted examples: the same number, with the same targets."""
    if dataset.test_examples != len(target):
        return False
    now, then = (np.asarray(rows[ids], np.float64).reshape(len(ids), -1) for rows in (dataset.target("test"), target))
    return now.shape == then.shape and np.allclose(now, then, rtol=1e-5)
