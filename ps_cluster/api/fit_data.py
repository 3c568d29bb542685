"""Turn the data that `Model.fit` takes into the arrays of a data set."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import keras
import numpy as np
import tensorflow as tf

from ps_cluster.api.streams import write_stream
from ps_cluster.errors import UserError
from ps_cluster.files.values import one_line
from ps_cluster.notices import Notify

# Without validation data, this many training examples are the test examples, which a data set needs; nothing uses
# their score.
USED_WITHOUT_VALIDATION = 100

Arrays: TypeAlias = np.ndarray | dict[str, np.ndarray]
"""An array [N, ...], or several by the names of the model's inputs or outputs."""


@dataclass(frozen=True)
class Examples:
    """Examples as arrays. `weight`: float [N]; None if all examples count the same."""

    x: Arrays
    y: Arrays
    weight: np.ndarray | None = None

    def __len__(self) -> int:
        return len(next(iter(self.x.values())) if isinstance(self.x, dict) else self.x)

    def part(self, begin: int, end: int | None) -> Examples:
        """Return the examples from `begin` up to, but not including, `end`."""
        rows = slice(begin, end)
        x, y = keras.tree.map_structure(lambda array: array[rows], (self.x, self.y))
        return Examples(x, y, None if self.weight is None else self.weight[rows])


@dataclass(frozen=True)
class FitData:
    """The data of a call of `fit`. `batch_size`: the batch size of the stream that the data came from; None for arrays."""

    train: Examples
    validation: Examples | None
    batch_size: int | None

    @property
    def arrays(self) -> dict[str, Arrays]:
        """The arrays under the names that `ps_cluster.train` takes."""
        test = self.train.part(0, USED_WITHOUT_VALIDATION) if self.validation is None else self.validation
        found = {
            "x_train": self.train.x, "y_train": self.train.y, "weight_train": self.train.weight,
            "x_test": test.x, "y_test": test.y, "weight_test": test.weight,
        }  # fmt: skip
        return {name: array for name, array in found.items() if array is not None}


@contextlib.contextmanager
def fit_data(
    model: keras.Model,
    x: Any,
    y: Any,
    sample_weight: Any,
    *,
    validation_data: Any,
    validation_split: float,
    steps_per_epoch: int | None,
    validation_steps: int | None,
    validation_batch_size: int,
    say: Notify,
) -> Iterator[FitData]:
    """Yield the data of a call of `fit`. Streams are written to temporary files, which are removed afterwards.

    The arguments are those of `Model.fit`. `say` is called with each line for the user.
    """
    with tempfile.TemporaryDirectory(prefix="ps-cluster-fit-") as name:
        folder = Path(name)
        train, batch_size = _examples(model, "x", x, y, sample_weight, folder, steps_per_epoch, say)
        validation = None
        if validation_data is not None:
            parts = validation_data if isinstance(validation_data, tuple | list) else (validation_data,)
            if len(parts) > 3:
                raise UserError(
                    f"validation_data: got {len(parts)} parts: give (x, y), (x, y, sample_weight), or a stream"
                )
            given, targets, weights = (*parts, None, None)[:3]
            validation, size = _examples(
                model, "validation_data", given, targets, weights, folder, validation_steps, say
            )
            if validation_steps is not None and size is None:
                validation = validation.part(0, validation_steps * validation_batch_size)
        elif validation_split:
            if batch_size is not None:
                raise UserError("validation_split: it needs arrays, and x is a stream: give validation_data")
            if not 0 < validation_split < 1:
                raise UserError(f"validation_split: got {validation_split}: give a share between 0 and 1")
            first = int(len(train) * (1 - validation_split))  # hold out the last examples, as `Model.fit` does
            if not 0 < first < len(train):
                raise UserError(
                    f"validation_split: {validation_split} of {len(train):,} examples leaves none on one side"
                )
            train, validation = train.part(0, first), train.part(first, None)
        yield FitData(train, validation, batch_size)


def _examples(
    model: keras.Model, what: str, x: Any, y: Any, weight: Any, folder: Path, steps: int | None, say: Notify
) -> tuple[Examples, int | None]:
    """Return examples as arrays, and the size of a stream's first batch, or None if they were arrays before."""
    batches = _batches(what, x, steps)
    if batches is None:
        if y is None:
            raise UserError(
                f"{what}: got {type(x).__name__} without targets: give x and y, or a stream of (inputs, targets)"
            )
        return Examples(_by_name(model, what, x), _by_output(model, what, y), _weight(weight)), None
    if y is not None or weight is not None:
        raise UserError(
            f"{'y' if y is not None else 'sample_weight'}: {what} is a stream, whose batches have to contain it"
        )
    own = folder / what
    own.mkdir()
    found = write_stream(batches, own, what, steps=steps, say=say)
    if what == "x":
        say("x: each epoch trains on these examples, so put random augmentation into layers of the model")
    x, y = _by_name(model, what, found.inputs), _by_output(model, what, found.targets)
    return Examples(x, y, _weight(found.weights)), found.first_batch


