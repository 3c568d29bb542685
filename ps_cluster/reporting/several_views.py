"""Show a run to several at once."""

from __future__ import annotations

import time

from ps_cluster.config import RunConfig
from ps_cluster.data.packed import PackedDataset
from ps_cluster.reporting.dashboard import Row
from ps_cluster.reporting.progress import ProgressView
from ps_cluster.run.rows.scores import EvaluationRow
from ps_cluster.run.run_dir import RunDir


class SeveralViews(ProgressView):
    """Passes every event on to each view, in their order."""

    def __init__(self, *views: ProgressView):
        super().__init__(time.monotonic)
        self._views = views

    def start(self, config: RunConfig, run_dir: RunDir, dataset: PackedDataset) -> None:
        for view in self._views:
            view.start(config, run_dir, dataset)

    def notice(self, line: str) -> None:
        for view in self._views:
            view.notice(line)

    def tasks(self, tasks: list[Row]) -> None:
        for view in self._views:
            view.tasks(tasks)

    def progress(self, row: Row) -> None:
        for view in self._views:
            view.progress(row)

    def evaluation(self, row: EvaluationRow) -> None:
        for view in self._views:
            view.evaluation(row)

    def close(self) -> None:
        for view in self._views:
            view.close()
