"""Write and read the predictions of the last scored checkpoint for each test example. No TensorFlow."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ps_cluster.errors import UserError
from ps_cluster.files.tensor_files import open_tensors, write_tensors
from ps_cluster.files.values import Malformed
from ps_cluster.files.writing import create_beside, remove_leftovers
from ps_cluster.runs.result_rows import PredictionsHeader


@dataclass(frozen=True)
class Predictions:
    """Predictions of all test examples, in the order of the data set (see `PredictionsHeader`).

    `arrays`: by name, the arrays [N, ...] that the objective keeps (`Head.kept`), such as predictions and targets.
    """

    step: int
    objective: str
    unit: str
    classes: tuple[str, ...]
    arrays: Mapping[str, np.ndarray]

    @property
    def examples(self) -> int:
        return min(map(len, self.arrays.values()))

    def column(self, name: str, kind: str, axes: int = 1) -> np.ndarray:
        """Return the array called `name`. Raises Malformed if it is missing or has another kind or number of axes.

        `kind`: the kind of its dtype, as in `numpy.dtype.kind`, e.g. "f". `axes`: its number of axes.
        """
        if name not in self.arrays:
            raise Malformed(f"it has no array '{name}'")
        array = self.arrays[name]
        if array.dtype.kind != kind or array.ndim != axes:
            raise Malformed(f"array '{name}' has the wrong dtype or shape: {array.dtype} {list(array.shape)}")
        return array


def write_predictions(path: Path, predictions: Predictions) -> None:
    """Write the predictions to a temporary file and rename it to `path`. Raises OSError if that fails."""
    header = PredictionsHeader(
        step=predictions.step,
        objective=predictions.objective,
        unit=predictions.unit,
        examples=predictions.examples,
        classes=list(predictions.classes),
        arrays=list(predictions.arrays),
    )
    remove_leftovers(path.parent, path.name)
    with create_beside(path) as file:
        write_tensors(file, header, predictions.arrays)


def load_predictions(path: Path) -> Predictions:
    """Read a file that `write_predictions` has written. The arrays are memory-mapped.

    Raises FileNotFoundError if there is no file, and UserError if the file can't be read, is cut short or damaged.
    """
    try:
        header, written = open_tensors(path, PredictionsHeader)
        if lacking := [name for name in header.arrays if name not in written]:
            raise Malformed(f"it has no array '{lacking[0]}'")
        arrays = {name: written[name] for name in header.arrays}
        if not arrays or any(array.ndim == 0 or len(array) != header.examples for array in arrays.values()):
            raise Malformed(f"its arrays do not have {header.examples:,} examples")
        return Predictions(header.step, header.objective, header.unit, tuple(header.classes), arrays)
    except FileNotFoundError:
        raise
    except OSError as error:
        raise UserError(f"'{path}' can't be read: {error.strerror or error}") from error
    except Malformed as error:
        raise UserError(f"'{path}' is damaged or cut short ({error})") from error
