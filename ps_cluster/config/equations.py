"""Define the inputs and results of the numpy equations with which the proof computes an update again.

Optimizer rules, staleness methods and modes have a method `equation`. It computes in float64, with the equation of its
paper, what the parameter server computes in float32 with TensorFlow's kernels (`server/`, `training/modes/`). The proof
compares the two. If `equation` returns None, the proof reports that such updates could not be computed again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

Slots = Mapping[str, np.ndarray]
"""Name → float64 [k], or [1] for a single number of the shard."""


@dataclass(frozen=True)
class UpdateParts:
    """The inputs of one update, at k positions of a shard's vectors. All arrays are float64.

    Attributes:
      weights: [k], before the update.
      gradient: [k].
      slots: the slots of rule, method and mode, before the update.
      learning_rate: the learning rate of the update.
      updates_before: the number of updates that the shard had applied before.
      factors: [k], the learning-rate factors of the weights.
      decay: [k], the share of each weight that decay removes per unit of learning rate.
      share: the factor by which the gradient counts, a number or [k]; None: it counts fully.
      is_whole: whether the k positions are the complete vector, in order.
    """

    weights: np.ndarray
    gradient: np.ndarray
    slots: Slots
    learning_rate: float
    updates_before: int
    factors: np.ndarray
    decay: np.ndarray
    share: np.ndarray | float | None = None
    is_whole: bool = False

    @property
    def shared_gradient(self) -> np.ndarray:
        """The gradient, scaled by `share`."""
        shared: np.ndarray = self.gradient if self.share is None else self.share * self.gradient
        return shared

    @property
    def decayed_weights(self) -> np.ndarray:
        """The weights after their decay: w - share x learning rate x decay x w."""
        share = 1.0 if self.share is None else self.share
        decayed: np.ndarray = self.weights * (1 - share * self.learning_rate * self.decay)
        return decayed


@dataclass(frozen=True)
class ArrivedParts:
    """The inputs of a staleness method's equation: a gradient that arrives, at k positions. All arrays are float64.

    Attributes:
      gradient: [k], as received.
      staleness: the number of updates that the shard applied between the pull and the push.
      updates_before: as in `UpdateParts`.
      workers: the number of workers that train, or whose staleness is emulated.
      weights: [k], at the moment of the push.
      slots: the slots of the method; "pulled" holds the weights of the worker's last pull.
    """

    gradient: np.ndarray
    staleness: int
    updates_before: int
    workers: int
    weights: np.ndarray
    slots: Slots

    @property
    def moved(self) -> np.ndarray:
        """The change of the weights since the worker's pull, [k]."""
        moved: np.ndarray = self.weights - self.slots["pulled"]
        return moved


@dataclass(frozen=True)
class CorrectedParts:
    """The result of a staleness method: the gradient to apply [k], its share, and the slots that have changed."""

    gradient: np.ndarray
    share: np.ndarray | float | None = None
    slots: Slots | None = None


def mean_of(vectors: Sequence[np.ndarray]) -> np.ndarray:
    """Return the mean of vectors [n]. A single vector is returned itself, because it may be too large to copy."""
    mean: np.ndarray = vectors[0] if len(vectors) == 1 else np.mean(vectors, axis=0)
    return mean
