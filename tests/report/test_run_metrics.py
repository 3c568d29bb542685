"""The metrics of a run, made from rows, states and notices by hand."""

import os

import pytest
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from ps_cluster.config import build_config
from ps_cluster.config.tasks import Task
from ps_cluster.report.metrics import RunMetrics
from ps_cluster.report.progress import ProgressView
from ps_cluster.report.run_state import TaskState
from ps_cluster.runs import checkpoints
from ps_cluster.runs.logs import TASK_RESTARTED
from ps_cluster.runs.result_rows import STALENESS_BOUNDS, StalenessBuckets
from ps_cluster.runs.run_dir import RunDir
from tests.helpers.data import only_named
from tests.helpers.rows import progress_row, score_row


@pytest.fixture
def metrics():
    return RunMetrics(ProgressView(lambda: 0.0), "launcher-0")


def scraped(metrics):
    """Return (name, *label values in the order of their labels' names) → value, as a reader of the text finds them."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(metrics)
    families = text_string_to_metric_families(generate_latest(registry).decode())
    return {
        (one.name, *dict(sorted(one.labels.items())).values()): one.value
        for family in families
        for one in family.samples
    }


def worker(index, pid, updates):
    return {"index": index, "pid": pid, "updates": updates}


def states(*pids, state="running"):
    return [TaskState(Task("worker", index), pid, state) for index, pid in enumerate(pids)]


def test_before_the_first_row_counters_are_zero_and_gauges_absent(metrics):
    found = scraped(metrics)
    assert found["ps_cluster_updates_total",] == 0 and ("ps_cluster_step",) not in found


def test_a_resumed_run_counts_from_its_first_row_and_says_its_whole_step(metrics):
    metrics.progress(progress_row(1000, phase="connecting"))
    metrics.progress(progress_row(1040, scheduled=1043, total=2000, dispatches=[None, 7]))
    found = scraped(metrics)
    assert (found["ps_cluster_updates_total",], found["ps_cluster_step",]) == (40, 1040)
    assert (found["ps_cluster_updates_outstanding",], found["ps_cluster_dispatches_open",]) == (3, 2)
    assert found["ps_cluster_step_target",] == 2000 and found["ps_cluster_phase", "training"] == 1


def test_a_rollback_never_lets_a_counter_fall(metrics):
    for applied in (0, 100, 80, 130):
        metrics.progress(progress_row(applied, examples=applied * 8, workers=[worker(0, 5, applied)]))
    found = scraped(metrics)
    assert (found["ps_cluster_updates_total",], found["ps_cluster_updates_rolled_back_total",]) == (150, 20)
    assert found["ps_cluster_examples_total",] == 1200 and found["ps_cluster_worker_updates_total", "0"] == 150


def test_processes_of_one_worker_are_one_worker(metrics):
    metrics.progress(progress_row(0))
    metrics.progress(progress_row(9, workers=[worker(0, 5, 2), worker(0, 6, 3), worker(1, 7, 4)]))
    found = scraped(metrics)
    assert [found["ps_cluster_worker_updates_total", index] for index in "01"] == [5, 4]


def test_the_histogram_of_staleness_is_cumulative_and_has_all_steps(metrics):
    counts = [0] * (len(STALENESS_BOUNDS) + 1)
    metrics.progress(progress_row(0, staleness=StalenessBuckets(counts=counts, sum=0)))
    counts[1], counts[2], counts[-1] = 3, 2, 1
    metrics.progress(progress_row(6, staleness=StalenessBuckets(counts=counts, sum=2007)))
    found = scraped(metrics)
    bounds = ("0.0", "1.0", "2.0", "1024.0", "+Inf")
    assert [found["ps_cluster_staleness_bucket", bound] for bound in bounds] == [0, 3, 5, 5, 6]
    assert (found["ps_cluster_staleness_count",], found["ps_cluster_staleness_sum",]) == (6, 2007)


def test_a_new_pid_of_a_task_is_a_restart_and_an_ended_task_is_down(metrics):
    metrics.tasks(states(10, 11))
    metrics.tasks(states(10, 11))
    metrics.tasks([*states(10, 12)[1:], *states(10, state="exit code 1")])
    found = scraped(metrics)
    assert [found["ps_cluster_task_restarts_total", index, "worker"] for index in "01"] == [0, 1]
    assert [found["ps_cluster_task_up", index, "worker"] for index in "01"] == [0, 1]


def test_notices_are_counted_by_their_event(metrics):
    for line in ("x", TASK_RESTARTED("a"), TASK_RESTARTED("b")):
        metrics.notice(line)
    assert scraped(metrics)["ps_cluster_log_lines_total", "task_restarted", "warning"] == 2


def test_the_newest_score_and_the_times_of_what_was_saved_are_told(metrics, tmp_path):
    run_dir = RunDir.create(tmp_path / "run")
    metrics.start(build_config(None, {}), run_dir, only_named("synthetic", tmp_path, 100, 10))
    for step in (8, 9):
        path = checkpoints.path_of(run_dir.checkpoints, step)
        path.touch()
        os.utime(path, (step, step))
    metrics.evaluation(score_row(8))
    found = scraped(metrics)
    assert found["ps_cluster_saved_timestamp_seconds", "checkpoints"] == 9
    assert ("ps_cluster_saved_timestamp_seconds", "snapshots") not in found
    assert (found["ps_cluster_scored_step",], found["ps_cluster_test_accuracy_ratio",]) == (8, 0.5)
