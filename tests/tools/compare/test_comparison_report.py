"""From run directories to the page: what is refused, what is said, and what the files hold."""

import csv
import html
import io
import json
import re
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner
from rich.console import Console

from ps_cluster.cli.main import main
from ps_cluster.errors import UserError
from ps_cluster.files.writing import write_whole
from ps_cluster.report.plots import line_styles
from ps_cluster.report.terminal import Output, SafeConsole
from ps_cluster.runs.run_dir import RunDir
from ps_cluster.tools.compare import comparison_report, comparison_run
from ps_cluster.tools.compare.comparison_plan import read_comparison
from ps_cluster.tools.compare.comparison_plots import make_plots
from ps_cluster.tools.compare.comparison_report import chosen_target, print_report, write_report
from ps_cluster.tools.compare.fairness import check, warn_of_rates
from ps_cluster.tools.compare.findings import GroupFinding, differences_of
from ps_cluster.tools.compare.groups import make_groups, make_views
from ps_cluster.tools.compare.records import read_record
from ps_cluster.tools.compare.result_tables import cells, tables
from ps_cluster.tools.compare.verdict import notes, results, verdict
from tests.helpers.data import only_named
from tests.helpers.fake_runs import Fake, simulated_rows, write_run
from tests.helpers.html_pages import loaded_by

pytestmark = pytest.mark.slow

GENERATED = "Generated images: no number here says anything about real data."
MODES = {"sync": (0.70, 100.0), "async": (0.68, 50.0), "sync-ps": (0.7005, 110.0)}


def fake(mode: str, seed: int, straggler: str = "none", **values) -> Fake:
    """`rows`: empty where the report need not have the plots of a ledger, which take a second."""
    accuracy, seconds = MODES[mode]
    accuracy += 0.001 * seed
    slow = 5.0 if straggler != "none" else 1.0
    if mode != "async":
        seconds *= slow
    scores = ((0.3, seconds / 2, 5000), (accuracy, seconds, 10_000))
    if "rows" not in values:
        simulated = "async" if mode == "async" else "sync-ps"
        values["rows"] = simulated_rows(mode=simulated, slow=slow, seed=seed, updates=90)
    settings = {"mode.name": mode, "training.seed": seed, "cluster.straggler": straggler}
    return Fake(settings, scores, train_seconds=seconds, **values)


def write_runs(folder: Path, seeds=(0, 1, 2), stragglers=("none", "2:5x"), modes=tuple(MODES), **values) -> list[Path]:
    return [
        write_run(folder / f"{mode}-{seed}-{index}", fake(mode, seed, straggler, **values))
        for mode in modes
        for seed in seeds
        for index, straggler in enumerate(stragglers)
    ]


@pytest.fixture
def no_plots(monkeypatch):
    """A report without pictures, which take a second."""
    monkeypatch.setattr(comparison_report, "make_plots", lambda *_: [])


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    folder = tmp_path_factory.mktemp("comparison")
    return write_report(write_runs(folder / "runs"), folder / "report")


def groups_and_views(roots):
    groups = make_groups([read_record(root) for root in roots])
    return groups, make_views(groups)


def written_runs(folder: Path, *runs: Fake | dict) -> list[Path]:
    """Write runs, which are given whole or by their settings."""
    return [
        write_run(folder / str(number), one if isinstance(one, Fake) else Fake(one)) for number, one in enumerate(runs)
    ]


def checked(roots, **options) -> list[str]:
    """Return what a report on runs says of their differences."""
    records = [read_record(root) for root in roots]
    return check(records, make_groups(records), force=False, **options)


def findings(groups, target=None):
    return [GroupFinding.of(group, target) for group in groups]


def differences(roots, target=0.5) -> list[dict[str, str]]:
    """The cells of the table of differences."""
    groups, views = groups_and_views(roots)
    *_, table = tables(findings(groups, target), differences_of(groups, views, target))
    assert table.title.startswith("Differences")
    return list(table.rows)


def noted(roots, target=0.5) -> list[str]:
    return list(notes(groups_and_views(roots)[0], target))


def judged(roots, target=0.5) -> list[str]:
    groups, views = groups_and_views(roots)
    return list(verdict(groups, differences_of(groups, views, target), target))


