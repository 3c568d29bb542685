"""A parameter server, chief, evaluator or launcher that is killed: what was lost is done again, exactly once."""

import os
import signal
import time

import pytest

from ps_cluster.runs import checkpoints
from tests.helpers.finished_runs import assert_ledger_is_exact
from tests.helpers.planted import plant, run_of
from tests.helpers.processes import assert_none_left, of_run
from tests.helpers.real_cluster import (
    SNAPSHOTS,
    finish,
    rows,
    start,
    start_run,
    stop,
    summary_of,
    tasks,
    unhurried,
    wait_for_snapshots,
    wait_for_training,
    wait_until_it_trains_without,
)

pytestmark = pytest.mark.cluster


def test_whatever_dies_is_done_again_and_ctrl_c_drains_to_a_last_checkpoint_that_is_scored(tmp_path):
    run_dir, started = tmp_path / "run", time.monotonic()
    process = start_run(run_dir, "--workers", 2, "--steps", 100_000, *unhurried(workers=2), *SNAPSHOTS)
    wait_for_snapshots(run_dir)
    wait_for_training(run_dir)  # a row tells when the first update came: a snapshot may be there before
    os.kill(tasks(run_dir)["evaluator", 0]["pid"], signal.SIGKILL)  # training does not notice
    killed_after, first = time.monotonic() - started, tasks(run_dir)
    for victims in (("worker", "ps"), ("chief",)):
        wait_for_snapshots(run_dir)
        pids = {tasks(run_dir)[victim, 0]["pid"] for victim in victims}
        for pid in pids:
            os.kill(pid, signal.SIGKILL)
        wait_until_it_trains_without(run_dir, pids)
    output = stop(process)
    assert_none_left(run_dir)
    assert output.count("from the newest snapshot") == 2
    summary = summary_of(run_dir)
    assert_ledger_is_exact(summary)
    assert summary["evaluation"]["step"] == summary["updates"]["applied"] and summary["restarts"]["evaluator-0"] == 1
    assert summary["updates"]["applied"] == checkpoints.steps(run_dir / "checkpoints")[-1]
    assert tasks(run_dir)["ps", 0]["address"] != first["ps", 0]["address"]
    assert summary["startup_seconds"] < killed_after, "that of the first start"
    # From the first update to the last: what was trained before the fault counts too, and so does the time without training.
    assert summary["train_seconds"] > killed_after - summary["startup_seconds"] + summary["interrupted_seconds"]
    assert summary["interrupted_seconds"] > 0 and 0 < summary["goodput"] < 1


def test_a_run_whose_launcher_was_killed_goes_on_with_resume_from_the_newest_sound_snapshot(tmp_path, temporary_folder):
    run_dir = tmp_path / "run"
    options = ("--workers", 2, "--steps", 100_000, "--no-evaluator", *unhurried(workers=2))
    process = start_run(run_dir, *options, *SNAPSHOTS)
    wait_for_snapshots(run_dir, number=2)
    assert len(of_run(run_dir)) >= 5
    assert (run_dir / "tmp").stat().st_mode & 0o777 == 0o700
    process.kill()
    process.communicate(timeout=20)
    assert_none_left(run_dir, within_s=5)
    assert list(temporary_folder.iterdir()) == []
    plant(run_dir)  # as in a run directory from elsewhere
    newest = sorted((run_dir / "snapshots").glob("step-*.safetensors"))[-1]
    content = bytearray(newest.read_bytes())
    content[len(content) // 2] ^= 0xFF
    newest.write_bytes(content)
    steps = rows(run_dir)[-1]["scheduled"] + 40
    finish(start("run", "--resume", run_dir, "--steps", steps))
    assert_none_left(run_dir)
    assert run_of(run_dir) == [] and not (run_dir / "tmp").exists()
    assert "passed over" in (run_dir / "logs" / "chief-0.log").read_text()
    assert_ledger_is_exact(summary_of(run_dir), steps)
