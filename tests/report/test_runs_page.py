"""The page of all runs in a folder: what it shows, what it leaves out, and that files of runs can do nothing on it."""

import base64
import contextlib
import hashlib
import json
import os
import re

import pytest

from ps_cluster.files import locks
from ps_cluster.files.json_rows import append_row
from ps_cluster.report.run_list import RUNNING
from ps_cluster.report.runs_page import IDLE_POLLS, REWRITE_S, RunsPage, keep_writing
from ps_cluster.report.shown_runs import MOST_POINTS, Point, read_shown
from ps_cluster.runs.result_rows import STALENESS_BOUNDS, StalenessBuckets
from ps_cluster.runs.run_dir import RunDir
from tests.helpers.fake_runs import Fake, simulated_rows, write_run
from tests.helpers.html_pages import dom_of, loaded_by
from tests.helpers.rows import progress_row, score_row
from tests.helpers.users import SOMEBODY, SOMEBODY_ELSE, as_user, common  # noqa: F401

REFRESH = 'http-equiv="refresh"'


@pytest.fixture
def folder(tmp_path):
    """Runs that differ in mode, seed and rows of the ledger, the newest last."""
    rows = simulated_rows(mode="async", slow=1.0, seed=0)
    write_run(tmp_path / "runs/first", Fake({"mode.name": "async", "training.seed": 1}, rows=rows))
    write_run(tmp_path / "runs/second", Fake({"mode.name": "async", "training.seed": 2}, dataset_kind="synthetic"))
    for number, name in enumerate(("first", "second")):
        os.utime(tmp_path / "runs" / name / "config.yaml", (1000 + number, 1000 + number))
    return tmp_path / "runs"


@pytest.fixture
def told():
    return []


@pytest.fixture
def page(folder, told):
    return RunsPage(folder, folder.parent / "runs.html", told.append)


def written(page, folder, refresh_s=None):
    """Write the page of what is found now; return its HTML and the data that its script gets."""
    page.write(page.poll(), refresh_s)
    html = (folder.parent / "runs.html").read_text()
    return html, json.loads(re.search(r'<script type="application/json" id="data">(.*?)</script>', html, re.S)[1])


def row_of(html, name):
    """Return the texts of the cells of a run."""
    (row,) = (row for row in re.findall(r"<tr><th scope=\"row\".*?</tr>", html, re.S) if f">{name}<" in row)
    return re.findall(r"<td[^>]*>(.*?)</td>", row)


@contextlib.contextmanager
def training(folder, name):
    with locks.sole_use(folder / name, "run directory", print):
        yield


def test_a_row_has_the_numbers_of_its_run_and_the_newest_run_is_first(page, folder):
    html, data = written(page, folder)
    assert [run["name"] for run in data["runs"]] == ["second", "first"]
    outcome, _, mode, dataset, network, metric, loss, updates, seconds, speed, mean, p95 = row_of(html, "first")
    assert (outcome, mode, dataset, network) == ("completed", "async", "cifar10", "tutorial_cnn")
    assert (metric, loss, updates, seconds, speed) == ("60.00%", "1", "80", "0:20", "–")
    stale = json.loads((folder / "first/summary.json").read_text())["staleness"]
    assert (mean, p95) == (f"{stale['mean']:.2f}", str(stale["p95"])) and stale["mean"] > 1
    assert row_of(html, "second")[3] == "cifar10 (generated)" and "nothing about real data" in html


def test_only_the_settings_that_differ_are_on_the_page(page, folder):
    _, data = written(page, folder)
    assert data["settings"] == [{"key": "training.seed", "values": ["2", "1"], "of": [0, 1]}]


def test_a_curve_has_every_score_and_of_many_some_with_the_last(folder):
    points = read_shown(RunDir(folder / "first")).tested
    assert points.keys() == {"accuracy", "loss"}
    assert points["accuracy"] == [Point(10.0, 5000, 0.4), Point(20.0, 10_000, 0.6)]
    scores = tuple((number / 1000, float(number), number) for number in range(1000))
    long = read_shown(RunDir(write_run(folder / "long", Fake({"mode.name": "async"}, scores)))).tested["accuracy"]
    assert MOST_POINTS // 2 < len(long) <= MOST_POINTS + 1
    assert (long[0], long[-1]) == (Point(0.0, 0, 0.0), Point(999.0, 999, 0.999))


