"""A disk that is full for a while."""

import contextlib
import subprocess
import time

import pytest

from tests.helpers.finished_runs import assert_ledger_is_exact
from tests.helpers.processes import assert_none_left
from tests.helpers.real_cluster import SNAPSHOTS, finish, start_run, summary_of, unhurried, wait_for_snapshots

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
    process = start_run(run_dir, "--steps", 600, "--no-evaluator", *SNAPSHOTS, *unhurried())
    wait_for_snapshots(run_dir)
    with (
        contextlib.suppress(OSError),
        (small_disk / "fill").open("wb", buffering=0) as fill,
    ):  # no rest to write when it closes
        while True:
            fill.write(bytes(100_000))
    log = run_dir / "logs" / "chief-0.log"
    time.sleep(3.0)
    (small_disk / "fill").unlink()
    finish(process)
    assert_none_left(run_dir)
    summary = summary_of(run_dir)
    assert_ledger_is_exact(summary, 600)
    assert summary["restarts"] == {} and "training goes on, but" in log.read_text()
