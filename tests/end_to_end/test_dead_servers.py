"""A parameter server, chief, evaluator or launcher that is killed: what was lost is done again, exactly once."""

import os
import signal
import time

import pytest

from ps_cluster.runs import checkpoints
from ps_cluster.runs.checkpoints import newest_even
from tests.helpers.finished_runs import assert_ledger_is_exact
from tests.helpers.planted import plant, run_of
from tests.helpers.processes import assert_none_left, of_run, wait_until
from tests.helpers.real_cluster import (
    PROJECT,
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

# As a network of a user may: it makes a temporary file and leaves it there.
LEAVES_A_FILE = """
import keras, tempfile
def build(examples, settings):
    tempfile.mkstemp(prefix="of-the-user-")
    return keras.Sequential([keras.Input((32, 32, 3)), keras.layers.Flatten(), keras.layers.Dense(10)])
"""


def test_what_a_dead_ps_takes_along_is_done_again_from_the_newest_snapshot(tmp_path):
    run_dir, started = tmp_path / "run", time.monotonic()
    process = start_run(run_dir, "--steps", 600, *unhurried(), *SNAPSHOTS)
    wait_for_snapshots(run_dir)
    os.kill(tasks(run_dir)["evaluator", 0]["pid"], signal.SIGKILL)  # training does not notice
    wait_for_training(run_dir, updates=60)  # more than the snapshot has
    before = tasks(run_dir)
    os.kill(before["ps", 0]["pid"], signal.SIGKILL)
    killed_after = time.monotonic() - started
    output = finish(process)
    assert_none_left(run_dir)
    assert "from the newest snapshot" in output
    summary = summary_of(run_dir)
    assert_ledger_is_exact(summary, 600)
    assert summary["evaluation"]["step"] == 600 and summary["restarts"]["evaluator-0"] == 1
    assert summary["startup_seconds"] < killed_after, "that of the first start"
    # From the first update to the last: what was trained before the fault counts too, and so does the time without training.
    assert summary["train_seconds"] > killed_after - summary["startup_seconds"] + summary["interrupted_seconds"]
    in_vain = summary["interrupted_seconds"] + summary["rolled_back_seconds"]
    assert summary["interrupted_seconds"] > 0 and summary["goodput"] > 1 - in_vain / (
        killed_after - summary["startup_seconds"]
    )
    after = tasks(run_dir)
    assert all(after[task]["address"] != before[task]["address"] for task in before if task[0] == "ps")


def test_whatever_dies_together_is_done_again_and_ctrl_c_drains_to_a_last_checkpoint_that_is_scored(tmp_path):
    run_dir = tmp_path / "run"
    process = start_run(run_dir, "--steps", 100_000, *unhurried(), *SNAPSHOTS)
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
    assert summary["updates"]["applied"] == checkpoints.steps(run_dir / "checkpoints")[-1]


def test_a_run_whose_launcher_was_killed_goes_on_with_resume_from_the_newest_sound_snapshot(tmp_path, temporary_folder):
    run_dir, own = tmp_path / "run", tmp_path / "my.py"
    own.write_text(LEAVES_A_FILE)
    options = ("--steps", 100_000, "--no-evaluator", "--model", f"{own}:build", *unhurried(), *SNAPSHOTS)
    process = start_run(run_dir, *options)
    wait_for_snapshots(run_dir, number=2)
    assert len(of_run(run_dir)) >= 6
    assert list((run_dir / "tmp").glob("of-the-user-*")) and (run_dir / "tmp").stat().st_mode & 0o777 == 0o700
    process.kill()
    process.communicate(timeout=20)
    assert_none_left(run_dir, within_s=5)
    assert list(temporary_folder.iterdir()) == []
    plant(run_dir)  # as in a run directory from elsewhere
    newest = sorted((run_dir / "snapshots").glob("step-*.safetensors"))[-1]
    content = bytearray(newest.read_bytes())
    content[len(content) // 2] ^= 0xFF
    newest.write_bytes(content)
    steps = rows(run_dir)[-1]["scheduled"] + 200
    finish(start("run", "--resume", run_dir, "--steps", steps, "--code", own))
    assert_none_left(run_dir)
    assert run_of(run_dir) == [] and not (run_dir / "tmp").exists()
    assert "passed over" in (run_dir / "logs" / "chief-0.log").read_text()
    assert_ledger_is_exact(summary_of(run_dir), steps)


def test_without_a_ps_that_is_lost_for_good_the_run_goes_on_from_a_snapshot_with_those_that_are_left(tmp_path):
    run_dir = tmp_path / "run"
    mode = PROJECT / "tests/doors/impatient_mode.py:Impatient"
    process = start_run(run_dir, "--steps", 300, "--ps", 2, "--mode", mode, "--no-evaluator", *unhurried(), *SNAPSHOTS)
    wait_until(lambda: newest_even(run_dir / "snapshots"), within_s=60)
    os.kill(tasks(run_dir)["ps", 0]["pid"], signal.SIGKILL)
    output = finish(process)
    assert_none_left(run_dir)
    assert "training goes on without ps-0" in output and "from the newest snapshot" in output
    summary = summary_of(run_dir)
    assert_ledger_is_exact(summary, 300)
    assert len(summary["proof"]["slices"]) == 1
    assert [server["parameters"] is None for server in summary["parameter_servers"]] == [False, True]
