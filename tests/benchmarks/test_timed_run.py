import numpy as np
import pytest

from benchmarks.timed_run import StartView, rate_between
from ps_cluster.config import build_config
from ps_cluster.errors import RunFailed
from ps_cluster.runs.result_rows import WorkerRow
from ps_cluster.runs.run_dir import RunDir
from tests.helpers.data import only_named
from tests.helpers.rows import progress_row


def test_a_rate_is_that_of_the_updates_in_the_interval():
    applied = 0.5 * (1 + np.arange(40))  # an update every half second, up to second 20
    assert rate_between(applied, 2.0, 12.0) == 2.0
    with pytest.raises(RunFailed, match="no update within 3.0 s"):
        rate_between(applied, 21.0, 24.0)


def test_the_time_begins_once_when_every_worker_has_an_update(tmp_path):
    begun = []
    view = StartView(2, lambda: begun.append(len(seen)))
    view.start(build_config(), RunDir(tmp_path), only_named("cifar10", tmp_path, 50_000, 10_000))
    seen = []
    for phase, workers in (("building", 2), ("training", 1), ("training", 2), ("training", 2)):
        seen.append(phase)
        rows = [WorkerRow(index=index, pid=9, updates=1) for index in range(workers)]
        view.progress(progress_row(phase=phase, workers=rows, total=9))
    assert begun == [3] and view.all_train_since is not None
