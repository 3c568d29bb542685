"""Generated clicks are learned by the network that their recipe names, and the run tells how well they could be."""

import re

import pytest

from tests.helpers.processes import assert_none_left
from tests.helpers.real_cluster import finish, start, summary_of

pytestmark = pytest.mark.cluster


@pytest.mark.exhaustive
def test_a_run_on_clicks_learns_and_tells_the_best_reachable_scores(tmp_path):
    options = {
        "data.rows": 50, "data.train_examples": 20000, "data.test_examples": 2000, "training.batch_size_per_worker": 100,
        "training.epochs": 2, "model.precision": "float32", "evaluation.draw_results": "false",
    }  # fmt: skip
    settings = (part for name, value in options.items() for part in ("--set", f"{name}={value}"))
    cache = {"PS_CLUSTER_CACHE": str(tmp_path / "cache")}
    process = start(
        "run", "--run-dir", tmp_path / "run", "--dataset", "clicks", "--mode", "single", *settings, env=cache
    )
    told = finish(process)
    assert_none_left(tmp_path)
    summary = summary_of(tmp_path / "run")
    assert summary["model"] == "dlrm" and summary["dataset_kind"] == "synthetic" and "SYNTHETIC DATA" in told
    best = re.search(r"the best scores that a model can reach .*: AUC (0\.\d+), log loss (0\.\d+)", told)
    scores = summary["evaluation"]["metrics"]
    assert 0.7 < scores["auc"] < float(best[1]) and scores["log_loss"] > float(best[2]), "few keys are learned well"
    assert summary["proof"]["holds"]
