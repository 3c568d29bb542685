"""A comparison trains what is missing and writes its report, of what users bring too."""

import csv
import json

import numpy as np
import pytest

from tests.doors import toy_data
from tests.helpers.processes import assert_none_left
from tests.helpers.real_cluster import PROJECT, finish, start

pytestmark = pytest.mark.cluster


def test_compare_trains_what_is_missing_of_ones_own_network_and_table_and_writes_the_report(tmp_path):
    output, toys = tmp_path / "comparison", PROJECT / "tests" / "doors"
    own = ("--dataset", f"{toys}/toy_data.py:load", "--model", f"{toys}/toy_table_network.py:build")
    few = "--modes async,single --seeds 1 --steps 60 --batches same_per_update --batch-size 32 --workers 2"
    options = (*own, *few.split(), "--precision", "float32", "--output", output)
    finish(start("compare", *options))
    roots = sorted((output / "runs").iterdir())
    assert len(roots) == 2
    for root in roots:
        assert_none_left(root)
    summaries = {root: (root / "summary.json").stat().st_mtime_ns for root in roots}
    (roots[0] / "summary.json").unlink()  # as if it had been interrupted
    printed = finish(start("compare", *options))
    assert "test error" in printed and "No learning rates were found for single modes of" in printed
    assert "images" not in printed and "accuracy" not in printed
    trained = [root for root in roots if (root / "summary.json").stat().st_mtime_ns != summaries[root]]
    assert trained == [roots[0]], "finished runs are taken as they are"
    page = (output / "report.html").read_text()
    assert "<svg" in page or "data:image/" in page
    assert len(list(csv.DictReader((output / "rows.csv").open()))) == 2
    report = json.loads((output / "report.json").read_text())
    assert (report["metric"], report["unit"]) == ("error", "examples")
    assert all(0 < row["test_error"] < 60 for row in report["rows"]) and len(report["rows"]) == 2
    targets, tested = (toy_data.split(count, seed)["target"] for count, seed in ((2_000, 0), (500, 1)))
    summary = json.loads((roots[1] / "summary.json").read_text())
    assert summary["guess"] == pytest.approx(np.abs(tested - targets.mean(axis=0)).mean(), rel=1e-3)
