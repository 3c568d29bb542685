"""Compute the means of loss and metric over the updates of an epoch, while a run trains."""

from __future__ import annotations

import numpy as np

from ps_cluster.runs.journal import JournalTail
from ps_cluster.runs.run_dir import RunDir


class UpdateMeans:
    """Reads the journal of the first parameter server, which has a row for each update in the order in which they were applied.

    Once a checkpoint is on the disk, the rows of all updates in it are there too.
    """

    def __init__(self, run_dir: RunDir, metric: str):
        """Begin before the first update. `metric`: the name under which the metric of the updates is returned."""
        self._rows, self._metric = JournalTail(run_dir, 0), metric
        self._examples = 0  # the examples of the epochs so far

    def up_to(self, examples: int) -> dict[str, float]:
        """Return the mean loss and metric of the updates since the last call; {} if there were none.

        Args:
          examples: the number of examples on which the run has trained up to the end of these updates.
        """
        self._rows.look()
        rest = examples - self._examples
        self._examples = examples
        rows = self._rows.take(int(np.searchsorted(np.cumsum(self._rows.waiting["examples"]), rest, side="right")))
        if not len(rows):
            return {}
        metric = float(rows["metric"].sum() / max(1.0, rows["examples"].sum()))
        return {"loss": float(rows["loss"].mean()), self._metric: metric}
