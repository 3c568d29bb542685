"""Probes of a run, on a machine and a clock that are made by hand."""

import os
from dataclasses import replace

import pytest

from ps_cluster.config.tasks import Task
from ps_cluster.errors import UserError
from ps_cluster.files.json_rows import append_row
from ps_cluster.files.writing import write_json
from ps_cluster.report.health import HealthBounds, Surroundings, ask
from ps_cluster.runs import checkpoints
from ps_cluster.runs.run_dir import RunDir
from ps_cluster.runs.times import TrainingTimes
from ps_cluster.system.run_processes import life_of, state_of
from tests.helpers.rows import progress_row

NOW = 10_000.0
UP = Surroundings(
    state=lambda pid, root, life: "running", listens=lambda pid, port: True, age_s=lambda pid: 500.0, wall=lambda: NOW,
    host="here",
)  # fmt: skip
CHIEF, WORKER = Task("chief", 0), Task("worker", 1)


@pytest.fixture
def run_dir(tmp_path):
    """The directory of a run: a launcher, chief, ps and worker 1."""
    run_dir = RunDir.create(tmp_path / "run")
    rows = [
        {"type": kind, "index": index, "pid": pid, "address": f"h:{pid}"}
        for kind, index, pid in (("chief", 0, 10), ("ps", 0, 11), ("worker", 1, 12))
    ]
    write_json(run_dir.cluster, {"launcher": {"pid": 9, "life": "9@1"}, "tasks": rows})
    return run_dir


def train(run_dir, *, ago=0.0, still=0.0, phase="training", updates=True):
    """Append a row that is `ago` seconds old, whose last update was `still` seconds before it."""
    update = {"first_update": 1.0, "last_update": 100 - still, "resumed_update": 1.0, "stood": ((1.0, 100 - still),)}
    times = TrainingTimes(seconds=100.0, **(update if updates else {}))
    append_row(run_dir.progress, progress_row(40, phase, time=NOW - ago, total=90, times=times))


def health(run_dir, task=None, probe="ready", machine=UP, save_s=None):
    return ask(run_dir.root, probe, task, HealthBounds(60, save_s), machine)


def test_a_run_that_trains_is_alive_and_ready(run_dir):
    train(run_dir, ago=1, still=2)
    assert health(run_dir, probe="live").good and health(run_dir).good
    assert "40 of 90 updates, the last one 3.0 s ago" in health(run_dir).line


def test_a_folder_in_which_nothing_has_started_is_neither(tmp_path):
    assert health(RunDir(tmp_path / "none")).line.startswith("not ready: no process of a run has started")


@pytest.mark.parametrize("state", ["gone", "stopped"])
def test_a_process_that_is_gone_or_stopped_is_not_alive(run_dir, state):
    train(run_dir)
    machine = replace(UP, state=lambda pid, root, life: state if pid == 12 else "running")
    told = health(run_dir, WORKER, "live", machine)
    assert not told.good and told.line == f"not alive: worker-1 (pid 12) is {state}"
    assert health(run_dir, CHIEF, "live", machine).good


def test_a_worker_without_its_port_is_not_alive_and_a_leader_is_asked_for_rows_instead(run_dir):
    machine = replace(UP, listens=lambda pid, port: False)
    assert health(run_dir, WORKER, "live", machine).line == "not alive: nothing listens at port 12"
    assert health(run_dir, CHIEF, "live", machine).good


def test_a_leader_that_stopped_to_write_is_not_alive(run_dir):
    train(run_dir, ago=61)
    told = health(run_dir, CHIEF, "live").line
    assert told == "not alive: the last sign of life of the leader is 61.0 s old (--max-age 60)"
    assert health(run_dir, WORKER, "live").good, "the rows are not its business"


def test_a_leader_that_writes_without_an_update_is_alive_and_not_ready(run_dir):
    train(run_dir, still=70)
    assert health(run_dir, probe="live").good
    assert "the last one 70.0 s ago (--max-age 60)" in health(run_dir).line and not health(run_dir).good


@pytest.mark.parametrize(("phase", "updates"), [("connecting", True), ("building", True), ("training", False)])
def test_a_training_without_an_update_has_not_begun(run_dir, phase, updates):
    train(run_dir, phase=phase, updates=updates)
    assert health(run_dir, probe="live").good and not health(run_dir).good


def test_an_old_row_while_it_connects_or_scores_is_no_bad_sign(run_dir):
    train(run_dir, ago=400, phase="connecting")
    assert health(run_dir, probe="live").good
    train(run_dir, ago=400, phase="ended")
    assert health(run_dir).line.endswith("training is over: ended")


def test_a_row_from_before_the_process_tells_nothing_of_it(run_dir):
    train(run_dir, ago=100)
    young = replace(UP, age_s=lambda pid: 5.0)
    assert health(run_dir, CHIEF, "live", young).good and "not begun" in health(run_dir, CHIEF, machine=young).line


def test_the_age_of_what_is_saved_counts_only_if_it_is_bounded(run_dir):
    train(run_dir)
    assert health(run_dir).good and not health(run_dir, save_s=30).good
    path = checkpoints.path_of(run_dir.checkpoints, 3)
    path.touch()
    for age, good in ((20, True), (40, False)):
        os.utime(path, (NOW - age, NOW - age))
        assert health(run_dir, save_s=30).good is good


def test_a_task_that_the_run_does_not_have_is_refused(run_dir):
    with pytest.raises(UserError, match="--type, --index: got ps-7"):
        health(run_dir, Task("ps", 7))


def test_tasks_that_were_started_by_hand_are_asked_on_their_own_machine_only(tmp_path):
    run_dir = RunDir.create(tmp_path / "run")
    for kind, host, leads in (("chief", "here", True), ("worker", "there", False)):
        path = run_dir.task_file(Task(kind, 0))
        path.parent.mkdir(parents=True)
        who = {"type": kind, "index": 0, "pid": 7, "address": "a:1", "life": "7@1"}
        write_json(path, who | {"host": host, "leads": leads})
    train(run_dir)
    assert health(run_dir).line.startswith("ready: chief-0 (pid 7) is running")
    assert "no process of worker-0 has started" in health(run_dir, Task("worker", 0)).line


def test_a_process_is_known_by_its_life_and_not_by_a_pid_that_is_used_again(tmp_path):
    own = os.getpid()
    assert state_of(own, tmp_path, life_of(own)) == "running"
    assert state_of(own, tmp_path, f"{own}@1") == "gone"