def test_every_file_is_there_and_holds_the_same_numbers(written):
    folder = written.page.parent
    plots = {"accuracy-over-time", "accuracy-over-examples"}
    files = {f"{name}.{end}" for name in plots for end in ("png", "svg")}
    assert {path.name for path in (folder / "plots").iterdir()} == files
    report = json.loads((folder / "report.json").read_text())
    rows = list(csv.DictReader(io.StringIO((folder / "rows.csv").read_text())))
    groups = list(csv.DictReader(io.StringIO((folder / "groups.csv").read_text())))
    assert (len(rows), len(report["rows"])) == (18, 18) and (len(groups), len(report["groups"])) == (6, 6)
    assert [float(row["test_accuracy"]) for row in rows] == [row["test_accuracy"] for row in report["rows"]]
    assert report["groups"][0]["test_accuracy_mean"] == pytest.approx(0.701)
    assert report["groups"][0]["test_accuracy_sd"] == pytest.approx(0.001)
    assert report["target"] == 0.65 and report["headline"] == list(written.headline)
    first = report["differences"][0]
    assert (first["arm"], first["against"], first["straggler"], first["n"]) == ("sync-ps", "sync", "none", 3)
    assert [first[f"test_accuracy_difference{part}"] for part in ("", "_low", "_high")] == pytest.approx([0.0005] * 3)


def test_the_page_needs_nothing_besides_itself(written):
    loaded = loaded_by(written.page.read_text(), has_script=True)
    assert len(loaded) == 2 and all(value.startswith("data:image/svg+xml;base64,") for value in loaded)


def test_the_page_says_what_was_found_and_what_the_runs_were(written):
    page = written.page.read_text()
    headings = re.findall(r"<h2[^>]*>(.*?)</h2>", page)
    assert headings == [
        "What was compared", "The numbers", "Plots", "Settings and machines of the runs", "How the numbers are defined"
    ]  # fmt: skip
    for table in written.tables:
        assert html.escape(table.title) in page
        assert all(html.escape(row[key]) in page for row in table.rows for key in table.columns)
    assert "python cli.py run" in page and "mode.name=sync-ps" in page


def test_the_page_says_on_which_machines_the_runs_were_trained(tmp_path, no_plots):
    machines = [{"processor": name, "cores": 2, "avx512_bf16": True} for name in ("Some EPYC", "Some EPYC", "A Xeon")]
    runs = (Fake({"training.seed": seed}, machine=machine) for seed, machine in enumerate([*machines, None]))
    roots = written_runs(tmp_path, *runs)
    page = write_report(roots, tmp_path / "report").page.read_text()
    trained_on = re.findall(
        "<dt>(?:runs|processor|cores|avx512_bf16)</dt><dd>(.*?)</dd>", page.split("<h3>Machines</h3>")[1]
    )
    assert trained_on == ["2", "Some EPYC", "2", "true", "1", "A Xeon", "2", "true"]
    assert "None of these runs recorded its machine." in write_report(roots[3:], tmp_path / "old").page.read_text()


def test_names_from_elsewhere_are_text_in_the_page_and_on_the_terminal(tmp_path):
    nasty = "<script>alert(1)</script>[bold]$x_{$\x1b[2J"
    folder = tmp_path / nasty.replace("/", "|")
    report = write_report(
        write_runs(folder / "runs", (0,), ("none",), machine={"cpu": nasty.replace("\x1b", "")}), folder / "report"
    )
    page = report.page.read_text()
    assert page.count("<script") == 1 and "<script>alert" not in page  # the script that sorts the tables
    assert page.count("&lt;script&gt;alert(1)") == 1  # the processor
    terminal = io.StringIO()
    print_report(report, SafeConsole(Output(terminal)))
    assert "<script>alert(1)<|script>[bold]$x_{$?[2J" in terminal.getvalue() and "\x1b" not in terminal.getvalue()


