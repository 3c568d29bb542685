"""Cut a checkpoint for another number of parameter servers. No TensorFlow.

Each slice takes in the steps in an order of its own. So other slices can be cut only where all have taken in the same
steps: such a state is even. The last checkpoint of a run that has come to its end is, and so is one that is written
while no step is under way. The journals stay as they are: where the rows of a new slice are, `journal.history_of` says.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np

from ps_cluster.run import checkpoints
from ps_cluster.run.checkpoints import ACCEPTED_STEPS, BY_SLICE, ONE_A_SLICE, Checkpoint, CheckpointError
from ps_cluster.run.ledger import COUNTS

Arrays = Mapping[str, np.ndarray]

LEDGER = {"counts", ACCEPTED_STEPS, "waiting"}  # the arrays that a resumed training needs beside its parameters
_ALIKE = [COUNTS.index(name) for name in ("version", "applied", "accepted")]


def is_even(arrays: Arrays) -> bool:
    """Return whether all slices of a checkpoint have taken in the same steps."""
    if not arrays.keys() >= LEDGER:
        return False
    alike = (arrays["counts"][:, _ALIKE], arrays[ACCEPTED_STEPS])
    return not len(arrays["waiting"]) and all(bool((rows == rows[:1]).all()) for rows in alike)


def newest_even(directory: Path) -> int | None:
    """Return the step of the newest even checkpoint in a directory, None without one. Errors as `load_to_go_on`."""

    def check(found: Checkpoint) -> None:
        if not is_even(found.arrays):
            raise CheckpointError("it is not even")

    found = checkpoints.load_to_go_on([directory], lambda line: None, check)
    return found.step if found else None


def resliced(found: Checkpoint, slices: int) -> Checkpoint:
    """Return an even checkpoint for so many slices; the same one where it has them already."""
    before = len(found.arrays["counts"])
    if slices == before:
        return found
    arrays = {name: _resliced(name, array, slices) for name, array in found.arrays.items()}
    return Checkpoint(found.step, arrays, found.meta)


def _resliced(name: str, array: np.ndarray, slices: int) -> np.ndarray:
    if name == "counts":  # refused and dropped pushes differ; what is told is the largest
        return np.repeat(array.max(axis=0, keepdims=True), slices, axis=0)
    if name in BY_SLICE or name.startswith(ONE_A_SLICE):
        return np.repeat(array[:1], slices, axis=0)
    return array
