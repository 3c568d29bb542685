"""Convert a checkpoint for another number of parameter servers. No TensorFlow.

Each shard accepts the steps in a different order. So a checkpoint can be divided into another number of shards only
if all shards have accepted the same steps; such a state is called aligned. The last checkpoint of a completed run is
aligned, and so is a checkpoint that is written while no step is under way. The journals do not change:
`journal.history_of` finds the rows of a shard.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np

from ps_cluster.notices import ignore
from ps_cluster.runs.checkpoint_arrays import ACCEPTED_STEPS, COUNTERS, LEDGER, WAITING, form_of
from ps_cluster.runs.checkpoints import Checkpoint, CheckpointError, load_to_resume
from ps_cluster.runs.ledger import COUNTS

Arrays = Mapping[str, np.ndarray]

_SAME_ON_ALL_SHARDS = [COUNTS.index(name) for name in ("version", "accepted")]


def is_aligned(arrays: Arrays) -> bool:
    """Return whether a checkpoint is aligned: all its shards have accepted the same steps."""
    if not arrays.keys() >= LEDGER:
        return False
    alike = (arrays[COUNTERS][:, _SAME_ON_ALL_SHARDS], arrays[ACCEPTED_STEPS])
    return not len(arrays[WAITING]) and all(bool((rows == rows[:1]).all()) for rows in alike)


def newest_aligned(directory: Path) -> int | None:
    """Return the step of the newest aligned checkpoint in a directory (see `is_aligned`); None if there is none.

    Raises the same errors as `load_to_resume`.
    """

    def check(checkpoint: Checkpoint) -> None:
        if not is_aligned(checkpoint.arrays):
            raise CheckpointError("its shards have not applied the same steps")

    checkpoint = load_to_resume([directory], ignore, check)
    return checkpoint.step if checkpoint else None


def resharded(checkpoint: Checkpoint, shards: int) -> Checkpoint:
    """Return a checkpoint converted for this number of shards. It has to be aligned, see `is_aligned`."""
    before = len(checkpoint.arrays[COUNTERS])
    if shards == before:
        return checkpoint
    arrays = {name: form_of(name).resharded(array, shards) for name, array in checkpoint.arrays.items()}
    return replace(checkpoint, arrays=arrays)