def test_every_axis_of_every_plot_has_a_unit(tmp_path):
    groups = make_groups([read_record(root) for root in write_runs(tmp_path)])
    plots = make_plots(groups, make_views(groups))
    assert len(plots) == 2
    for plot in plots:
        shown = [axes for axes in plot.figure.axes if axes.get_visible()]
        assert shown and plot.caption
        # Panels that share an axis have it labelled at the last of them.
        numbered = [axes for axes in shown if axes.xaxis.get_tick_params()["labelbottom"]]
        labels = [*(axes.get_xlabel() for axes in numbered), *(axes.get_ylabel() for axes in shown)]
        assert numbered
        for label in labels:
            assert re.search(r"\[.+\]$", label), f"{plot.name}: {label!r}"


def test_a_difference_has_its_interval_as_have_the_ratios_of_speeds_and_times(tmp_path):
    (row,) = [row for row in differences(write_runs(tmp_path, stragglers=("none",))) if row["arm"] == "async"]
    assert (row["against"], row["batch"]) == ("sync 128", "128 / 128")
    assert row["difference"] == "-2.00 (-2.00 to -2.00)" and row["speed_ratio"] == "2.00 (2.00 to 2.00)"
    assert row["time_ratio"].startswith("0.51 (0.51 to ")


def test_an_interval_that_holds_zero_is_marked_and_no_difference_is_shown(tmp_path):
    accuracies = {"sync": (0.70, 0.71, 0.69), "sync-ps": (0.71, 0.70, 0.69)}
    runs = (
        Fake({"mode.name": mode, "training.seed": seed}, ((value, 20.0, 9000),))
        for mode, values in accuracies.items()
        for seed, value in enumerate(values)
    )
    roots = written_runs(tmp_path, *runs)
    (row,) = differences(roots)
    assert row["difference"].startswith("~ ") and row["difference"].endswith("(-2.48 to +2.48)")
    assert row["speed_ratio"] == "~ 1.00 (1.00 to 1.00)"
    assert judged(roots) == [
        "sync-ps against sync (same batch per update and per worker: 384 and 128 images; 3 seeds): no clear difference in "
        "images/s (1.00 times, 95 % interval 1.00 to 1.00); the time to 50 % is not compared, as it was not measured in every "
        "run; no clear difference in the final test accuracy (+0.00 points, 95 % interval -2.48 to +2.48)."
    ]


def test_the_verdict_says_in_words_what_was_measured_of_speed_time_and_metric(tmp_path):
    (line,) = (line for line in judged(write_runs(tmp_path, stragglers=("none",))) if line.startswith("async "))
    assert line.startswith(
        "async against sync (same batch per worker: 128 images; 3 seeds): more images/s (2.00 times, 95 % interval "
    )
    assert "; 50 % is reached sooner (0.51 times the time, " in line
    assert line.endswith("; a lower final test accuracy (-2.00 points, 95 % interval -2.00 to -2.00).")


def test_what_each_arm_reached_is_said_in_words(tmp_path):
    groups, _ = groups_and_views(write_runs(tmp_path, stragglers=("none",), modes=("sync",)))
    assert list(results(findings(groups, 0.65))) == [
        "sync (128 images per worker; means of 3 runs): final test accuracy 70.10 %, 102 images/s, 65 % after 93.6 s, "
        "staleness 0.00."
    ]


def test_a_mean_over_some_runs_of_a_group_says_over_how_many(tmp_path):
    runs = [
        Fake({"training.seed": seed}, ((0.3, 10.0, 4000), (value, 20.0, 9000)), broken=int(seed == 2))
        for seed, value in enumerate((0.7, 0.5, 0.6))
    ]
    (group,), _ = groups_and_views(written_runs(tmp_path, *runs))
    (line,) = results(findings([group], 0.6))
    assert "means of 3 runs): final test accuracy 60.00 % (2 of 3 runs), " in line
    assert ", 60 % after 17.5 s (1 of 3 runs)" in line
    (line,) = results(findings([group], 0.9))
    assert ", 90 % not reached" in line
    assert cells(GroupFinding.of(group, 0.6))["seconds"] == "17.5 (1 of 3 runs)"


def test_of_many_groups_the_first_are_told_and_the_number_of_the_others(tmp_path):
    settings = ({"optimizer.learning_rate": 0.001 * number} for number in range(1, 11))
    groups, _ = groups_and_views(written_runs(tmp_path, *settings))
    assert list(results(findings(groups)))[8:] == ["2 more groups are in the tables."]


