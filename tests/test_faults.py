"""Real clusters whose processes are killed or frozen: every update is applied exactly once all the same."""

import contextlib
import os
import signal
import subprocess
import sys
import time

import pytest

from tests.helpers import debugger
from tests.helpers.processes import assert_none_left, of_run, wait_until
from tests.helpers.real_cluster import finish, rows, start_run, summary_of, tasks, wait_for_training

pytestmark = pytest.mark.cluster


def assert_ledger_is_exact(summary, total=None, gradients=1):
    """Of a run of `total` updates; without a number, of one that was stopped."""
    updates = summary["updates"]
    assert summary["outcome"] == ("stopped" if total is None else "completed")
    total = total or updates["applied"]
    assert (updates["scheduled"], updates["applied"]) == (total, total)
    assert (updates["duplicated"], updates["lost"]) == (0, 0)
    rows = total * gradients
    assert summary["proof"]["holds"] and all(part["rows"] == rows for part in summary["proof"]["slices"])
    assert sum(worker["updates"] for worker in summary["workers"]) == rows


def wait_for_snapshots(run_dir):
    """Until there are two, so that one may be damaged."""
    wait_until(lambda: len(list((run_dir / "snapshots").glob("step-*.npz"))) == 2, within_s=90)


def restarts(summary):
    return {worker["index"]: worker["restarts"] for worker in summary["workers"]}


def wait_until_it_trains_without(run_dir, pids):
    """Until these processes have successors and training goes on."""
    wait_until(lambda: not pids & {task["pid"] for task in tasks(run_dir).values()}, within_s=60)
    seen = len(rows(run_dir))

    def trains():
        new = [row["applied"] for row in rows(run_dir)[seen:] if row["phase"] == "training"]
        return new and new[-1] > new[0]

    wait_until(trains, within_s=60)


def stop(process):
    """Ends the training early; returns the standard output."""
    process.send_signal(signal.SIGINT)
    return finish(process)


def test_workers_killed_at_each_point_of_a_step_are_not_applied_twice(tmp_path):
    run_dir, marks = tmp_path / "run", tmp_path / "marks"
    marks.mkdir()
    held = {"PS_CLUSTER_TEST_PAUSE": f"before_pull:200,computed:500,applied:800@{marks}"}
    process = start_run(run_dir, "--steps", 1500, "--no-evaluator", "--set", "cluster.steps_per_dispatch=1", env=held)
    killed = {0: 0, 1: 0, 2: 0}
    for point in ("before_pull", "computed", "applied"):
        wait_until((marks / point).exists, within_s=90)
        index, pid = map(int, (marks / point).read_text().split())
        os.kill(pid, signal.SIGKILL)
        killed[index] += 1
    finish(process)
    assert_none_left(run_dir)
    summary = summary_of(run_dir)
    assert_ledger_is_exact(summary, 1500)
    assert summary["updates"]["replays_refused"] == 1, "only the step that was applied comes back and is refused"
    assert restarts(summary) == killed and summary["updates"]["rolled_back"] == 0


def test_killed_workers_take_part_again_while_the_others_go_on(tmp_path):
    run_dir = tmp_path / "run"
    process = start_run(run_dir, "--steps", 100_000, "--no-evaluator")
    wait_for_training(run_dir, updates=300)
    pid = tasks(run_dir)["worker", 1]["pid"]
    os.kill(pid, signal.SIGKILL)
    killed = time.time()
    wait_until(lambda: worked_since(run_dir, 1, {pid}) > 0, within_s=30)
    between = [row for row in rows(run_dir) if killed + 0.5 < row["time"]]
    assert between[-1]["applied"] > between[0]["applied"], "training did not stop"

    pids = {index: tasks(run_dir)["worker", index]["pid"] for index in (0, 1)}  # two at once, and one again
    for pid in pids.values():
        os.kill(pid, signal.SIGKILL)
    wait_until(lambda: tasks(run_dir)["worker", 0]["pid"] != pids[0], within_s=10)
    os.kill(tasks(run_dir)["worker", 0]["pid"], signal.SIGKILL)  # while TensorFlow still waits for it
    known = {0: {pids[0], tasks(run_dir)["worker", 0]["pid"]}, 1: {pid, pids[1]}}
    wait_until(lambda: all(worked_since(run_dir, index, known[index]) for index in known), within_s=60)
    stop(process)
    assert_none_left(run_dir)
    summary = summary_of(run_dir)
    assert_ledger_is_exact(summary)
    assert summary["updates"]["rolled_back"] == 0 and restarts(summary) == {0: 2, 1: 2, 2: 0}


def worked_since(run_dir, index, old_pids):
    """Updates of processes of this worker that are none of those."""
    workers = rows(run_dir)[-1]["workers"]
    return sum(w["updates"] for w in workers if w["index"] == index and w["pid"] not in old_pids)


