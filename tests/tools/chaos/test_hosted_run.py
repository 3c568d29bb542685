"""Runs on hosts, without any training: where tasks are, what is unsaved, and a host that vanishes."""

from types import SimpleNamespace

import numpy as np
import pytest

from ps_cluster.config.tasks import Task
from ps_cluster.files.json_rows import append_row
from ps_cluster.runs import checkpoints
from ps_cluster.runs.checkpoints import CheckpointMeta
from ps_cluster.runs.result_rows import ProgressRow
from ps_cluster.runs.run_dir import RunDir
from ps_cluster.runs.times import TrainingTimes
from ps_cluster.tools.chaos.hosted_run import HostedRun, assign_hosts, unsaved_seconds
from ps_cluster.tools.chaos.kinds import FAULTS
from ps_cluster.tools.chaos.settings import ChaosSettings


def places(mode, hosts=3):
    machines = [SimpleNamespace(name=f"host-{number}") for number in range(hosts)]
    return assign_hosts(ChaosSettings(workers=3, mode=mode).topology, machines)


@pytest.mark.parametrize(
    ("mode", "expected"),
    [
        (
            "async",
            {"chief-0": "host-0", "ps-0": "host-0", "evaluator-0": "host-0",
             "worker-0": "host-1", "worker-1": "host-2", "worker-2": "host-1"},
        ),
        # The first worker leads, so it is where the run directory is.
        ("sync", {"evaluator-0": "host-0", "worker-0": "host-0", "worker-1": "host-1", "worker-2": "host-2"}),
    ],
)  # fmt: skip
def test_workers_share_the_hosts_that_do_not_lead(mode, expected):
    assert {str(task): host.name for task, host in places(mode).items()} == expected


@pytest.mark.parametrize(
    ("last_update", "unsaved"),
    [
        (49.5, 2.5),
        # Nothing was applied for 20 s before the save, then something was, which a dying leader takes along.
        (30.0, 22.0),
        (None, 52.0),  # no update was applied before the save
    ],
)
def test_unsaved_is_what_came_after_the_last_update_in_the_newest_state_however_young_its_file(
    tmp_path, last_update, unsaved
):
    files = RunDir(tmp_path)
    times = TrainingTimes(seconds=50.0, first_update=last_update and 1.0, last_update=last_update)
    arrays = {name: np.zeros(1, np.float32) for name in ("weights", "statistics")}
    checkpoints.save(files.snapshots, checkpoints.Checkpoint(7, arrays, CheckpointMeta(times=times)), keep=1)
    files.progress.parent.mkdir()
    append_row(files.progress, ProgressRow(phase="training", monotonic=201.0, times=TrainingTimes(seconds=51.0)))
    assert unsaved_seconds(files, 100.0, 202.0) == unsaved


def test_without_a_state_all_since_the_run_began_is_unsaved(tmp_path):
    assert unsaved_seconds(RunDir(tmp_path), 100.0, 150.0) == 50.0


@pytest.mark.parametrize(("hosts", "reason"), [(2, "it needs workers on two hosts"), (3, None)])
def test_a_host_vanishes_only_where_workers_are_left(hosts, reason):
    run = HostedRun.__new__(HostedRun)  # nothing is started
    run.places = places("async", hosts)
    assert FAULTS["host vanishes"].why_not(run) == reason


def test_a_host_may_vanish_while_one_of_its_workers_waits_to_be_started_again():
    """It has no process then, so whichever comes is a new one."""
    host = SimpleNamespace(vanish=lambda: None, restore=lambda: None)
    there, waiting = Task("worker", 0), Task("worker", 2)
    held, at_wait = set(), set()
    run = SimpleNamespace(
        places={there: host, waiting: host},
        running=lambda: {there: 12},
        restarter=SimpleNamespace(held=held),
    )
    scene = SimpleNamespace(
        hosted=run,
        victims={there: 12},
        now=lambda: 5.0,
        wait=lambda seconds: at_wait.update(held),
        worker_back=lambda *back: back,
    )
    injected = FAULTS["host vanishes"].inject(scene)
    assert injected.signs[1:] == [(there, 12), (waiting, 0)]
    assert at_wait == {there, waiting} and held == set()


def test_a_worker_that_never_comes_back_needs_another_one():
    run = SimpleNamespace(running=lambda: {Task("worker", 0): 1, Task("ps", 0): 2})
    assert FAULTS["worker never back"].why_not(run) == "it needs two workers"
