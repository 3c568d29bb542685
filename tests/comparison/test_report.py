"""From run directories to the page: what is refused, what is said, and what the files hold."""

import csv
import io
import json
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path

import pytest
from rich.console import Console

from ps_cluster.comparison.groups import make_groups, make_views
from ps_cluster.comparison.plots import make_plots
from ps_cluster.comparison.records import read_record
from ps_cluster.comparison.report import SYNTHETIC, default_target, print_report, write_report
from ps_cluster.comparison.words import findings
from ps_cluster.errors import UserError
from tests.comparison.fake_runs import Fake, simulated_rows, write_run

MODES = {"sync": (0.70, 100.0), "async": (0.68, 50.0), "sync-ps": (0.7005, 110.0)}


def fake(mode: str, seed: int, straggler: str = "none", **values) -> Fake:
    accuracy, seconds = MODES[mode]
    accuracy += 0.001 * seed
    slow = 5.0 if straggler != "none" else 1.0
    if mode != "async":
        seconds *= slow
    scores = ((0.3, seconds / 2, 5000), (accuracy, seconds, 10_000))
    rows = simulated_rows(mode="async" if mode == "async" else "sync-ps", slow=slow, seed=seed, updates=90)
    settings = {"training.mode": mode, "training.seed": seed, "cluster.straggler": straggler}
    return Fake(settings, scores, train_seconds=seconds, rows=rows, **values)


def write_runs(folder: Path, seeds=(0, 1, 2), stragglers=("none", "2:5x"), modes=tuple(MODES), **values) -> list[Path]:
    return [
        write_run(folder / f"{mode}-{seed}-{index}", fake(mode, seed, straggler, **values))
        for mode in modes
        for seed in seeds
        for index, straggler in enumerate(stragglers)
    ]


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    folder = tmp_path_factory.mktemp("comparison")
    return write_report(write_runs(folder / "runs"), folder / "report")


def sentences(roots, target=0.5) -> dict[str, tuple[str, ...]]:
    groups = make_groups([read_record(root) for root in roots])
    return {section.about: section.sentences for section in findings(groups, make_views(groups), target)}


def test_every_file_is_there_and_holds_the_same_numbers(written):
    folder = written.page.parent
    plots = {
        "accuracy-over-time", "accuracy-over-examples", "throughput", "staleness", "accuracy-over-staleness",
        "timeline-none", "timeline-2-5x",
    }  # fmt: skip
    assert {path.name for path in (folder / "plots").iterdir()} == {
        f"{n}.{end}" for n in plots for end in ("png", "svg")
    }
    report = json.loads((folder / "report.json").read_text())
    rows = list(csv.DictReader(io.StringIO((folder / "rows.csv").read_text())))
    groups = list(csv.DictReader(io.StringIO((folder / "groups.csv").read_text())))
    assert (len(rows), len(report["rows"])) == (18, 18) and (len(groups), len(report["groups"])) == (6, 6)
    assert [float(row["test_accuracy"]) for row in rows] == [row["test_accuracy"] for row in report["rows"]]
    assert report["groups"][0]["test_accuracy_mean"] == pytest.approx(0.701)
    assert report["groups"][0]["test_accuracy_sd"] == pytest.approx(0.001)
    assert report["target_accuracy"] == 0.65
    assert report["findings"] == [
        {"about": section.about, "sentences": list(section.sentences)} for section in written.findings
    ]


class References(HTMLParser):
    """Everything that a browser would fetch."""

    def __init__(self):
        super().__init__()
        self.found, self.tags = [], set()

    def handle_starttag(self, tag, attributes):
        self.tags.add(tag)
        self.found += [value for name, value in attributes if name in ("src", "href", "srcset", "data", "action")]


def test_the_page_needs_nothing_besides_itself(written):
    page = written.page.read_text()
    references = References()
    references.feed(page)
    assert len(references.found) == 7
    assert all(value.startswith("data:image/svg+xml;base64,") for value in references.found)
    assert not references.tags & {"script", "link", "iframe", "object"}
    assert "url(" not in page and "@import" not in page


