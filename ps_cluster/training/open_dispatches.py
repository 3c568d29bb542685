"""Track the dispatches that are not done, and the process that works on each. No TensorFlow."""

from __future__ import annotations

import numpy as np


class _Dispatch:
    pid: int | None = None  # of the process that pushed its newest update


class OpenDispatches:
    """The dispatches with steps that are not yet applied. A finished one takes no memory."""

    def __init__(self):
        self._of_step: dict[int, _Dispatch] = {}

    def add(self, steps: np.ndarray) -> None:
        """Add `steps` (int64 [k]) as one dispatch."""
        self._of_step |= dict.fromkeys(steps.tolist(), _Dispatch())

    def take(self, rows: np.ndarray) -> None:
        """Remove the steps of `rows`, which were applied: a structured array [k] of ROW."""
        for step, pid in zip(rows["step"].tolist(), rows["pid"].tolist()):
            if (dispatch := self._of_step.pop(step, None)) is not None:
                dispatch.pid = int(pid)

    def pids(self) -> list[int | None]:
        """Return for each open dispatch the pid that pushed its newest update; None where it has no update yet."""
        return [dispatch.pid for dispatch in dict.fromkeys(self._of_step.values())]