def test_staleness_is_cumulated_from_the_summary_and_of_a_run_that_trains_from_its_newest_row(folder):
    run_dir = RunDir(folder / "first")
    summary = json.loads(run_dir.summary.read_text())
    summary["staleness"]["histogram"] = {"10": 1, "0": 2, "2": 1}
    run_dir.summary.write_text(json.dumps(summary))
    assert read_shown(run_dir).staleness_shares == [(0, 0.5), (2, 0.75), (10, 1.0)]
    counts = [1, 1, 2, *[0] * (len(STALENESS_BOUNDS) - 2)]
    buckets = StalenessBuckets(counts=counts, sum=5)
    append_row(run_dir.progress, progress_row(4, staleness=buckets, train_seconds=7.0))
    with training(folder, "first"):
        shown = read_shown(run_dir)
    one = shown.listed
    assert (one.staleness_mean, one.staleness_p95, one.train_seconds) == (1.25, None, 7.0)
    assert shown.staleness_shares == [(0, 0.25), (1, 0.5), (2, 1.0)]


def test_only_the_newest_runs_are_on_the_page_and_it_says_how_many_are_left_out(folder, told):
    html, data = written(RunsPage(folder, folder.parent / "runs.html", told.append, most_runs=1), folder)
    assert [run["name"] for run in data["runs"]] == ["second"]
    assert "Only the 1 newest runs are on this page: 1 older ones are left out." in html


def test_a_damaged_run_is_named_once_and_on_the_page(page, folder, told):
    (folder / "first/summary.json").write_text("{")
    written(page, folder)
    html, data = written(page, folder)
    assert len(told) == 1 and "first/summary.json" in told[0]
    assert "1 folder could not be read, and is left out" in html and len(data["runs"]) == 1
    (folder / "first/summary.json").unlink()
    html, data = written(page, folder)
    assert "could not be read" not in html and len(data["runs"]) == 2


def test_only_what_has_changed_is_read_again(page, folder):
    second, first = page.poll()
    append_row(RunDir(folder / "first").evaluation, score_row(9))
    again = page.poll()
    assert again[0] is second and again[1] is not first


def test_the_page_is_written_again_while_a_run_trains_and_refreshes_itself_only_then(page, folder):
    html = folder.parent / "runs.html"
    seen, stack = [], contextlib.ExitStack()
    stack.enter_context(training(folder, "second"))

    def wait(seconds):
        assert seconds >= REWRITE_S and REFRESH in html.read_text()
        seen.append(row_of(html.read_text(), "second")[0] == RUNNING)
        if len(seen) == 2:
            stack.close()
        return True

    keep_writing(page, wait)
    assert seen == [True, True, *[False] * IDLE_POLLS], "the next run of a comparison may begin soon"
    assert REFRESH not in html.read_text()


def test_who_stops_the_command_has_a_last_page_that_does_not_refresh_itself(page, folder):
    with training(folder, "second"):
        keep_writing(page, lambda seconds: False)
    html = (folder.parent / "runs.html").read_text()
    assert REFRESH not in html and row_of(html, "second")[0] == RUNNING


def test_text_of_foreign_files_stays_text_and_nothing_is_loaded(page, folder):
    bad = "</script><script>alert(1)</script>"
    config = folder / "first/config.yaml"
    config.write_text(config.read_text().replace("tutorial_cnn", json.dumps(bad)))
    (folder / "second").rename(folder / "<img src=x onerror=alert(1)>")
    (folder / "first/results").mkdir()
    (folder / "first/results/results.html").touch()
    html, data = written(page, folder)
    assert loaded_by(html, has_script=True) == ["./runs/first/results/results.html"]
    assert bad not in html and "<img" not in html
    assert {"values": [bad, "tutorial_cnn"], "key": "model.name", "of": [0, 1]} in data["settings"]
    policy = re.search(r'http-equiv="Content-Security-Policy" content="([^"]*)"', html)[1]
    (script,) = re.findall(r"<script>(.*?)</script>", html, re.S)
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    assert policy.startswith("default-src 'none'") and f"script-src 'sha256-{digest}'" in policy


def test_a_page_that_another_user_could_have_written_is_not_linked(common):  # noqa: F811
    run_dir = RunDir(write_run(common / "mine", Fake({"mode.name": "async"})))
    run_dir.results.mkdir()
    run_dir.results_page.touch()
    with as_user(SOMEBODY):
        assert read_shown(run_dir).page == run_dir.results_page, "root's files are trusted"
    os.chown(run_dir.results_page, SOMEBODY_ELSE, -1)
    with as_user(SOMEBODY):
        assert read_shown(run_dir).page is None


@pytest.mark.slow
def test_a_browser_runs_the_script_and_draws_the_curves_and_the_differences(page, folder):
    """Of the page as it is written: a script that the page's policy refuses, or that fails, draws nothing."""
    written(page, folder)
    shown = dom_of(folder.parent / "runs.html", folder.parent / "browser")
    titles = [f"{name} over {along}" for name in ("Test accuracy", "Test loss") for along in ("time", "images")]
    assert [title for title in re.findall(r"<h3>(.*?)</h3>", shown) if "over" in title] == titles
    assert "2 of 2 runs shown, 2 overlaid" in shown and shown.count('<tr><th scope="row">training.seed</th>') == 1
