"""A text of one's own is learned by a cluster of mode bounded, and `predict` goes on from a piece of it."""

import json

import pytest
from click.testing import CliRunner

from ps_cluster.cli.main import main
from tests.helpers.clocks import unseen
from tests.helpers.finished_runs import assert_ledger_is_exact, ledger_rows, update_columns, wait_s
from tests.helpers.processes import assert_none_left
from tests.helpers.real_cluster import finish, start, summary_of

pytestmark = [pytest.mark.cluster, pytest.mark.exhaustive]
PANGRAM = "the quick brown fox jumps over the lazy dog. "


def test_both_bounds_hold_with_a_straggler_and_a_text_is_learned_and_goes_on_as_it_does(tmp_path):
    """Without the bounds the straggler's gradients would be staler."""
    (tmp_path / "notes.txt").write_text(PANGRAM * 400)
    run_dir, small = (
        tmp_path / "run",
        {"model.units": 32, "model.blocks": 1, "model.heads": 2, "data.window": 32, "evaluation.draw_results": "false"},
    )
    settings = (part for name, value in small.items() for part in ("--set", f"{name}={value}"))
    training = ("--steps", 300, "--workers", 3, "--learning-rate", 0.005, "--precision", "float32", "--batch-size", 8)
    bounds = ("--mode", "bounded", "--max-staleness", 3, "--max-clock-lag", 1, "--straggler", "2:+0.1s")
    finish(start("run", "--run-dir", run_dir, "--dataset", tmp_path / "notes.txt", *training, *bounds, *settings))
    assert_none_left(run_dir)
    summary = summary_of(run_dir)
    assert_ledger_is_exact(summary, 300)
    rows = update_columns(run_dir)
    assert 1 < summary["staleness"]["max"] <= 3 and not unseen(rows, 1) and unseen(rows, 0)
    assert min(wait_s(row) for row in ledger_rows(run_dir) if row["worker"] == "2") >= 0.1
    assert summary["model"] == "byte_lm" and summary["learned"] and summary["proof"]["holds"]
    assert summary["evaluation"]["test_error"] < 0.5 < 3.5 < summary["guess"] < 4.5, "bits per byte"
    prompt = ("--prompt", "the quick brown fox ", "--length", "24", "--temperature", "0", "--format", "json")
    told = CliRunner().invoke(main, ["predict", "--run", str(run_dir), *prompt], catch_exceptions=False)
    assert json.loads(told.stdout)[0]["text"] == "jumps over the lazy dog." and told.exit_code == 0
    refused = CliRunner().invoke(main, ["predict", "--run", str(run_dir), *prompt, "--top", "1"])
    assert (refused.exit_code, refused.stderr) == (
        2,
        "Error: the network of this run continues texts: leave --top out\n",
    )
