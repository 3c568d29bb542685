"""Read the loss and the metric of each update of a run while it trains, and compute their means over an epoch."""

from __future__ import annotations

import numpy as np

from ps_cluster.files.reading import open_regular
from ps_cluster.runs.journal import RECORD
from ps_cluster.runs.ledger import NO_ROWS
from ps_cluster.runs.run_dir import RunDir


class UpdateMeans:
    """Reads the journal of the first parameter server, which has a row for each update in the order in which they were applied.

    All rows that a checkpoint counts are on the disk before the checkpoint is.
    """

    def __init__(self, run_dir: RunDir, metric: str):
        """Begin before the first update. `metric`: what the metric of an update is called."""
        self._run_dir, self._metric = run_dir, metric
        self._journal = ""  # the file name of the newest leader's rows, which continue those of the leader before
        self._read = self._examples = 0  # rows of that file; examples of the epochs so far
        self._waiting = NO_ROWS

    def up_to(self, examples: int) -> dict[str, float]:
        """Return the mean loss and metric of the updates since the last call, up to so many examples of the whole run.

        Rows that a failed leader has left behind its last state do not count. Without an update there are no means.
        """
        self._look()
        rest = examples - self._examples
        count = int(np.searchsorted(np.cumsum(self._waiting["examples"]), rest, side="right"))
        rows, self._waiting = self._waiting[:count], self._waiting[count:]
        self._examples = examples
        if not count:
            return {}
        metric = float(rows["metric"].sum() / max(1.0, rows["examples"].sum()))
        return {"loss": float(rows["loss"].mean()), self._metric: metric}

    def _look(self) -> None:
        for path in sorted(self._run_dir.journals.glob("shard-0-term-*.bin")):
            if path.name < self._journal:
                continue
            if path.name > self._journal:
                self._journal, self._read, self._waiting = path.name, 0, NO_ROWS
            with open_regular(path) as file:
                file.seek(self._read * RECORD.itemsize)
                content = file.read()
            records = np.frombuffer(content[: len(content) // RECORD.itemsize * RECORD.itemsize], RECORD)
            self._read += len(records)
            self._waiting = np.concatenate([self._waiting, records["row"]])
