"""A disk that is full for a while."""

import contextlib
import subprocess
import time

import pytest

from tests.helpers.finished_runs import assert_ledger_is_exact
from tests.helpers.processes import assert_none_left, wait_until
from tests.helpers.real_cluster import SNAPSHOTS, start_run, stop, summary_of, unhurried, wait_for_snapshots

pytestmark = pytest.mark.cluster


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
    process = start_run(run_dir, "--steps", 100_000, "--no-evaluator", *unhurried(), *SNAPSHOTS)
    wait_for_snapshots(run_dir)
    with (small_disk / "fill").open("wb") as fill, contextlib.suppress(OSError):
        while True:
            fill.write(bytes(100_000))
            fill.flush()
    log, before = run_dir / "logs" / "chief-0.log", snapshots(run_dir)
    time.sleep(6.0)  # a save is tried meanwhile; the log, on the same disk, tells of it later
    (small_disk / "fill").unlink()
    wait_until(lambda: snapshots(run_dir) - before, within_s=90)
    stop(process)
    assert_none_left(run_dir)
    summary = summary_of(run_dir)
    assert_ledger_is_exact(summary)
    assert summary["restarts"] == {} and "training goes on, but" in log.read_text()


def snapshots(run_dir):
    return set((run_dir / "snapshots").glob("step-*.npz"))
