"""The form of a data set's examples: named arrays of any dtype and shape. No TensorFlow."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import numpy as np

from ps_cluster.errors import UserError
from ps_cluster.files.malformed import Malformed

TARGET, WEIGHT = "target", "weight"  # the names of the arrays that are no inputs


@runtime_checkable
class Rows(Protocol):
    """A field of many examples: a numpy array, or anything that makes parts of one when it is asked for them."""

    @property
    def dtype(self) -> Any: ...

    @property
    def shape(self) -> tuple[int, ...]: ...

    def __len__(self) -> int: ...

    def __getitem__(self, part: slice, /) -> np.ndarray: ...


def check_rows(what: str, value: object) -> None:
    """Raise Malformed for a value that is no array with a row for each example."""
    refuse_sparse(what, value)
    if not isinstance(value, Rows) or not value.shape:
        raise Malformed(f"{what} is {type(value).__name__}, not an array with a row for each example")


def refuse_sparse(what: str, value: object) -> None:
    """Raise Malformed for a sparse matrix of scipy, which looks like an array and has no length."""
    if hasattr(value, "toarray"):
        raise Malformed(f"{what} is a sparse {type(value).__name__}: give an array, e.g. its toarray()")


@dataclass(frozen=True)
class Field:
    """One array of an example.

    Attributes:
      dtype: numpy's name of it, e.g. "uint8".
      shape: of one example, e.g. (32, 32, 3); () for a number.
      mean, std: of the training examples along the last axis (one value for a number), in the field's own units; empty
        if unknown.
      codes: of rows of codes, such as the categories of a table: how many there are in each place of the last axis, so
        that they go from 0 to less than that; empty if these are no codes.
    """

    dtype: str
    shape: tuple[int, ...]
    mean: tuple[float, ...] = ()
    std: tuple[float, ...] = ()
    codes: tuple[int, ...] = ()

    @property
    def row_bytes(self) -> int:
        """Bytes of one example."""
        return np.dtype(self.dtype).itemsize * math.prod(self.shape)

    @property
    def is_image(self) -> bool:
        """True for pixels: uint8 [height, width, channels], with 1 or 3 channels."""
        return self.dtype == "uint8" and len(self.shape) == 3 and self.shape[-1] in (1, 3)

    @property
    def network_dtype(self) -> str:
        """The dtype in which networks are given it: float32 for pixels, else its own."""
        return "float32" if self.is_image else self.dtype


@dataclass(frozen=True)
class ExampleSpec:
    """The form of an example: the inputs that a network is given, and the target that it shall predict.

    Attributes:
      inputs: name → field, in the network's order.
      target: the field to predict, e.g. a label.
      objective: name of the kind of task (catalogue/objectives.py), e.g. "classification".
      classes: names of the classes, by label; of a regression's target none.
      weight: the field that says how much an example counts, a float of shape (); None if all count alike.
    """

    inputs: Mapping[str, Field]
    target: Field
    objective: str = "classification"
    classes: tuple[str, ...] = ()
    weight: Field | None = None

    @property
    def outputs(self) -> int:
        """The number of values that a network returns for an example."""
        return len(self.classes) or math.prod(self.target.shape)

    @property
    def unit(self) -> str:
        """The word for several examples: "images" where each is one, else "examples"."""
        fields = list(self.inputs.values())
        return "images" if len(fields) == 1 and fields[0].is_image else "examples"

    def image(self, network: str) -> Field:
        """Return the only input, which is an image. Raises UserError, which names the network, for other examples."""
        fields = list(self.inputs.values())
        if len(fields) != 1 or not fields[0].is_image:
            raise UserError(f"model.name: '{network}' takes images (uint8 [height, width, 1 or 3]); got {self}")
        return fields[0]

    def __str__(self) -> str:
        """Return the inputs, e.g. "image uint8 [32, 32, 3]"."""
        return ", ".join(f"{name} {field.dtype} {list(field.shape)}" for name, field in self.inputs.items())
