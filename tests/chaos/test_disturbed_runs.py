"""Runs that are disturbed: where tasks are, when they start again, and what is unsaved; without any training."""

import os
import subprocess
import sys
import time
from types import SimpleNamespace

import numpy as np
import pytest
from rich.console import Console

from ps_cluster.config.tasks import Task
from ps_cluster.files.json_rows import append_row
from ps_cluster.runs import checkpoints
from ps_cluster.runs.checkpoints import CheckpointMeta
from ps_cluster.runs.result_rows import ProgressRow
from ps_cluster.runs.run_dir import RunDir
from ps_cluster.runs.times import TrainingTimes
from ps_cluster.tools.chaos import disturbed_runs
from ps_cluster.tools.chaos.disturbed_runs import OF_RUN, Restarter, TrainingRun, placed, unsaved_seconds
from ps_cluster.tools.chaos.kinds import FAULTS
from ps_cluster.tools.chaos.settings import ChaosSettings
from ps_cluster.tools.chaos.verdict import Evidence, complaints_of_hosted, make_report, print_report
from tests.helpers.processes import wait_until

WORKER, CHIEF = Task("worker", 0), Task("chief", 0)


class Processes:
    """Start processes that end when the test says so; the clock too is moved by hand."""

    def __init__(self):
        self.time, self.started, self.codes = 0.0, [], {}

    def start(self, task):
        process = type("Fake", (), {"pid": len(self.started), "poll": lambda process: self.codes.get(process.pid)})()
        self.started.append(task)
        return process

    def restarter(self, *tasks, **policy):
        restarter = Restarter(tasks, self.start, clock=lambda: self.time, **policy)
        restarter.poll()
        return restarter

    def end(self, restarter, code, pid=None):
        """End the newest process, and look until a restart would be due."""
        self.codes[len(self.started) - 1 if pid is None else pid] = code
        restarter.poll()
        self.time += 1.0
        restarter.poll()


@pytest.mark.parametrize(("code", "again"), [(0, 0), (2, 0), (3, 0), (75, 6), (-9, 6), (143, 6), (1, 3)])
def test_the_exit_code_says_how_often_a_task_is_started_again(code, again):
    processes = Processes()
    restarter = processes.restarter(WORKER)
    for _ in range(6):
        processes.end(restarter, code)
    assert restarter.restarts[WORKER] == len(processes.started) - 1 == again
    assert restarter.final == ({} if again == 6 else {WORKER: code})


def test_nothing_is_started_before_the_delay_is_over():
    processes = Processes()
    restarter = processes.restarter(WORKER, delay_s=5.0)
    processes.end(restarter, 75)
    assert len(processes.started) == 1 and restarter.running == {}
    processes.time = 5.0
    restarter.poll()
    assert len(processes.started) == 2 and restarter.running[WORKER].pid == 1


def test_a_task_that_is_held_starts_only_when_it_is_released_and_the_others_go_on():
    processes = Processes()
    restarter = processes.restarter(CHIEF, WORKER)
    restarter.hold([WORKER])
    processes.end(restarter, -9, pid=1)
    assert list(restarter.running) == [CHIEF]
    processes.end(restarter, 75, pid=0)
    assert list(restarter.running) == [CHIEF] and restarter.restarts[WORKER] == 0
    restarter.release([WORKER])
    restarter.poll()
    assert set(restarter.running) == {CHIEF, WORKER}


RESULT = {
    "updates": {
        "scheduled": 9,
        "applied": 9,
        "duplicated": 0,
        "lost": 0,
        "rolled_back": 4,
        "replays_refused": 1,
        "mixed": 0,
    },
    "gradients": {"applied": 9, "per_update": 1},
    "workers": [{"updates": 5}, {"updates": 4}],
    "rolled_back_seconds": 1.5,
}


def test_workers_share_the_hosts_that_do_not_lead():
    assert places_of("async") == {
        "chief-0": "host-0", "ps-0": "host-0", "evaluator-0": "host-0",
        "worker-0": "host-1", "worker-1": "host-2", "worker-2": "host-1",
    }  # fmt: skip


def test_a_worker_that_leads_is_where_the_run_directory_is():
    assert places_of("sync") == {
        "evaluator-0": "host-0", "worker-0": "host-0", "worker-1": "host-1", "worker-2": "host-2",
    }  # fmt: skip


def places_of(mode):
    machines = [SimpleNamespace(name=f"host-{number}") for number in range(3)]
    places = placed(ChaosSettings(workers=3, mode=mode).topology, machines)
    return {str(task): host.name for task, host in places.items()}


def test_a_run_on_hosts_gets_the_faults_of_hosts_and_none_that_need_the_launcher():
    names = {kind.name for kind in ChaosSettings(hosts=3).wanted()}
    assert names >= {"kill worker", "kill ps+chief", "host vanishes", "cut off chief"}
    assert not names & {"freeze worker", "hang up", "link cut", "fork server stopped"}
    assert not {kind.name for kind in ChaosSettings().wanted()} & {"host vanishes", "cut off chief"}