def test_what_a_dead_ps_takes_along_is_done_again_from_the_newest_snapshot(tmp_path):
    run_dir, started = tmp_path / "run", time.monotonic()
    process = start_run(run_dir, "--steps", 1500, "--set", "checkpoints.snapshot_every_seconds=0.5")
    wait_for_snapshots(run_dir)
    before = tasks(run_dir)
    os.kill(before["ps", 0]["pid"], signal.SIGKILL)
    killed_after = time.monotonic() - started
    output = finish(process)
    assert_none_left(run_dir)
    assert "from the newest snapshot" in output
    summary = summary_of(run_dir)
    assert_ledger_is_exact(summary, 1500)
    assert summary["evaluation"]["step"] == 1500
    assert summary["startup_seconds"] < killed_after, "that of the first start"
    # From the first update to the last: what was trained before the fault counts too, and so does the time without training.
    assert summary["train_seconds"] > killed_after - summary["startup_seconds"] + summary["interrupted_seconds"]
    in_vain = summary["interrupted_seconds"] + summary["rolled_back_seconds"]
    assert summary["interrupted_seconds"] > 0 and summary["goodput"] > 1 - in_vain / (killed_after - summary["startup_seconds"])
    after = tasks(run_dir)
    assert all(after[task]["address"] != before[task]["address"] for task in before if task[0] == "ps")


def test_whatever_dies_together_is_done_again_from_the_newest_snapshot(tmp_path):
    run_dir = tmp_path / "run"
    process = start_run(run_dir, "--steps", 100_000, "--set", "checkpoints.snapshot_every_seconds=0.5")
    for victims in (("chief",), ("worker", "ps"), ("ps", "chief")):
        wait_for_snapshots(run_dir)
        pids = {tasks(run_dir)[victim, 0]["pid"] for victim in victims}
        for pid in pids:
            os.kill(pid, signal.SIGKILL)
        wait_until_it_trains_without(run_dir, pids)
    output = stop(process)
    assert_none_left(run_dir)
    assert output.count("from the newest snapshot") == 3
    summary = summary_of(run_dir)
    assert_ledger_is_exact(summary)
    assert summary["evaluation"]["step"] == summary["updates"]["applied"]


def test_a_frozen_process_is_noticed_and_cannot_come_back(tmp_path):
    run_dir, frozen = tmp_path / "run", []
    process = start_run(run_dir, "--steps", 100_000, "--no-evaluator")
    wait_for_training(run_dir, updates=300)
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


# Longer than the launcher lets a process be stopped, and in mode sync than TensorFlow waits for a heartbeat.
@pytest.mark.parametrize(("mode", "frozen_s"), [("async", 6.0), ("sync", 14.0)])
def test_a_run_that_is_frozen_as_a_whole_goes_on_as_if_nothing_had_been(tmp_path, mode, frozen_s):
    run_dir = tmp_path / "run"
    total = 1500 if mode == "async" else 500
    launcher = start_run(run_dir, "--steps", total, "--no-evaluator", "--mode", mode)
    wait_for_training(run_dir, updates=100)
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
    assert_ledger_is_exact(summary, total, gradients=3 if mode == "sync" else 1)
    assert summary["restarts"] == {} and (run_dir / "logs" / "launcher.log").read_text() == ""
    assert {task: row["pid"] for task, row in tasks(run_dir).items()} == pids


@pytest.mark.parametrize("mode", ["async", "bounded"])
def test_a_worker_that_is_held_for_ever_is_found_and_training_ends(tmp_path, mode):
    run_dir, marks = tmp_path / "run", tmp_path / "marks"
    marks.mkdir()
    held = {"PS_CLUSTER_TEST_PAUSE": f"computed:200@{marks}"}
    process = start_run(run_dir, "--steps", 1500, "--no-evaluator", "--mode", mode, env=held)
    output = finish(process)
    assert_none_left(run_dir)
    index, pid = map(int, (marks / "computed").read_text().split())
    summary = summary_of(run_dir)
    assert_ledger_is_exact(summary, 1500)
    (silence,) = summary["silences"]
    assert (silence["worker"], silence["pid"]) == (index, pid) and 10 < silence["seconds"] < 30
    assert f"worker-{index} (pid {pid}) is silent: no update for" in output
    assert "most recent call first" in (run_dir / "logs" / f"worker-{index}.log").read_text()
    assert summary["restarts"] == {f"worker-{index}": 1} and summary["updates"]["rolled_back"] == 0


def test_a_worker_that_a_debugger_holds_is_found_by_its_missing_gradient(tmp_path):
    run_dir = tmp_path / "run"
    process = start_run(run_dir, "--steps", 600, "--no-evaluator", "--mode", "sync-ps")
    wait_for_training(run_dir, updates=100)
    pid = tasks(run_dir)["worker", 1]["pid"]
    held = subprocess.Popen([sys.executable, debugger.__file__, str(pid)])
    output = finish(process)
    assert held.wait(timeout=10) == 0
    assert_none_left(run_dir)
    summary = summary_of(run_dir)
    assert_ledger_is_exact(summary, 600, gradients=3)
    assert [(silence["worker"], silence["pid"]) for silence in summary["silences"]] == [(1, pid)]
    assert f"worker-1 (pid {pid}) is silent" in output and summary["restarts"] == {"worker-1": 1}