def test_the_page_says_what_was_found_and_what_the_runs_were(written):
    page = written.page.read_text()
    headings = re.findall(r"<h2[^>]*>(.*?)</h2>", page)
    assert headings == [
        "What was compared", "What was found", "The numbers", "Plots", "What each run was", "How the numbers are defined"
    ]  # fmt: skip
    for section in written.findings:
        for sentence in section.sentences:
            assert sentence in page
    assert "python cli.py run" in page and "training.mode=sync-ps" in page


def test_every_axis_of_every_plot_has_a_unit(tmp_path):
    groups = make_groups([read_record(root) for root in write_runs(tmp_path)])
    plots = make_plots(groups, make_views(groups))
    assert len(plots) == 7
    for plot in plots:
        shown = [axes for axes in plot.figure.axes if axes.get_visible()]
        assert shown and plot.caption
        for label in (text for axes in shown for text in (axes.get_xlabel(), axes.get_ylabel())):
            assert re.search(r"\[.+\]$", label), f"{plot.name}: {label!r}"


def test_plots_without_data_are_left_out(tmp_path):
    roots = [write_run(tmp_path / mode, Fake({"training.mode": mode})) for mode in ("async", "sync")]
    groups = make_groups([read_record(root) for root in roots])
    names = [plot.name for plot in make_plots(groups, make_views(groups))]
    assert names == ["accuracy-over-time", "accuracy-over-examples"]


def test_differences_are_told_where_the_interval_leaves_none_out(tmp_path):
    found = sentences(write_runs(tmp_path, stragglers=("none",)))
    [against] = found["Against sync: no straggler, same batch per worker: 128 images"]
    assert "68.10 % against 70.10 %: 2.00 points lower (-2.00 to -2.00)" in against
    assert "throughput 2.00 times (2.00 to 2.00); time to 50 % test accuracy 0.51 times" in against
    assert against.endswith("3 seeds, paired.")


def test_no_difference_is_shown_where_the_interval_holds_zero(tmp_path):
    accuracies = {"sync": (0.70, 0.71, 0.69), "sync-ps": (0.71, 0.70, 0.69)}
    roots = [
        write_run(
            tmp_path / f"{mode}-{seed}", Fake({"training.mode": mode, "training.seed": seed}, ((value, 20.0, 9000),))
        )
        for mode, values in accuracies.items()
        for seed, value in enumerate(values)
    ]
    [against] = sentences(roots)["Against sync: no straggler, same batch: 128 images per worker, 384 per update"]
    assert "70.00 % against 70.00 %: no difference shown (-2.48 to +2.48 points)" in against
    assert "higher" not in against and "lower" not in against


def test_one_seed_claims_nothing(tmp_path):
    found = sentences(write_runs(tmp_path, seeds=(0,)))
    for about, lines in found.items():
        for line in lines:
            assert "one seed: no interval" in line.lower()
            assert "lower" not in line and "higher" not in line, about


def test_what_a_straggler_costs_is_told_against_the_same_arm_without_one(tmp_path):
    found = sentences(write_runs(tmp_path))
    lines = found["What a straggler costs each arm, against itself without one"]
    assert [line.split(",")[0] for line in lines] == ["sync", "async", "sync-ps"]
    assert "throughput 0.20 times (0.20 to 0.20)" in lines[0]
    assert "throughput 1.00 times, no difference shown (1.00 to 1.00)" in lines[1]


def test_measured_staleness_is_held_against_the_number_of_workers_less_one(tmp_path):
    [line] = sentences(write_runs(tmp_path, modes=("async",), stragglers=("none",)))["Staleness that was measured"]
    assert re.search(
        r"mean staleness 1\.\d\d \(sd 0\.\d\d over 3 seeds\), at most \d; 3 equally fast workers .* 2\.$", line
    )


def test_a_bound_that_was_exceeded_is_told(tmp_path):
    rows = ((1, 0, 0, 0, 0, 1, 2, 2, 3), (2, 4, 1, 0, 0, 1, 2, 2, 4))
    run = write_run(tmp_path / "run", Fake({"training.mode": "bounded"}, rows=rows))
    [line] = sentences([run])["Staleness that was measured"]
    assert line.endswith("at most 4; the bound of 3 was EXCEEDED.")


def test_a_target_below_the_first_score_is_not_compared(tmp_path):
    found = sentences(write_runs(tmp_path, stragglers=("none",)), target=0.2)
    assert found["The target accuracy"][0].startswith("The first score of 9 of 9 runs was at 20 % test accuracy")
    assert "time to" not in found["Against sync: no straggler, same batch per worker: 128 images"][0]


