"""A comparison trains what is missing and writes its report."""

import csv
import json

import pytest

from tests.helpers.processes import assert_none_left
from tests.helpers.real_cluster import finish, small, start

pytestmark = pytest.mark.cluster


def test_compare_trains_what_is_missing_and_writes_the_report(tmp_path):
    output = tmp_path / "comparison"
    arms = "--modes async,single --seeds 1 --steps 30 --batches same_per_update"
    options = (*arms.split(), "--output", output, *small())
    finish(start("compare", *options))
    roots = sorted((output / "runs").iterdir())
    assert len(roots) == 2
    for root in roots:
        assert_none_left(root)
    summaries = {root: (root / "summary.json").stat().st_mtime_ns for root in roots}
    (roots[0] / "summary.json").unlink()  # as if it had been interrupted
    printed = finish(start("compare", *options))
    assert "generated images" in printed.lower() and "async" in printed
    trained = [root for root in roots if (root / "summary.json").stat().st_mtime_ns != summaries[root]]
    assert trained == [roots[0]], "finished runs are taken as they are"
    page = (output / "report.html").read_text()
    assert "<svg" in page or "data:image/" in page
    rows = list(csv.DictReader((output / "rows.csv").open()))
    assert len(rows) == 2 and len(json.loads((output / "report.json").read_text())["rows"]) == 2