def test_training_goes_on_without_the_worker_that_dies_every_time(tmp_path):
    run_dir = tmp_path / "run"
    process = start_run(run_dir, "--steps", 100_000, "--no-evaluator")
    wait_for_training(run_dir, updates=100)
    killed = set()

    def killed_until_it_is_gone():
        worker = tasks(run_dir).get(("worker", 1), {})
        if worker.get("address") and worker["pid"] not in killed:
            os.kill(worker["pid"], signal.SIGKILL)
            killed.add(worker["pid"])
        return not worker.get("address")

    wait_until(killed_until_it_is_gone, within_s=60)
    began, before = rows(run_dir)[-1]["applied"], {w["pid"] for w in rows(run_dir)[-1]["workers"]}
    wait_until(
        lambda: rows(run_dir)[-1]["phase"] == "training" and rows(run_dir)[-1]["applied"] > began + 100, within_s=60
    )
    assert {w["index"] for w in rows(run_dir)[-1]["workers"] if w["pid"] not in before} == {0, 2}
    os.kill(tasks(run_dir)["worker", 2]["pid"], signal.SIGKILL)  # another one is taken back all the same
    old = {tasks(run_dir)["worker", 2]["pid"]} | {w["pid"] for w in rows(run_dir)[-1]["workers"]}
    wait_until(lambda: worked_since(run_dir, 2, old), within_s=60)
    output = stop(process)
    assert_none_left(run_dir)
    assert "goes on without worker-1" in output and len(killed) == 6
    updates = summary_of(run_dir)["updates"]
    assert updates["scheduled"] == updates["applied"] and updates["duplicated"] == updates["lost"] == 0


def test_resuming_a_completed_run_changes_nothing(tmp_path):
    run_dir = tmp_path / "run"
    finish(start_run(run_dir, "--steps", 150, "--no-evaluator"))
    before = {path: path.stat().st_mtime_ns for path in run_dir.rglob("*") if path.is_file()}
    assert "is complete, nothing is left to do" in finish(start_run(run_dir, resume=True))
    assert_none_left(run_dir)
    assert {path: path.stat().st_mtime_ns for path in run_dir.rglob("*") if path.is_file()} == before


def test_a_killed_evaluator_is_started_again_and_training_does_not_notice(tmp_path):
    run_dir = tmp_path / "run"
    process = start_run(run_dir, "--steps", 1500)
    wait_for_training(run_dir, updates=300)
    os.kill(tasks(run_dir)["evaluator", 0]["pid"], signal.SIGKILL)
    finish(process)
    assert_none_left(run_dir)
    summary = summary_of(run_dir)
    assert_ledger_is_exact(summary, 1500)
    assert summary["evaluation"]["step"] == 1500 and summary["restarts"] == {"evaluator-0": 1}


def test_a_run_whose_launcher_was_killed_goes_on_with_resume_from_the_newest_sound_snapshot(tmp_path):
    run_dir = tmp_path / "run"
    process = start_run(run_dir, "--steps", 1500, "--no-evaluator", "--set", "checkpoints.snapshot_every_seconds=0.5")
    wait_for_snapshots(run_dir)
    process.kill()
    process.communicate(timeout=20)
    assert_none_left(run_dir, within_s=5)
    newest = sorted((run_dir / "snapshots").glob("step-*.npz"))[-1]
    content = bytearray(newest.read_bytes())
    content[len(content) // 2] ^= 0xFF
    newest.write_bytes(content)
    finish(start_run(run_dir, resume=True))
    assert_none_left(run_dir)
    assert "passed over" in (run_dir / "logs" / "chief-0.log").read_text()
    assert_ledger_is_exact(summary_of(run_dir), 1500)


@pytest.fixture
def small_disk(tmp_path):
    """A file system of 30 MB."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=30m", "tmpfs", folder], capture_output=True, text=True
    )
    if mounted.returncode:
        pytest.skip(f"this user may not mount a small file system: {mounted.stderr.strip()}")
    yield folder
    subprocess.run(["umount", "--lazy", folder], check=True)


def test_training_goes_on_while_the_disk_is_full_and_writes_again_when_it_is_not(small_disk):
    run_dir = small_disk / "run"
    options = ("--set", "checkpoints.snapshot_every_seconds=0.5")
    process = start_run(run_dir, "--steps", 3000, "--no-evaluator", *options)
    wait_for_snapshots(run_dir)
    with (small_disk / "fill").open("wb") as fill, contextlib.suppress(OSError):
        while True:
            fill.write(bytes(100_000))
            fill.flush()
    log = run_dir / "logs" / "chief-0.log"
    time.sleep(3.0)
    (small_disk / "fill").unlink()
    finish(process)
    assert_none_left(run_dir)
    summary = summary_of(run_dir)
    assert_ledger_is_exact(summary, 3000)
    assert summary["restarts"] == {} and "training goes on, but" in log.read_text()
