"""Finished runs of a user's own network on a user's own table: a comparison of errors."""

import csv
import json
import re
from pathlib import Path

import pytest

from ps_cluster.errors import UserError
from ps_cluster.tools.compare import comparison_run
from ps_cluster.tools.compare.comparison_plan import read_comparison
from ps_cluster.tools.compare.comparison_plots import make_plots
from ps_cluster.tools.compare.comparison_report import write_report
from ps_cluster.tools.compare.fairness import warn_of_rates
from ps_cluster.tools.compare.findings import GroupFinding, differences_of
from ps_cluster.tools.compare.groups import make_groups, make_views
from ps_cluster.tools.compare.records import read_record
from ps_cluster.tools.compare.result_tables import tables
from tests.helpers.data import only_named
from tests.helpers.fake_runs import Fake, write_run

pytestmark = pytest.mark.slow

TOYS = Path(__file__).parents[2] / "doors"
OWN = {
    "data.dataset": f"{TOYS}/toy_data.py:load",
    "model.name": f"{TOYS}/toy_table_network.py:build",
    "optimizer.rule": "adam",  # in place of that of compile(), which a run has found before it starts
    "training.label_smoothing": 0.0,
}
ENDS = {"sync": (2.0, 2.2, 2.1), "async": (3.0, 3.2, 3.1)}


def write_errors(folder, ends=ENDS, diverged=(), **settings):
    """Write runs whose error fell from 40 to `ends`; those of the modes in `diverged` have none at the end."""
    return [
        write_run(
            folder / f"{mode}-{seed}",
            Fake(
                OWN | {"mode.name": mode, "training.seed": seed} | settings,
                ((40.0, 10.0, 5000), (end, 20.0, 10_000)),
                broken=2 if mode in diverged else 0,
                metric="error",
                unit="examples",
                guess=30.0,
            ),
        )
        for mode, values in ends.items()
        for seed, end in enumerate(values)
    ]


def groups_of(roots):
    return make_groups([read_record(root) for root in roots])


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    folder = tmp_path_factory.mktemp("errors")
    return write_report(write_errors(folder / "runs"), folder / "report")


def test_the_files_have_errors_in_place_of_accuracies(written):
    folder = written.page.parent
    names = {path.name for path in (folder / "plots").iterdir()}
    assert {"error-over-time.png", "error-over-examples.svg"} <= names and not any("accuracy" in name for name in names)
    report = json.loads((folder / "report.json").read_text())
    assert (report["metric"], report["unit"], report["target"]) == ("error", "examples", 3.2)
    rows = list(csv.DictReader((folder / "rows.csv").read_text().splitlines()))
    assert [float(row["test_error"]) for row in rows] == [2.0, 2.2, 2.1, 3.0, 3.2, 3.1]
    assert report["groups"][1]["test_error_mean"] == pytest.approx(3.1) and "test_accuracy" not in rows[0]


def test_the_page_speaks_of_errors_and_examples_alone(written):
    page = re.sub(r'src="[^"]*"', "", written.page.read_text())
    assert "images" not in page and "accurac" not in page
    assert "<dt>target error</dt><dd>3.2</dd>" in page and "examples/s" in page


def test_a_difference_of_errors_has_no_percent(tmp_path):
    groups = groups_of(write_errors(tmp_path))
    found = [GroupFinding.of(group, 10.0) for group in groups]
    *_, table = tables(found, differences_of(groups, make_views(groups), 10.0))
    (row,) = table.rows
    assert (row["difference"], row["speed_ratio"]) == ("+1 (+1 to +1)", "~ 1.00 (1.00 to 1.00)")
    assert table.columns["difference"] == "test error" and row["time_ratio"].startswith("1.01 (")


def test_the_target_is_reached_on_the_way_down(tmp_path):
    record = read_record(write_errors(tmp_path, {"async": (2.0,)})[0])
    assert record.reached(21.0).seconds == pytest.approx(15.0) and record.reached(1.9) is None
    assert record.reached(40.0).is_limit
    assert (record.final, record.best) == (2.0, 2.0)


def test_errors_that_diverged_are_crosses_above_all_curves_of_a_logarithmic_axis(tmp_path):
    roots = write_errors(tmp_path, ENDS | {"bounded": (9.0, 9.0, 9.0)}, diverged=("bounded",))
    groups = groups_of(roots)
    assert [group.diverged for group in groups] == [0, 0, 3]
    plot = make_plots(groups, make_views(groups))[0]
    assert plot.png and "has a cross above the panel" in plot.caption
    (axes,) = [axes for axes in plot.figure.axes if axes.get_visible()]
    assert axes.get_yscale() == "log" and axes.get_ylabel() == "test error [the target's units]"
    (crosses,) = [line for line in axes.lines if line.get_marker() == "x"]
    assert all(y > 1 for y in crosses.get_ydata()), "as a share of the panel's height"


def test_runs_with_another_metric_are_refused_even_if_forced(tmp_path):
    roots = [*write_errors(tmp_path / "errors"), write_run(tmp_path / "other", Fake({}))]
    with pytest.raises(UserError, match="some have a test error, others a test accuracy") as refusal:
        write_report(roots, tmp_path / "report", force=True)
    assert "\n" not in str(refusal.value) and not (tmp_path / "report").exists()


def test_a_network_without_rates_of_single_modes_is_said_so_on_top_and_one_with_them_is_not(tmp_path):
    (said,) = warn_of_rates(groups_of(write_errors(tmp_path / "own")))
    assert said.startswith(
        f"There are no learning rates for individual modes in the recipe of {TOYS}/toy_table_network.py:build. "
    )
    assert list(warn_of_rates(groups_of([write_run(tmp_path / "run", Fake({}))]))) == []


def test_a_target_is_checked_by_the_metric_of_the_data_set_before_anything_is_trained(tmp_path, monkeypatch):
    monkeypatch.setattr(comparison_run, "resolve_data", lambda *_, notify: only_named())
    fixed = {"model.name": "tutorial_cnn", "data.dataset": "synthetic"}
    with pytest.raises(UserError, match="target_score: got 60: write an accuracy as a share of 1"):
        comparison_run.train_all(read_comparison(None, {"target_score": 60.0}, fixed), tmp_path / "out")
    assert not (tmp_path / "out").exists()
