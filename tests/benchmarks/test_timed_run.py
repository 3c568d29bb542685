import signal

import numpy as np
import pytest

from benchmarks import timed_run
from benchmarks.timed_run import TimedView, UsageAt, figures
from ps_cluster.config import build_config
from ps_cluster.config.tasks import Task
from ps_cluster.report.run_state import TaskState
from ps_cluster.runs.ledger import ROW
from ps_cluster.runs.result_rows import WorkerRow
from ps_cluster.runs.run_dir import RunDir
from ps_cluster.system.stop_signals import StopRequests
from tests.helpers.data import only_named
from tests.helpers.rows import progress_row

CONFIG = build_config(None, {"cluster.workers": 2, "model.precision": "bfloat16"})
SUMMARY = {
    "parameter_servers": [{"parameters": 600}, {"parameters": 400}],
    "staleness": {"mean": 1.0, "p50": 1, "p95": 2, "max": 3, "histogram": {}},
    "peak_memory_bytes": 10**9,
}


def ledger(steps):
    """A step every half second of two workers in turn, each of which pulls, computes and pushes for 0.1 s."""
    rows = np.zeros(steps, ROW)
    rows["worker"] = np.arange(steps) % 2
    applied = 0.5 * (1 + np.arange(steps))
    for offset, name in (
        (0.3, "asked"),
        (0.3, "admitted"),
        (0.2, "pulled"),
        (0.1, "computed"),
        (0.1, "pushed"),
        (0, "entered"),
    ):
        rows[f"{name}_time"] = applied - offset
    rows["applied_time"] = applied
    return rows


def test_figures_are_those_of_the_steps_between_two_looks():
    begin, end = UsageAt(2.0, {"chief": 1.0, "worker": 10.0}), UsageAt(12.0, {"chief": 1.5, "worker": 26.0})
    found = figures(CONFIG, ledger(40), begin, end, SUMMARY)
    assert found["steps_per_second"] == 2.0 and found["examples_per_second"] == 256
    assert found["bytes_per_second"] == 2 * 2 * 1000 * 2, "pulled and pushed, in bfloat16"
    assert found["cpu_seconds_per_step"] == {"chief": 0.025, "worker": 0.8}
    assert found["pull_seconds"] == pytest.approx(0.1) and found["push_seconds"] == pytest.approx(0.1)
    assert sum(found["shares"].values()) == pytest.approx(1)
    assert found["staleness"] == {"mean": 1.0, "p95": 2, "max": 3} and found["peak_memory_bytes"] == 10**9


def test_looks_without_a_step_between_them_are_told():
    with pytest.raises(RuntimeError, match="no update within 3.0 s"):
        figures(CONFIG, ledger(4), UsageAt(5.0, {}), UsageAt(8.0, {}), SUMMARY)


@pytest.fixture
def now(monkeypatch):
    """The time that the view sees, in a list of one."""
    now = [0.0]
    monkeypatch.setattr(timed_run.time, "time", lambda: now[0])
    monkeypatch.setattr(timed_run, "cpu_seconds", lambda pid: float(pid))
    return now


def test_run_is_stopped_once_the_seconds_after_the_last_workers_first_update(tmp_path, now):
    view = TimedView(10.0)
    view.start(CONFIG, RunDir(tmp_path), only_named("cifar10", tmp_path, 50_000, 10_000))
    view.tasks([TaskState(Task(kind, 0), pid, "") for kind, pid in (("ps", 1), ("worker", 2), ("worker", 3))])
    requests = []
    with StopRequests() as stop:
        for now[0], phase, workers in ((0, "building", 0), (1, "training", 1), (2, "training", 2), (11.9, "training", 2),
                                       (12, "training", 2), (13, "training", 2), (14, "draining", 2)):  # fmt: skip
            rows = [WorkerRow(index=index, pid=9, updates=1) for index in range(workers)]
            view.progress(progress_row(phase=phase, workers=rows, total=9))
            requests.append(stop.count)
    assert requests == [0, 0, 0, 0, 1, 1, 1] and stop.last_signal == signal.SIGINT
    assert [look.time for look in view.looks] == [2, 11.9, 12, 13] and view.seconds == 11
    assert view.looks[0].cpu_seconds == {"ps": 1.0, "worker": 5.0}