def test_the_verdict_stands_before_all_numbers_on_the_page_and_on_the_terminal(written):
    first = written.headline[0]
    assert any(" against sync " in line for line in written.headline)
    page, terminal = written.page.read_text(), io.StringIO()
    print_report(written, Console(file=terminal, width=500))
    assert page.index(html.escape(first)) < min(page.index(mark) for mark in ("<h2", "<table", "<img"))
    assert terminal.getvalue().strip().startswith(f"- {first}")


def test_one_seed_has_no_interval_and_is_said_to_prove_nothing(tmp_path):
    roots = write_runs(tmp_path, seeds=(0,), stragglers=("none",))
    assert all("(" not in row["difference"] + row["speed_ratio"] for row in differences(roots))
    proof, *others = judged(roots)
    (of_async,) = (line for line in others if line.startswith("async "))
    assert proof.startswith("This proves nothing: each arm has one seed,") and "--seeds 3" in proof
    assert "1 seed): more images/s in this run (2.00 times); 50 % is reached sooner in this run (" in of_async


def test_of_many_pairs_the_verdict_names_some_and_says_how_many_there_are(tmp_path):
    settings = [{"mode.name": "sync"}, *({"optimizer.learning_rate": 0.001 * number} for number in range(1, 12))]
    roots = written_runs(tmp_path, *settings)
    lines = judged(roots)
    assert len(lines) == 10 and lines[-1] == "3 more pairs are in the table of differences."


def test_what_a_straggler_costs_is_told_against_the_same_arm_without_one(tmp_path):
    rows = [row for row in differences(write_runs(tmp_path)) if "straggler none" in row["against"]]
    assert [(row["arm"], row["straggler"], row["against"].split()[0]) for row in rows] == [
        (arm, "2:5x", arm) for arm in ("sync", "async", "sync-ps")
    ]
    assert [row["speed_ratio"] for row in rows[:2]] == ["0.20 (0.20 to 0.20)", "~ 1.00 (1.00 to 1.00)"]


def staleness_runs(folder: Path) -> list[Path]:
    """Plain async, which diverges with 30 simulated workers, always or for one seed, and two methods against that."""
    plain = {"mode.simulate_workers": 30}
    method = plain | {"staleness.method": "inverse"}
    arms = [
        ({"mode.name": "single"}, (0.70, 0.71, 0.72), ()),
        ({}, (0.60, 0.61, 0.625), ()),
        ({"mode.simulate_workers": 8}, (0.20, 0.0, 0.21), (1,)),
        (plain, (0.0, 0.0, 0.0), (0, 1, 2)),
        (method, (0.30, 0.31, 0.32), ()),
        (method | {"staleness.method": "gap_aware"}, (0.30, 0.11, 0.32), ()),
    ]
    return [
        write_run(
            folder / f"{number}-{seed}",
            Fake(settings | {"training.seed": seed}, ((value, 20.0, 9000),), broken=int(seed in broken)),
        )
        for number, (settings, values, broken) in enumerate(arms)
        for seed, value in enumerate(values)
    ]


def test_what_diverged_is_called_so_and_not_compared(tmp_path):
    rows = {row["arm"]: row for row in differences(staleness_runs(tmp_path))}
    for arm in ("async k=30", "async k=8"):
        assert [rows[arm][name] for name in ("difference", "speed_ratio", "time_ratio")] == ["–"] * 3
    assert "Diverged: async k=8 (1 of 3 runs), async k=30 (3 of 3 runs)." in noted(staleness_runs(tmp_path / "again"))


def test_an_arm_that_did_not_learn_is_named(tmp_path):
    roots = written_runs(tmp_path, {"mode.name": "async"}, {"mode.name": "sync"})
    summary = RunDir(roots[0]).summary
    summary.write_text(json.dumps(json.loads(summary.read_text()) | {"learned": False}))
    assert "These arms have a run that is not better than guessing: async." in noted(roots)


