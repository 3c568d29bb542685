"""A text of one's own is learned by a cluster, and `predict` goes on from a piece of it."""

import json

import pytest

from tests.helpers.processes import assert_none_left
from tests.helpers.real_cluster import finish, start, summary_of

pytestmark = pytest.mark.cluster
PANGRAM = "the quick brown fox jumps over the lazy dog. "


def test_a_text_is_learned_and_goes_on_as_it_does(tmp_path):
    (tmp_path / "notes.txt").write_text(PANGRAM * 400)
    run_dir, small = (
        tmp_path / "run",
        {"model.units": 32, "model.blocks": 1, "model.heads": 2, "data.window": 32, "evaluation.draw_results": "false"},
    )
    settings = (part for name, value in small.items() for part in ("--set", f"{name}={value}"))
    training = ("--steps", 300, "--workers", 2, "--learning-rate", 0.005, "--precision", "float32", "--batch-size", 8)
    finish(start("run", "--run-dir", run_dir, "--dataset", tmp_path / "notes.txt", *training, *settings))
    assert_none_left(run_dir)
    summary = summary_of(run_dir)
    assert summary["model"] == "byte_lm" and summary["learned"] and summary["proof"]["holds"]
    assert summary["evaluation"]["test_error"] < 0.5 < 3.5 < summary["guess"] < 4.5, "bits per byte"
    prompt = ("--prompt", "the quick brown fox ", "--length", 24, "--temperature", 0, "--format", "json")
    told = finish(start("predict", "--run", run_dir, *prompt))
    assert json.loads(told)[0]["text"] == "jumps over the lazy dog."
