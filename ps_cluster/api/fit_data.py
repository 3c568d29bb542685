"""Turn the data that `Model.fit` takes into the arrays of a data set."""

from __future__ import annotations

import contextlib
import math
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import count as count_from
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import keras
import numpy as np
import tensorflow as tf

from ps_cluster.api.streams import write_stream
from ps_cluster.data.own_arrays import checked_rows
from ps_cluster.errors import UserError
from ps_cluster.files.values import Malformed, one_line
from ps_cluster.notices import Notify

BATCH_SIZE = 32  # as in Model.fit
# A data set needs test examples. Without validation data, this many training examples are its test examples. Nothing
# uses their score.
USED_WITHOUT_VALIDATION = 100

Arrays: TypeAlias = np.ndarray | dict[str, np.ndarray]
"""An array [N, ...], or a dictionary of arrays by the names of the model's inputs or outputs."""


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
    """The data of a call of `fit`.

    Attributes:
      batch_size: the number of examples in a batch.
      steps: the number of batches of an epoch.
      passes: the length of an epoch, in passes over the training examples.
    """

    train: Examples
    validation: Examples | None
    batch_size: int
    steps: int
    passes: float

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
    epochs: int = 1,
    batch_size: int | None = None,
    validation_data: Any = None,
    validation_split: float = 0.0,
    steps_per_epoch: int | None = None,
    validation_steps: int | None = None,
    validation_batch_size: int | None = None,
    notify: Notify,
) -> Iterator[FitData]:
    """Yield the data of a call of `fit`. Streams are written to temporary files, which are removed afterwards.

    The arguments are those of `Model.fit`, except `epochs`, the number of epochs to train, and `notify`, which is
    called with each line for the user.
    """
    with tempfile.TemporaryDirectory(prefix="ps-cluster-fit-") as name:
        folder, stream = Path(name), _stream(x)
        if stream is None:
            train, size = _arrays(model, X_NAMES, x, y, sample_weight), batch_size or BATCH_SIZE
        else:
            if batch_size is not None:
                raise UserError("batch_size: x is a stream, which has batches of its own: leave batch_size out")
            _refuse_beside_a_stream(X_NAMES, y, sample_weight)
            train, size = _written(model, "x", stream, folder, steps_per_epoch, epochs, notify)
        validation = None
        if validation_data is not None:
            batch = validation_batch_size or size
            validation = _validation(model, validation_data, folder, validation_steps, batch, notify)
        elif validation_split:
            if stream is not None:
                raise UserError("validation_split: it needs arrays, and x is a stream: give validation_data")
            train, validation = _split(train, validation_split)
        steps, passes = math.ceil(len(train) / size), 1.0  # of one pass, whose last batch may be smaller
        if steps_per_epoch is not None and (stream is None or stream.is_one_pass):
            whole, rest = divmod(steps_per_epoch, steps)
            steps = steps_per_epoch
            passes = whole + rest * size / len(train)
        yield FitData(train, validation, size, steps, passes)


def _validation(
    model: keras.Model, given: Any, folder: Path, steps: int | None, batch_size: int, notify: Notify
) -> Examples:
    """Return the examples of `given`, the argument `validation_data`: `steps` batches, or all if `steps` is None."""
    parts = given if isinstance(given, tuple | list) else (given,)
    if len(parts) > 3:
        raise UserError(f"validation_data: got {len(parts)} parts: give (x, y), (x, y, sample_weight), or a stream")
    x, y, weight = (*parts, None, None)[:3]
    if stream := _stream(x):
        _refuse_beside_a_stream(VALIDATION_NAMES, y, weight)
        return _written(model, "validation_data", stream, folder, steps, 1, notify)[0]
    found = _arrays(model, VALIDATION_NAMES, x, y, weight)
    return found if steps is None else found.part(0, steps * batch_size)