def test_runs_that_differ_in_much_are_refused_in_a_line_that_fits_into_a_terminal(tmp_path):
    long = [write_run(tmp_path / str(n), Fake({"training.seed": n, "cluster.workers": 1 + n % 8})) for n in range(40)]
    other = Fake({"mode.name": "sync", "model.name": "airbench"}, examples=99_999, dataset_kind="synthetic")
    with pytest.raises(UserError) as error:
        write_report([*long, write_run(tmp_path / "other", other)], tmp_path / "report")
    told = str(error.value)
    assert all(part in told for part in ("they differ in dataset_kind", "config.yaml", "--force"))
    assert re.search(r"\(and \d+ more\)", told)
    assert len(told) <= 300


def test_runs_that_diverged_are_crosses_above_the_panel_and_in_no_line(tmp_path):
    for plot in make_plots(*groups_and_views(staleness_runs(tmp_path))):
        [axes] = plot.figure.axes
        crosses = [line for line in axes.lines if line.get_marker() == "x"]
        assert sorted(len(line.get_xdata()) for line in crosses) == [1, 3]
        assert all(y > 1 for line in crosses for y in line.get_ydata()), "as a share of the panel's height"
        assert all(y > 0 for line in axes.lines if line.get_marker() not in ("x", "None") for y in line.get_ydata())
        [legend] = plot.figure.legends
        assert {"async k=8: diverged", "async k=30: diverged"} < {text.get_text() for text in legend.get_texts()}
        assert "diverged" in plot.caption


def test_16_arms_have_looks_of_their_own_and_a_legend_outside_of_the_curves(tmp_path):
    found = line_styles([str(number) for number in range(35)]).values()
    assert len({(style.color, style.line) for style in found}) == 35
    settings = [{"optimizer.learning_rate": round(0.001 * number, 4)} for number in range(1, 17)]
    roots = written_runs(tmp_path, *settings)
    plot = make_plots(*groups_and_views(roots))[0]
    assert plot.png
    [legend] = plot.figure.legends
    assert len(legend.get_texts()) == 16
    panels = [axes.get_window_extent() for axes in plot.figure.axes if axes.get_visible()]
    box = legend.get_window_extent()
    assert all(not box.overlaps(panel) for panel in panels)
    assert box.x1 <= plot.figure.bbox.x1


def test_a_target_below_the_first_score_is_not_compared(tmp_path):
    roots = write_runs(tmp_path, stragglers=("none",))
    assert {row["time_ratio"] for row in differences(roots, target=0.2)} == {"–"}
    assert noted(roots, target=0.2)[-1].startswith(
        "9 of 9 runs may have reached the target long before they were scored"
    )
    assert all("the time to 20 % is not compared" in line for line in judged(roots, target=0.2))


def test_no_time_is_read_off_a_line_over_most_of_the_training(tmp_path):
    """The first checkpoint of such runs was that of update 115 of 130."""
    scores = ((0.1, 0.0, 0), (0.45, 9.0, 9000), (0.5, 10.0, 10_000))
    roots = [write_run(tmp_path / mode, Fake({"mode.name": mode}, scores)) for mode in ("sync", "async")]
    assert {row["time_ratio"] for row in differences(roots, target=0.35)} == {"–"}
    assert {row["time_ratio"] for row in differences(roots, target=0.48)} == {"1.00"}
    groups, _ = groups_and_views(roots)
    assert [cells(one)["seconds"] for one in findings(groups, 0.35)] == ["≤ 9.0", "≤ 9.0"]


@pytest.mark.parametrize(
    ("first", "best", "target"),
    [
        ((0.1, 0.1), (0.71, 0.66), 0.65),
        ((0.1, 0.1), (0.65, 0.9), 0.65),
        ((0.02,), (0.034,), 0.03),
        ((0.0,), (0.0,), None),
        ((0.36, 0.1), (0.39, 0.41), 0.39),  # 35 % was there at the first score of one of them
        ((0.38, 0.1), (0.384, 0.41), None),
    ],
)
def test_default_target_is_the_highest_round_accuracy_that_all_crossed_between_two_scores(
    tmp_path, first, best, target
):
    runs = [Fake({}, scores=((low, 1.0, 10), (high, 2.0, 20)), guess=0.01) for low, high in zip(first, best)]
    roots = written_runs(tmp_path, *runs)
    assert chosen_target([read_record(root) for root in roots], None) == target
    if target is None:
        assert noted(roots, None)[-1].startswith("No time to a target is compared")