@pytest.mark.parametrize(
    ("best", "target"), [((0.71, 0.66), 0.65), ((0.65, 0.9), 0.65), ((0.034,), 0.03), ((0.0,), None)]
)
def test_default_target_is_the_highest_round_accuracy_that_all_reached(tmp_path, best, target):
    roots = [write_run(tmp_path / str(index), Fake({}, scores=((value, 1.0, 10),))) for index, value in enumerate(best)]
    assert default_target([read_record(root) for root in roots]) == target


def unequal(tmp_path, **changes) -> list[Path]:
    return [
        *write_runs(tmp_path / "runs", (0,), ("none",), ("sync",)),
        write_run(tmp_path / "other", fake("async", **changes)),
    ]


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"seed": 1}, "differ in seeds: 0 \\(sync, batch 128 per worker, straggler none\\) against 1 \\(async"),
        ({"seed": 0, "dataset_kind": "synthetic"}, "differ in dataset_kind: real, synthetic"),
        ({"seed": 0, "examples": 12_000}, "differ in examples trained on by more than 2%: 10,240 .* to 12,000"),
    ],
)
def test_what_must_be_equal_and_is_not_is_refused_by_name_unless_forced(tmp_path, changes, named):
    roots = unequal(tmp_path, **changes)
    with pytest.raises(UserError, match=named) as refusal:
        write_report(roots, tmp_path / "report")
    assert "--force" in str(refusal.value) and "\n" not in str(refusal.value)
    assert not (tmp_path / "report").exists()

    report = write_report(roots, tmp_path / "report", force=True)
    forced = [line for line in report.warnings if line.startswith("Not a fair comparison (--force)")]
    assert len(forced) == 1 and re.search(named, forced[0])
    page = report.page.read_text()
    assert page.index("Not a fair comparison") < page.index("What was compared")
    assert (SYNTHETIC in report.warnings) == ("dataset_kind" in changes)


def test_models_that_differ_are_refused(tmp_path):
    settings = {"model.name": "resnet_small"}
    roots = [write_run(tmp_path / "a", Fake({})), write_run(tmp_path / "b", Fake(settings))]
    with pytest.raises(UserError, match="differ in model: tutorial_cnn, resnet_small"):
        write_report(roots, tmp_path / "report")


def test_a_run_counts_once(tmp_path):
    root = write_run(tmp_path / "run", Fake({}))
    with pytest.raises(UserError, match="is given twice"):
        write_report([root, tmp_path / "." / "run"], tmp_path / "report", force=True)
    again = write_run(tmp_path / "again", Fake({}))
    with pytest.raises(UserError, match="a seed comes more than once in one group: 0,0"):
        write_report([root, again], tmp_path / "report")
    with pytest.raises(UserError, match="nothing to compare"):
        write_report([], tmp_path / "report")


def test_a_target_that_is_no_share_is_refused(tmp_path):
    with pytest.raises(UserError, match="target accuracy: got 60"):
        write_report([], tmp_path / "report", target_accuracy=60)


def test_generated_images_are_said_on_top_of_page_and_table(tmp_path):
    report = write_report(write_runs(tmp_path / "runs", (0,), ("none",), dataset_kind="synthetic"), tmp_path / "report")
    output = io.StringIO()
    print_report(report, Console(file=output, width=100))
    page = report.page.read_text()
    assert output.getvalue().startswith(SYNTHETIC)
    assert page.index(SYNTHETIC) < page.index("What was compared")


def test_the_printed_table_has_a_row_for_each_group(written):
    output = io.StringIO()
    print_report(written, Console(file=output, width=160))
    lines = output.getvalue().splitlines()
    row = next(line for line in lines if line.startswith("sync ") and "2:5x" in line)
    assert "70.10 ± 0.10" in row and "128 / 384" in row
    assert sum("128 / 128" in line and line.startswith("async") for line in lines) == 4
    assert lines[-1].endswith("report.html")


def test_nothing_of_it_imports_tensorflow():
    code = "import ps_cluster.comparison.report, sys; assert not {'tensorflow', 'keras'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], cwd=Path(__file__).parents[2], check=True)