def _split(train: Examples, share: float) -> tuple[Examples, Examples]:
    """Return the examples to train on and those to score. The latter are a share from the end, as in `Model.fit`."""
    if not 0 < share < 1:
        raise UserError(f"validation_split: got {share}: give a share between 0 and 1")
    first = int(len(train) * (1 - share))
    if not 0 < first < len(train):
        raise UserError(
            f"validation_split: {share} of {len(train):,} examples leaves no example to train on, or none to score"
        )
    return train.part(0, first), train.part(first, None)


class _Names(NamedTuple):
    """The names that messages use for the inputs, the targets and the sample weights."""

    x: str
    y: str
    weight: str


X_NAMES = _Names("x", "y", "sample_weight")
VALIDATION_NAMES = _Names("validation_data[0]", "validation_data[1]", "validation_data[2]")


def _arrays(model: keras.Model, names: _Names, x: Any, y: Any, weight: Any) -> Examples:
    """Convert inputs, targets and sample weights to arrays, where needed, and return them as examples.

    Raises UserError if that is impossible, or if their numbers of rows differ.
    """
    if y is None:
        raise UserError(
            f"{names.x}: got {type(x).__name__} without targets: give x and y, or a stream of (inputs, targets)"
        )
    found = Examples(_by_name(model, names.x, x), _by_output(model, names.y, y), _weight(names.weight, weight))
    parts = zip(names, (found.x, found.y, found.weight))
    rows = [(name, len(array)) for name, part in parts if part is not None for array in keras.tree.flatten(part)]
    if len({count for _, count in rows}) > 1:
        told = ", ".join(f"{name} has {count:,}" for name, count in rows)
        raise UserError(f"{names.x}: the arrays have different numbers of rows: {told}: give equally many rows")
    return found


class _Stream(NamedTuple):
    """A stream of batches.

    Attributes:
      is_one_pass: whether the stream has each example exactly once. Any other stream may repeat its examples,
        which can't be known in advance.
      is_endless: whether the stream has no end, or may have none.
    """

    batches: Iterable[Any]
    is_one_pass: bool
    is_endless: bool


def _stream(x: Any) -> _Stream | None:
    """Return `x` as a stream of batches; None if it consists of arrays."""
    if isinstance(x, tf.data.Dataset):
        is_endless = int(x.cardinality()) == tf.data.INFINITE_CARDINALITY
        return _Stream(x.as_numpy_iterator(), is_one_pass=False, is_endless=is_endless)
    if isinstance(x, keras.utils.PyDataset):
        is_endless = x.num_batches is None
        numbers = count_from(0) if is_endless else range(x.num_batches)
        return _Stream((x[number] for number in numbers), is_one_pass=not is_endless, is_endless=is_endless)
    return _Stream(x, is_one_pass=False, is_endless=True) if isinstance(x, Iterator) else None


def _refuse_beside_a_stream(names: _Names, y: Any, weight: Any) -> None:
    """Raise UserError if targets or sample weights are given as arguments beside a stream of batches."""
    for name, value in ((names.y, y), (names.weight, weight)):
        if value is not None:
            raise UserError(
                f"{name}: {names.x} is a stream, so its batches have to contain these values: leave this argument out"
            )


def _written(
    model: keras.Model,
    what: str,
    stream: _Stream,
    folder: Path,
    steps: int | None,
    epochs: int,
    notify: Notify,
) -> tuple[Examples, int]:
    """Write the examples of a stream to files. Return them, and the number of examples in the first batch.

    Without `steps`, the whole stream is read. With `steps`, a stream that has each example once is read until there are
    enough batches for all epochs, or until it ends. From any other stream, only the `steps` batches of one epoch are
    read, because it may repeat its examples.
    """
    if steps is None and stream.is_endless:
        raise UserError(f"{what}: the stream may have no end: give {_steps_argument(what)}")
    own = folder / what
    own.mkdir()
    most = steps * epochs if steps is not None and stream.is_one_pass else steps
    found = write_stream(stream.batches, own, what, steps=most, notify=notify)
    if what == "x":
        which = "the same examples" if steps is None or stream.is_one_pass else f"the same first {steps:,} batches"
        notify(f"x: each epoch trains on {which}, so put random augmentation into layers of the model")
    x, y = _by_name(model, what, found.inputs), _by_output(model, what, found.targets)
    return Examples(x, y, _weight(what, found.weights)), found.first_batch