def test_the_report_says_whether_all_runs_were_scored_at_the_same_numbers_of_images(tmp_path, no_plots):
    scores = ((0.1, 0.0, 0), (0.4, 10.0, 5000), (0.6, 20.0, 10_000))
    late = (scores[0], (0.4, 10.0, 5200), scores[2])
    for name, others, says in (
        ("alike", late, "3, at about the same numbers of images (at most 2.0% of the training apart)"),
        ("fewer", scores[1:], "2 to 3, not at the same numbers of images"),
    ):
        runs = [Fake({"mode.name": mode}, one) for mode, one in (("sync", scores), ("async", others))]
        roots = [write_run(tmp_path / name / str(index), run) for index, run in enumerate(runs)]
        page = write_report(roots, tmp_path / name / "report").page.read_text()
        assert f"<dt>scores of each run</dt><dd>{says}</dd>" in page


def unequal(tmp_path, **changes) -> list[Path]:
    return [
        *write_runs(tmp_path / "runs", (0,), ("none",), ("sync",), rows=()),
        write_run(tmp_path / "other", fake("async", rows=(), **changes)),
    ]


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"seed": 1}, "differ in seeds: 0 \\(sync, batch 128 per worker, straggler none\\) against 1 \\(async"),
        ({"seed": 0, "dataset_kind": "synthetic"}, "differ in dataset_kind: real, synthetic"),
        (
            {"seed": 0, "examples": 12_000},
            "differ by more than 2% in the number of examples trained on: 10,240 .* to 12,000",
        ),
    ],
)
def test_what_must_be_equal_and_is_not_is_refused_by_name_unless_forced(tmp_path, no_plots, changes, named):
    roots = unequal(tmp_path, **changes)
    with pytest.raises(UserError, match=named) as refusal:
        write_report(roots, tmp_path / "report")
    assert "--force" in str(refusal.value) and "\n" not in str(refusal.value)
    assert not (tmp_path / "report").exists()

    report = write_report(roots, tmp_path / "report", force=True)
    forced = [line for line in report.warnings if line.startswith("Not a fair comparison of these runs (--force)")]
    assert len(forced) == 1 and re.search(named, forced[0])
    page = report.page.read_text()
    assert page.index("Not a fair comparison") < page.index("What was compared")
    assert (GENERATED in report.warnings) == ("dataset_kind" in changes)