def test_where_workers_wait_for_each_other_none_is_expected_to_go_on_without_one():
    kinds = ("host vanishes", "worker never back", "kill worker")
    reason = "in mode sync-ps no worker goes on without the others"
    found = ChaosSettings(kinds=kinds, hosts=3, mode="sync-ps").wanted()
    assert list(found.values()) == [reason, reason, None]


@pytest.mark.parametrize(
    ("kind", "hosts", "reason"),
    [
        ("freeze ps", 3, "it needs the launcher, and with --hosts there is none"),
        ("host vanishes", None, "it needs --hosts"),
    ],
)
def test_a_fault_for_another_kind_of_run_is_skipped_with_the_reason(kind, hosts, reason):
    assert ChaosSettings(kinds=(kind,), hosts=hosts).wanted() == {FAULTS[kind]: reason}


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


@pytest.mark.parametrize(
    ("change", "steps", "unsaved", "left", "words"),
    [
        ({}, range(9), 1.5, [], None),
        ({}, range(9), 1.4, [], "1.5 s of training were rolled back, and the states lacked 1.4 s"),
        ({}, range(9), 1.5, ["worker-1"], "worker-1 did not end when training had ended"),
        ({}, [0, *range(8)], 1.5, [], "updates.csv holds 8 different steps in 9 rows"),
        ({"updates": RESULT["updates"] | {"lost": 1}}, range(9), 1.5, [], "the ledger of the disturbed run is not exact"),
    ],
)  # fmt: skip
def test_what_does_not_hold_of_a_run_on_hosts_is_told(change, steps, unsaved, left, words):
    found = complaints_of_hosted(RESULT | change, list(steps), unsaved, left)
    assert found == [] if words is None else [line for line in found if line.startswith(words)]


def test_the_table_says_where_tasks_were_and_how_often_each_was_restarted():
    places = {"ps-0": "host-0", "worker-0": "host-1"}
    hosted = {"places": places, "rolled_back_seconds": 1.5, "unsaved_seconds": 2.0}
    restarts = {"ps-0": 2, "worker-0": 0}
    report = make_report(Evidence({}, "chief-0", seconds=30, restarts=restarts, disturbed=RESULT, hosted=hosted), [])
    with Console(width=200) as console, console.capture() as printed:
        print_report(report, console)
    text = printed.get()
    assert "host-0: ps-0 · host-1: worker-0" in text
    assert "ps-0 2" in text and "worker-0 0" not in text
    assert "1.5 s of training; the states lacked 2.0 s" in text


def test_a_worker_that_never_comes_back_needs_another_one():
    run = SimpleNamespace(running=lambda: {Task("worker", 0): 1, Task("ps", 0): 2})
    assert FAULTS["worker never back"].why_not(run) == "it needs two workers"


def test_the_run_is_of_this_package_whatever_is_in_the_current_folder(tmp_path, monkeypatch):
    (tmp_path / "ps_cluster").mkdir()
    (tmp_path / "ps_cluster" / "__init__.py").write_text("raise SystemExit('another one')")
    monkeypatch.chdir(tmp_path)
    run = TrainingRun(tmp_path / "run", tmp_path / "output", ("--workers", "0"), tools=tmp_path)
    try:
        deadline = time.monotonic() + 60
        while run.exit_code is None and time.monotonic() < deadline:
            time.sleep(0.05)
    finally:
        run.stop()
    assert run.exit_code == 2 and "--workers" in run.last_line


def test_a_process_of_the_run_is_left_behind_and_a_shell_that_somebody_opened_in_its_folder_is_not(
    tmp_path, monkeypatch
):
    monkeypatch.setattr(disturbed_runs, "GONE_S", 0.0)
    run = TrainingRun(tmp_path / "run", tmp_path / "output", ["--workers", "none"], tools=tmp_path)
    wait_until(lambda: run.exit_code is not None)
    (folder := run.files.root / "logs").mkdir(parents=True)
    command = [sys.executable, "-S", "-c", "import time; print(flush=True); time.sleep(60)"]
    titled = f"import setproctitle; setproctitle.setproctitle('a task of --run-dir {run.files.root}'); {command[-1]}"
    own, others = dict(os.environ) | {OF_RUN: str(run.files.root)}, dict(os.environ) | {OF_RUN: str(tmp_path)}
    started = [
        subprocess.Popen([*command, str(run.files.root)], cwd=folder, env=env, stdout=subprocess.PIPE)
        for env in (own, others, None)
    ]
    started.append(subprocess.Popen([sys.executable, "-c", titled], cwd=folder, env=own, stdout=subprocess.PIPE))
    try:
        for process in started:
            process.stdout.readline()  # it has its environment
        assert sorted(run.left_behind()) == sorted(f"pid {started[index].pid}" for index in (0, 3))
    finally:
        for process in started:
            process.kill()
            process.communicate()
