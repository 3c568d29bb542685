"""A launcher that is killed: what was lost is done again, exactly once. Other tasks die in test_embedding_tables.py."""

import pytest

from tests.helpers.finished_runs import assert_ledger_is_exact
from tests.helpers.planted import plant, run_of
from tests.helpers.processes import assert_none_left, of_run
from tests.helpers.real_cluster import (
    SNAPSHOTS,
    finish,
    rows,
    start,
    start_run,
    summary_of,
    unhurried,
    wait_for_snapshots,
)

pytestmark = pytest.mark.cluster


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