def _batches(what: str, x: Any, steps: int | None) -> Iterable[Any] | None:
    """Return the batches of a stream; None for arrays."""
    if isinstance(x, tf.data.Dataset):
        if steps is None and x.cardinality() == tf.data.INFINITE_CARDINALITY:
            raise UserError(f"{what}: the dataset has no end: give {_steps_argument(what)}, or leave out repeat()")
        numpy_batches: Iterable[Any] = x.as_numpy_iterator()
        return numpy_batches
    if isinstance(x, keras.utils.PyDataset):
        batches = steps if x.num_batches is None else x.num_batches
        if batches is None:
            raise UserError(f"{what}: the PyDataset has no length: give {_steps_argument(what)}")
        return (x[number] for number in range(batches))
    if isinstance(x, Iterator):
        if steps is None:
            raise UserError(f"{what}: a generator may have no end: give {_steps_argument(what)}")
        return x
    return None


def _steps_argument(what: str) -> str:
    return "steps_per_epoch" if what == "x" else "validation_steps"


def _by_name(model: keras.Model, what: str, x: Any) -> Arrays:
    """Return inputs as an array, or as a dictionary of arrays by the names of the model's inputs."""
    if hasattr(x, "iloc"):  # a frame of pandas, or a column of it
        return _of_frame(what, x)
    if isinstance(x, Mapping):
        return {str(name): np.asarray(array) for name, array in x.items()}
    if not isinstance(x, tuple) and not (isinstance(x, list) and x and hasattr(x[0], "shape")):
        return np.asarray(x)
    arrays = _named(what, x, [one.name for one in getattr(model, "inputs", None) or []], "input")
    return np.asarray(x[0]) if len(x) == 1 else arrays


def _named(what: str, arrays: Sequence[Any], names: Sequence[str], noun: str) -> dict[str, np.ndarray]:
    """Return name → array for the names of the model's inputs or outputs. Raises UserError if the numbers differ."""
    if len(names) != len(arrays):
        raise UserError(
            f"{what}: got {len(arrays)} arrays, and the model has {len(names) or 'no named'} {noun}s: give a dictionary, "
            f"name of an {noun} → array"
        )
    return {name: np.asarray(array) for name, array in zip(names, arrays)}


def _of_frame(what: str, frame: Any) -> np.ndarray:
    """Return the numbers of a pandas frame, float32 [N, columns], as Keras takes them."""
    kinds = frame.dtypes.items() if hasattr(frame, "columns") else [(frame.name, frame.dtype)]
    for name, dtype in kinds:
        if getattr(dtype, "kind", "O") not in "iufb":
            raise UserError(
                f"{what}: column '{one_line(str(name), 100)}' is {dtype}: give numbers, or a dictionary of columns for a model "
                "with an input for each"
            )
    values: np.ndarray = frame.to_numpy()
    return values.astype(np.float32) if values.dtype.kind in "fOb" else values


def _by_output(model: keras.Model, what: str, y: Any) -> Arrays:
    """Return targets as an array, or as a dictionary of arrays by the names of the model's outputs."""
    if isinstance(y, Mapping):
        return {str(name): np.asarray(array) for name, array in y.items()}
    if isinstance(y, tuple) or (isinstance(y, list) and len(y) > 1 and hasattr(y[0], "shape") and y[0].shape):
        names = getattr(model, "output_names", None) or []
        return np.asarray(y[0]) if len(y) == 1 else _named("y" if what == "x" else what, y, names, "output")
    return np.asarray(y)


def _weight(weight: object) -> np.ndarray | None:
    if isinstance(weight, Mapping | tuple):
        raise UserError("sample_weight: got several arrays: give one weight for each example")
    return None if weight is None else np.asarray(weight)


def evaluate(model: keras.Model, examples: Examples) -> dict[str, float]:
    """Return the loss and the metrics of a model, under Keras's names, as `Model.evaluate` measures them."""
    # Keras takes strings only as tensors.
    x = keras.tree.map_structure(lambda one: tf.constant(one) if one.dtype.kind in "OSU" else one, examples.x)
    found = model.evaluate(x, examples.y, verbose=0, return_dict=True)
    return {name: float(value) for name, value in found.items()}
