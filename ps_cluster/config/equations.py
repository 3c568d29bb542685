"""Define what `equation` methods take and return. The proof (the check of a run) calls them to compute updates again.

Optimizer rules, staleness methods and modes have a method `equation`, which uses numpy, float64 and the equation of the
paper. The parameter server has computed the same update with TensorFlow's kernels in float32 (`server/`,
`training/modes/`). The proof compares both results. If `equation` of a rule or method returns None, the proof reports
that it could not compute such updates again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

Slots = Mapping[str, np.ndarray]
"""Maps the name of a slot to its values, float64 [k], or [1] for a slot that is a single number of the shard."""


class Matrix(NamedTuple):
    """The position of a matrix in a vector, where the matrix is stored row by row."""

    begin: int
    rows: int
    columns: int

    @property
    def size(self) -> int:
        return self.rows * self.columns

    @property
    def end(self) -> int:
        return self.begin + self.size


@dataclass(frozen=True)
class UpdateParts:
    """The inputs of one update, at k chosen positions of a shard's weights and slots. All arrays are float64.

    Attributes:
      weights: the weights before the update, [k].
      gradient: the gradient, [k].
      slots: the slots of the rule, the staleness method and the mode, before the update.
      learning_rate: the learning rate of the update.
      updates_before: the number of updates that the shard had applied before.
      factors: the factor of each weight's learning rate, [k].
      decay: the share of each weight that weight decay removes per unit of learning rate, [k].
      gradient_scale: the factor by which the update multiplies `gradient`, a number or [k]; None means 1.
      matrices: the positions, among the k values, of the matrices that the rule needs as a whole, in order.
    """

    weights: np.ndarray
    gradient: np.ndarray
    slots: Slots
    learning_rate: float
    updates_before: int
    factors: np.ndarray
    decay: np.ndarray
    gradient_scale: np.ndarray | float | None = None
    matrices: Sequence[Matrix] = ()

    @property
    def scaled_gradient(self) -> np.ndarray:
        """The gradient, scaled by `gradient_scale`."""
        scaled: np.ndarray = self.gradient if self.gradient_scale is None else self.gradient_scale * self.gradient
        return scaled

    @property
    def decayed_weights(self) -> np.ndarray:
        """The weights after their decay: w - gradient_scale * learning_rate * decay * w."""
        gradient_scale = 1.0 if self.gradient_scale is None else self.gradient_scale
        decayed: np.ndarray = self.weights * (1 - gradient_scale * self.learning_rate * self.decay)
        return decayed


@dataclass(frozen=True)
class ArrivedParts:
    """The inputs of a staleness method's equation for one gradient that a shard has received.

    They are taken at k chosen positions of the shard. All arrays are float64.
    """

    gradient: np.ndarray  # [k], as received
    staleness: int  # the number of updates that the shard applied between the pull and the push
    updates_before: int  # as in `UpdateParts`
    workers: int  # the number of workers that train, or whose staleness is emulated
    weights: np.ndarray  # [k], at the moment of the push
    slots: Slots  # the slots of the method; "pulled" holds the weights of the worker's last pull

    @property
    def moved(self) -> np.ndarray:
        """The weights at the moment of the push, minus those of the worker's last pull, [k]."""
        moved: np.ndarray = self.weights - self.slots["pulled"]
        return moved


@dataclass(frozen=True)
class CorrectedParts:
    """The result of a staleness method.

    Attributes:
      gradient: the gradient to apply, [k].
      gradient_scale: the factor by which the update multiplies `gradient`, a number or [k]; None means 1.
      slots: the changed slots of the method, by name; None if no slot has changed.
    """

    gradient: np.ndarray
    gradient_scale: np.ndarray | float | None = None
    slots: Slots | None = None


def mean_of(vectors: Sequence[np.ndarray]) -> np.ndarray:
    """Return the mean of vectors [n]. A single vector is returned without a copy, because it may be very large."""
    mean: np.ndarray = vectors[0] if len(vectors) == 1 else np.mean(vectors, axis=0)
    return mean
