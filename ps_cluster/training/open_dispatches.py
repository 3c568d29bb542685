"""Which dispatches are not done yet, and which process is at each of them. No TensorFlow."""

from __future__ import annotations

import numpy as np


class _Dispatch:
    pid: int | None = None  # of who had its newest update


class OpenDispatches:
    """The dispatches of which steps are not applied. One that is done takes no memory."""

    def __init__(self):
        self._of_step: dict[int, _Dispatch] = {}

    def add(self, steps: np.ndarray) -> None:
        """`steps` (int64 [k]) were handed out as one dispatch."""
        self._of_step |= dict.fromkeys(steps.tolist(), _Dispatch())

    def take(self, rows: np.ndarray) -> None:
        """Take in steps that were applied, a structured array [k] of ROW."""
        for step, pid in zip(rows["step"].tolist(), rows["pid"].tolist()):
            if (dispatch := self._of_step.pop(step, None)) is not None:
                dispatch.pid = int(pid)

    def pids(self) -> list[int | None]:
        """Return for each open dispatch the pid of the process that had its newest update; None where it has none."""
        return [dispatch.pid for dispatch in dict.fromkeys(self._of_step.values())]