def write_time_limited_runs(folder: Path, **seconds: float) -> list[Path]:
    """Write two runs for each mode, with a time limit of 40 s. `seconds`: mode → the seconds that its runs trained."""
    roots = []
    for mode, trained in seconds.items():
        examples = 1000 * len(mode)
        scores = tuple((0.1 * quarter, trained * quarter / 4, examples * quarter // 4) for quarter in range(1, 5))
        for seed in (0, 1):
            settings = {"mode.name": mode, "training.seed": seed, "training.max_seconds": 40.0}
            run = Fake(settings, scores, examples=examples, train_seconds=trained, outcome="stopped", limit_s=40.0)
            roots.append(write_run(folder / f"{mode}-{seed}", run))
    return roots


def test_runs_with_one_time_limit_may_differ_in_examples_and_are_compared_at_three_times(tmp_path, no_plots):
    report = write_report(write_time_limited_runs(tmp_path / "runs", sync=40.0, single=44.0), tmp_path / "report")
    (table,) = (one for one in report.tables if one.title.startswith("Accuracy after the same time"))
    assert list(table.columns.values())[3:] == ["after 10 s [%]", "after 20 s [%]", "after 40 s [%]"]
    (of_sync,) = (texts for texts in table.texts if texts[0] == "sync")
    assert of_sync[3:] == ["10.00 ± 0.00", "20.00 ± 0.00", "40.00 ± 0.00"]
    (row, *_) = csv.DictReader(io.StringIO((tmp_path / "report" / "rows.csv").read_text()))
    assert float(row["test_accuracy_after_20_s"]) == pytest.approx(0.2)


def test_runs_that_did_not_train_for_equal_times_are_refused(tmp_path, no_plots):
    roots = write_time_limited_runs(tmp_path / "runs", sync=40.0, single=30.0)
    with pytest.raises(UserError, match="'single-0' trained for only 30.0 of 40 s"):
        write_report(roots, tmp_path / "report")
    page = write_report(roots, tmp_path / "forced", force=True).page.read_text()
    assert "2 of 4 runs have no score at the time limit, so they have no final test accuracy." in page
    assert "the final test accuracy is not compared, because it is missing in some runs" in page


def test_a_run_whose_only_score_came_after_its_time_limit_has_no_final_score(tmp_path):
    settings = {"training.max_seconds": 4.0}
    late = Fake(settings, ((0.3, 4.3, 500),), train_seconds=4.3, outcome="stopped", limit_s=4.0)
    roots = written_runs(tmp_path, late, Fake({"mode.name": "sync", **settings}, ((0.3, 4.0, 500),), train_seconds=4.0))
    (row,) = differences(roots)
    assert row["difference"] == "–" and row["speed_ratio"] != "–"
    assert any(line.startswith("1 of 2 runs have no score at the time limit") for line in noted(roots))


def test_runs_that_completed_their_epochs_before_a_time_limit_are_compared_by_equal_work(tmp_path, no_plots):
    settings = {"training.max_seconds": 4000.0}
    runs = [
        Fake({"mode.name": mode, **settings}, train_seconds=seconds)
        for mode, seconds in (("sync", 20.0), ("async", 15.0))
    ]
    report = write_report(written_runs(tmp_path, *runs), tmp_path / "report")
    assert not [one.title for one in report.tables if "after the same time" in one.title]


def test_a_run_that_diverged_and_ended_before_the_others_is_compared_with_them(tmp_path, no_plots):
    report = write_report(unequal(tmp_path, seed=0, examples=1_000, broken=2), tmp_path / "report")
    assert not [line for line in report.warnings if "examples" in line]
    assert "Diverged: async (1 of 1 runs)." in report.page.read_text()


@pytest.mark.parametrize(
    ("setting", "value", "named"),
    [
        ("optimizer.rule", "nesterov", "differ in optimizer.rule: muon, nesterov"),
        ("data.augmentation.flip", "none", "differ in data.augmentation.flip: random, none"),
        ("checkpoints.every_seconds", 5.0, "differ in checkpoints.every_seconds: auto, 5.0"),
    ],
)
def test_runs_that_differ_in_a_setting_that_is_not_the_arms_own_are_refused(tmp_path, setting, value, named):
    roots = written_runs(tmp_path, {"mode.name": "sync"}, {"mode.name": "async", setting: value})
    with pytest.raises(UserError, match=named):
        checked(roots)
    assert checked(roots, arm_keys={setting}) == []


SIMULATED = {"mode.simulate_workers": 8, "staleness.method": "dc_constant", "staleness.strength": 2.0}


@pytest.mark.parametrize(
    "settings",
    [
        {"optimizer.learning_rate": 0.003, "optimizer.momentum": 0.5},
        {"mode.name": "bounded", "mode.max_staleness": 2, "cluster.workers": 4},
        SIMULATED,
        {"mode.name": "bounded"},  # its recipe clips and forgets otherwise
    ],
)
def test_settings_that_are_an_arms_own_may_differ(tmp_path, settings):
    assert checked(written_runs(tmp_path, {"mode.name": "sync"}, {"mode.name": "async"}, settings)) == []


MACHINE = {"processor": "A Xeon", "tensorflow": "2.20.0", "commit": "392b7299c0de"}
PINNED = [{"mode.name": mode, "cluster.pin_workers": "auto"} for mode in ("sync", "async", "single")]


@pytest.mark.parametrize(
    ("runs", "says"),
    [
        *(
            ([Fake({"mode.name": "sync"}, machine=MACHINE), Fake({}, machine=MACHINE | {what: "another"})],
             f"differ in {what}: {value}, another")
            for what, value in MACHINE.items()
        ),
        (PINNED, "differ in whether each worker has its own cores: false, true"),
        ([{}, {"mode.name": "sync", "cluster.isolation": "off"}], "differ in cluster.isolation: auto, off"),
    ],
)  # fmt: skip
def test_runs_in_other_surroundings_are_compared_with_a_word_on_top(tmp_path, runs, says):
    (said,) = checked(written_runs(tmp_path, *runs))
    assert says in said


def test_workers_of_one_process_are_placed_like_those_of_asynchronous_modes(tmp_path):
    assert checked(written_runs(tmp_path, *PINNED[1:])) == []


@pytest.mark.parametrize(
    "own", [{"training.batch_size_per_worker": 96}, {"optimizer.learning_rate": 0.02}], ids=["batch", "rate"]
)
def test_rates_that_the_comparison_scaled_are_said_also_where_batch_or_rate_is_the_users_own(
    tmp_path, monkeypatch, own
):
    def start_run(config, root, **_):
        write_run(root, Fake({"mode.name": config.mode.name}))
        write_whole(RunDir(root).config, config.to_yaml())

    monkeypatch.setattr(comparison_run, "start_run", start_run)
    monkeypatch.setattr(comparison_run, "outcome_of", lambda root: "completed" * RunDir(root).summary.is_file())
    monkeypatch.setattr(comparison_run, "resolve_data", lambda *_, notify: only_named())
    changes = {"arms": [{"mode": "async"}, {"mode": "sync"}], "seeds": 1, "batches": ["same_per_worker"]}
    fixed = {"model.name": "tutorial_cnn", "data.dataset": "cifar10"}
    roots, code = comparison_run.train_all(read_comparison(None, changes, fixed | own), tmp_path)
    assert not code
    (said,) = warn_of_rates(make_groups([read_record(root) for root in roots]))
    assert ": sync " in said and ": async " not in said and "optimizer is muon" in said


def test_models_that_differ_are_refused(tmp_path):
    roots = written_runs(tmp_path, {}, {"model.name": "resnet_small"})
    with pytest.raises(UserError, match="differ in model: tutorial_cnn, resnet_small"):
        write_report(roots, tmp_path / "report")


def test_a_run_counts_once(tmp_path):
    root = write_run(tmp_path / "run", Fake({}))
    with pytest.raises(UserError, match="is given twice"):
        write_report([root, tmp_path / "." / "run"], tmp_path / "report", force=True)
    again = write_run(tmp_path / "again", Fake({}))
    with pytest.raises(UserError, match="a seed occurs more than once in one group: 0,0"):
        write_report([root, again], tmp_path / "report")


@pytest.mark.parametrize("width", [80, 200])
def test_the_printed_tables_fit_the_terminal_and_have_a_row_for_each_group(written, width):
    output = io.StringIO()
    print_report(written, Console(file=output, width=width))
    *lines, last = output.getvalue().splitlines()
    tables = lines[next(number for number, line in enumerate(lines) if written.tables[0].title in line) :]
    assert max(map(len, tables)) <= width and last.endswith("report.html")
    if width == 200:
        row = next(line for line in tables if line.startswith("sync ") and "2:5x" in line)
        assert "70.10 ± 0.10" in row and "128 / 384" in row
        assert sum(line.startswith("sync ") and "128 / 384" in line for line in tables) == 2 * len(written.tables) - 1


def test_a_report_on_finished_runs_replaces_nothing_but_another(tmp_path, no_plots):
    roots = write_runs(tmp_path / "runs", seeds=(0, 1), stragglers=("none",), rows=())
    folder = tmp_path / "report"
    folder.mkdir()
    words = ["compare", *map(str, roots), "--output", str(folder)]
    for name, told in (
        ("rows.csv", "is not empty and holds no report"),
        ("comparison.yaml", "the runs that it has trained"),
    ):
        (folder / name).write_text("mine")
        ended = CliRunner().invoke(main, words)
        assert ended.exit_code == 2 and told in ended.output and (folder / name).read_text() == "mine"
        (folder / name).unlink()
    assert [CliRunner().invoke(main, words).exit_code for _ in range(2)] == [0, 0]


def test_a_target_that_guessing_reaches_is_none(tmp_path):
    records = [read_record(root) for root in write_runs(tmp_path, seeds=(0, 1), stragglers=("none",))]
    assert chosen_target(records, None) is not None
    best = max(record.best for record in records)
    guessed = [replace(one, summary=one.summary.model_copy(update={"guess": best})) for one in records]
    assert chosen_target(guessed, None) is None and chosen_target(guessed, 0.05) == 0.05
