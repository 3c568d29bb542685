"""Processes that are there and do nothing: found, or left alone where the whole run was stopped."""

import os
import signal
import time

import pytest

from tests.helpers import held_modes
from tests.helpers.finished_runs import assert_ledger_is_exact
from tests.helpers.processes import assert_none_left, of_run
from tests.helpers.real_cluster import (
    finish,
    start_run,
    stop,
    summary_of,
    tasks,
    unhurried,
    wait_for_training,
    wait_until_it_trains_without,
)

pytestmark = pytest.mark.cluster


def test_a_frozen_process_is_noticed_and_cannot_come_back(tmp_path):
    run_dir, frozen = tmp_path / "run", []
    process = start_run(run_dir, "--steps", 100_000, "--no-evaluator", *unhurried())
    wait_for_training(run_dir, updates=30)
    for victim in ("worker", "ps", "chief"):
        frozen.append(tasks(run_dir)[victim, 0]["pid"])
        os.kill(frozen[-1], signal.SIGSTOP)
        wait_until_it_trains_without(run_dir, {frozen[-1]})
    output = stop(process)
    for victim, pid in zip(("worker", "ps", "chief"), frozen):
        assert f"{victim}-0 has been frozen" in output
        with pytest.raises(ProcessLookupError):
            os.kill(pid, signal.SIGCONT)
    assert_none_left(run_dir)
    assert_ledger_is_exact(summary_of(run_dir))


def test_a_run_that_is_frozen_as_a_whole_goes_on_as_if_nothing_had_been(tmp_path):
    run_dir = tmp_path / "run"
    frozen_s = 14.0  # longer than the launcher lets a process be stopped, and than TensorFlow waits for a heartbeat
    launcher = start_run(run_dir, "--steps", 100, "--no-evaluator", "--mode", "sync", *unhurried())
    wait_for_training(run_dir, updates=30)
    others = [process for process in of_run(run_dir) if process.pid != launcher.pid]
    pids = {task: row["pid"] for task, row in tasks(run_dir).items()}
    for process in others:
        process.suspend()
    time.sleep(1.0)  # the launcher has seen it
    launcher.send_signal(signal.SIGSTOP)
    time.sleep(frozen_s)
    launcher.send_signal(signal.SIGCONT)
    time.sleep(0.5)
    for process in others:
        process.resume()
    finish(launcher)
    assert_none_left(run_dir)
    summary = summary_of(run_dir)
    assert_ledger_is_exact(summary, 100, gradients=3)
    assert summary["restarts"] == {} and (run_dir / "logs" / "launcher.log").read_text() == ""
    assert {task: row["pid"] for task, row in tasks(run_dir).items()} == pids


def test_a_worker_that_is_held_for_ever_is_found_and_training_ends(tmp_path):
    run_dir, marks = tmp_path / "run", tmp_path / "marks"
    marks.mkdir()
    held = held_modes.held({"computed": 30}, marks)
    mode = ("--mode", held_modes.mode("bounded"))  # without its place in the bound the others would stand still
    process = start_run(run_dir, "--steps", 350, "--no-evaluator", *mode, *unhurried(seconds=0.1), env=held)
    output = finish(process)
    assert_none_left(run_dir)
    index, pid = map(int, (marks / "computed").read_text().split())
    summary = summary_of(run_dir)
    assert_ledger_is_exact(summary, 350)
    (silence,) = summary["silences"]
    assert (silence["worker"], silence["pid"]) == (index, pid) and 10 < silence["seconds"] < 30
    assert f"worker-{index} (pid {pid}) is silent: no update for" in output
    assert "most recent call first" in (run_dir / "logs" / f"worker-{index}.log").read_text()
    assert summary["restarts"] == {f"worker-{index}": 1} and summary["updates"]["rolled_back"] == 0
