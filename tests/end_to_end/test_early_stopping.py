"""A training whose patience runs out ends in order, whatever dies meanwhile, and can be resumed."""

import json
import os
import signal

import pytest

from tests.helpers.finished_runs import assert_ledger_is_exact
from tests.helpers.processes import assert_none_left, wait_until
from tests.helpers.real_cluster import SNAPSHOTS, finish, start_run, summary_of, tasks, unhurried

pytestmark = [pytest.mark.cluster, pytest.mark.exhaustive]

PATIENCE = 3
# No log loss is better than another by so much: the first score stays the best.
OPTIONS = (
    "--workers", 2, "--steps", 100_000, "--monitor", "log_loss", "--patience", PATIENCE, "--set", "evaluation.min_delta=1e9",
    "--set", "evaluation.validation_examples=64", "--set", "checkpoints.every_seconds=1", *unhurried(workers=2),
)  # fmt: skip


def scores(run_dir):
    file = run_dir / "metrics" / "evaluation.jsonl"
    return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []


def test_a_run_stops_early_although_evaluator_and_chief_die_and_is_resumed_with_its_whole_patience(tmp_path):
    run_dir = tmp_path / "run"
    process = start_run(run_dir, *OPTIONS, *SNAPSHOTS)
    for number, name in enumerate((("evaluator", 0), ("chief", 0)), 1):
        wait_until(lambda number=number: len(scores(run_dir)) >= number, within_s=120, every_s=0.1)
        os.kill(tasks(run_dir)[name]["pid"], signal.SIGKILL)
    output = finish(process)
    assert_none_left(run_dir)
    stopped, rows = summary_of(run_dir), scores(run_dir)
    assert_ledger_is_exact(stopped)
    early, evaluation = stopped["early_stop"], stopped["evaluation"]
    assert stopped["outcome"] == "stopped" and early["step"] == rows[PATIENCE]["step"]
    assert {name: early[name] for name in ("patience", "monitor", "examples")} == {
        "patience": PATIENCE, "monitor": "log_loss", "examples": "validation",
    }  # fmt: skip
    best = min(rows[: PATIENCE + 1], key=lambda row: row["validation_metrics"]["log_loss"])
    assert early["best_step"] == best["step"]
    assert f"stopping early: validation log_loss has not become better in {PATIENCE} scored checkpoints" in output
    assert "stopped early" in output and "run --resume" in output
    # The last checkpoint is scored, and the best model is that of the smallest log loss.
    assert evaluation["step"] == stopped["updates"]["applied"] >= early["step"]
    chosen = min(rows, key=lambda row: row["validation_metrics"]["log_loss"])["step"]
    assert (evaluation["monitor"], evaluation["monitor_mode"], evaluation["best_step"]) == ("log_loss", "min", chosen)
    assert json.loads((run_dir / "best" / "best.json").read_text())["step"] == chosen
    before = len(rows)
    finish(start_run(run_dir, resume=True))
    assert_none_left(run_dir)
    again = summary_of(run_dir)
    assert again["early_stop"]["step"] > stopped["updates"]["applied"]
    assert len(scores(run_dir)) >= before + PATIENCE - 1
