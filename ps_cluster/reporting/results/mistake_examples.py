"""Show test examples on a page: pictures, or rows of columns."""

from __future__ import annotations

import base64
import io
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ps_cluster.catalogue.examples import TARGET
from ps_cluster.data.describing import example_rows
from ps_cluster.data.packed import PackedDataset, load_pointed
from ps_cluster.errors import UserError
from ps_cluster.reporting.contact_sheet import scaled
from ps_cluster.reporting.results.analysis import Analysis
from ps_cluster.run.run_dir import RunDir

MOST_COLUMNS = 10
_SIDE = 96  # pixels of a picture's longer side


@dataclass(frozen=True)
class Examples:
    """Some test examples, as sources of <img>, or else as rows of text below names of columns.

    `lacking`: why there is neither.
    """

    pictures: tuple[str, ...] = ()
    names: tuple[str, ...] = ()
    rows: tuple[tuple[str, ...], ...] = ()
    more_columns: int = 0
    lacking: str = ""


def dataset_of(run_dir: RunDir) -> PackedDataset | None:
    """Return the packed copy that a run was trained on; None if it is not on this machine any more."""
    try:
        return load_pointed(run_dir.dataset)
    except (UserError, OSError):
        return None


def examples(dataset: PackedDataset | None, analysis: Analysis, ids: Sequence[int]) -> Examples:
    """Return the test examples of these indices."""
    if dataset is None:
        return Examples(lacking="the packed copy of the data set is not on this machine any more")
    chosen = np.asarray(ids, np.int64)
    if not len(chosen):
        return Examples()
    if not _fits(dataset, analysis, chosen):
        return Examples(lacking="the data set's packed copy has changed since")
    image = next((name for name, field in dataset.spec.inputs.items() if field.is_image), None)
    if image is not None:
        return Examples(pictures=tuple(map(_source, dataset.inputs("test")[image][chosen])))
    names, rows = example_rows(dataset, chosen, "test")
    columns = [index for index, name in enumerate(names) if name != TARGET]
    shown = columns[:MOST_COLUMNS]
    return Examples(
        names=tuple(names[index] for index in shown),
        rows=tuple(tuple(row[index] for index in shown) for row in rows),
        more_columns=len(columns) - len(shown),
    )


def _fits(dataset: PackedDataset, analysis: Analysis, ids: np.ndarray) -> bool:
    """Return whether these are the examples that were predicted: as many, and of the same targets."""
    if dataset.test_examples != analysis.predictions.examples:
        return False
    now, then = (
        np.asarray(rows[ids], np.float64).reshape(len(ids), -1) for rows in (dataset.target("test"), analysis.target)
    )
    return now.shape == then.shape and np.allclose(now, then, rtol=1e-5)


def _source(image: np.ndarray) -> str:
    content = io.BytesIO()
    scaled(image, _SIDE).save(content, "PNG")
    return f"data:image/png;base64,{base64.b64encode(content.getvalue()).decode()}"
