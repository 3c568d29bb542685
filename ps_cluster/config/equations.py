"""What an update is made of, in numpy, for equations by which it can be computed again.

An optimizer rule, a staleness method and a mode each have a method `equation`. It computes in float64, by the equation of
its source, what the parameter server computes in float32 with TensorFlow's kernels (`server/`, `training/modes/`). The proof
compares the two. One without an equation returns None, and the proof says that it could not compute its updates again.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

Slots = Mapping[str, np.ndarray]
"""Name → float64 [k], or [1] for a single number of the shard."""


@dataclass(frozen=True)
class UpdateParts:
    """What one update is made of, at k positions of a shard's vectors. All arrays are float64.

    Attributes:
      weights: [k], before the update.
      gradient: [k].
      slots: those of rule, method and mode, before the update.
      learning_rate: of the update.
      updates_before: how many updates the shard had applied before.
      factors: [k], the learning-rate factors of the weights.
      decay: [k], the share of each weight that decay removes per unit of learning rate.
      share: by how much the gradient counts, a number or [k]; None where it counts whole.
      is_whole: whether the k positions are all of the vector, in order.
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
        """The gradient, scaled by the share that it counts for."""
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
    """A gradient that arrives, at k positions, for the equation of a staleness method. All arrays are float64.

    Attributes:
      gradient: [k], as received.
      staleness: the updates that the shard applied between the pull and the push.
      updates_before: as in `UpdateParts`.
      workers: those whose staleness is usual.
      weights: [k], at the moment of the push.
      slots: those of the method; "pulled" are the weights of the worker's last pull.
    """

    gradient: np.ndarray
    staleness: int
    updates_before: int
    workers: int
    weights: np.ndarray
    slots: Slots

    @property
    def moved(self) -> np.ndarray:
        """How far the weights have moved since the worker's pull, [k]."""
        moved: np.ndarray = self.weights - self.slots["pulled"]
        return moved


@dataclass(frozen=True)
class CorrectedParts:
    """What a staleness method makes of a gradient: the gradient to apply [k], its share, and slots that have changed."""

    gradient: np.ndarray
    share: np.ndarray | float | None = None
    slots: Slots | None = None
