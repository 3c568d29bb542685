"""Compute the means of loss and metric over the updates of an epoch, while a run trains."""

from __future__ import annotations

import numpy as np

from ps_cluster.runs.journal import JournalTail
from ps_cluster.runs.run_dir import RunDir


class UpdateMeans:
    """Reads the journal of the first parameter server, which has a row for each update in the order in which they were applied.

    All rows that a checkpoint counts are on the disk before the checkpoint is.
    """

    def __init__(self, run_dir: RunDir, metric: str):
        """Begin before the first update. `metric`: the name under which the metric of the updates is returned."""
        self._rows, self._metric = JournalTail(run_dir, 0), metric
        self._examples = 0  # of the epochs so far

    def up_to(self, examples: int) -> dict[str, float]:
        """Return the mean loss and metric of the updates since the last call. Without an update there are no means.

        Args:
          examples: how many examples the updates of the whole run have trained on by then.
        """
        self._rows.look()
        rest = examples - self._examples
        self._examples = examples
        rows = self._rows.take(int(np.searchsorted(np.cumsum(self._rows.waiting["examples"]), rest, side="right")))
        if not len(rows):
            return {}
        metric = float(rows["metric"].sum() / max(1.0, rows["examples"].sum()))
        return {"loss": float(rows["loss"].mean()), self._metric: metric}