def _steps_argument(what: str) -> str:
    return "steps_per_epoch" if what == "x" else "validation_steps"


def _by_name(model: keras.Model, what: str, x: Any) -> Arrays:
    """Return inputs as an array, or as a dictionary of arrays by the names of the model's inputs."""
    if hasattr(x, "iloc"):  # a frame of pandas, or a column of it
        return _of_frame(what, x)
    if isinstance(x, Mapping):
        return {str(name): _as_array(f"{what}['{name}']", array) for name, array in x.items()}
    if not isinstance(x, tuple) and not (isinstance(x, list) and x and hasattr(x[0], "shape")):
        return _as_array(what, x)
    arrays = _named(what, x, [one.name for one in getattr(model, "inputs", None) or []], "input")
    return next(iter(arrays.values())) if len(x) == 1 else arrays


def _named(what: str, arrays: Sequence[Any], names: Sequence[str], noun: str) -> dict[str, np.ndarray]:
    """Return arrays by the names of the model's inputs or outputs.

    Args:
      what: the name of the argument that has the arrays, for messages.
      noun: "input" or "output", for messages.

    Raises:
      UserError: there are more or fewer arrays than names.
    """
    if len(names) != len(arrays):
        raise UserError(
            f"{what}: got {len(arrays)} arrays, and the model has {len(names) or 'no named'} {noun}s: give a dictionary that "
            f"maps the name of each {noun} to its array"
        )
    return {name: _as_array(f"{what}['{name}']", array) for name, array in zip(names, arrays)}


def _as_array(name: str, value: Any) -> np.ndarray:
    """Return an array [N, ...]. Raises UserError, with the name of the value, if it can't become an array."""
    try:
        return np.asarray(checked_rows(name, value))
    except Malformed as error:
        raise UserError(str(error)) from error


def _of_frame(what: str, frame: Any) -> np.ndarray:
    """Return the numbers of a pandas frame, [N, columns], or of one of its columns, [N], as Keras takes them.

    They are integers if all columns contain integers, else float32.
    """
    kinds = frame.dtypes.items() if hasattr(frame, "columns") else [(frame.name, frame.dtype)]
    for name, dtype in kinds:
        if getattr(dtype, "kind", "O") not in "iufb":
            raise UserError(
                f"{what}: column '{one_line(str(name), 100)}' is {dtype}: give numbers, or, for a model with an input for each "
                "column, a dictionary of columns"
            )
    values: np.ndarray = frame.to_numpy()
    return values.astype(np.float32) if values.dtype.kind in "fOb" else values


def _by_output(model: keras.Model, what: str, y: Any) -> Arrays:
    """Return targets as an array, or as a dictionary of arrays by the names of the model's outputs."""
    if isinstance(y, Mapping):
        return {str(name): _as_array(f"{what}['{name}']", array) for name, array in y.items()}
    if isinstance(y, tuple) or (isinstance(y, list) and len(y) > 1 and hasattr(y[0], "shape") and y[0].shape):
        if len(y) == 1:
            return _as_array(what, y[0])
        return _named(what, y, getattr(model, "output_names", None) or [], "output")
    return _as_array(what, y)


def _weight(name: str, weight: object) -> np.ndarray | None:
    if isinstance(weight, Mapping | tuple):
        raise UserError(f"{name}: got several arrays of weights: give one weight for each example")
    return None if weight is None else _as_array(name, weight)


def evaluate(model: keras.Model, examples: Examples) -> dict[str, float]:
    """Return the loss and the metrics of a model, under Keras's names, as `Model.evaluate` measures them."""
    # Keras takes strings only as tensors.
    x = keras.tree.map_structure(lambda one: tf.constant(one) if one.dtype.kind in "OSU" else one, examples.x)
    found = model.evaluate(x, examples.y, verbose=0, return_dict=True)
    return {name: float(value) for name, value in found.items()}
