"""Results of predictions that were made by hand: classes, labels, numbers; and the page of a run."""

import html
import itertools
import json
import re

import numpy as np
import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg

from ps_cluster.config.datasets import Contents
from ps_cluster.data.packed import write_pointer
from ps_cluster.data.packing import write_packed
from ps_cluster.files.json_rows import append_row
from ps_cluster.files.values import Malformed
from ps_cluster.installation import IMPORT_FOLDER
from ps_cluster.report.analysis import MISTAKES, MOST_SHOWN, MatrixCell
from ps_cluster.report.class_results import ClassResults, Confusion
from ps_cluster.report.drawing import NOT_SCORED, draw_results, try_to_draw_results
from ps_cluster.report.label_results import LabelResults
from ps_cluster.report.plots import Plot, plain_ticks, small_plot
from ps_cluster.report.value_results import ValueResults
from ps_cluster.runs.predictions import Predictions, write_predictions
from ps_cluster.runs.run_dir import RunDir
from tests.helpers.data import pack_images, random_images
from tests.helpers.fake_runs import Fake, write_run
from tests.helpers.html_pages import dom_of, loaded_by
from tests.helpers.rows import progress_row

pytestmark = pytest.mark.slow

# Example 2 is a dog taken for a cat with 0.9, example 3 a dog without a prediction; no example is a bird.
TARGET, PREDICTED = [0, 0, 1, 1, 1], [0, 1, 0, -1, 1]
CONFIDENCE, OF_TARGET = [0.8, 0.6, 0.9, 0.0, 0.7], [0.8, 0.4, 0.05, 0.0, 0.7]
NAMES = ("cat", "dog", "bird")


def of_classes(target=TARGET, predicted=PREDICTED, confidence=CONFIDENCE, of_target=OF_TARGET, names=NAMES, **other):
    arrays = {
        "target": np.array(target, np.int32),
        "predicted": np.array(predicted, np.int32),
        "confidence": np.array(confidence, np.float32),
        "of_target": np.array(of_target, np.float32),
    }
    return Predictions(2, "classification", "images", tuple(names), arrays | other)


def of_numbers(target, predicted):
    arrays = {name: np.array(rows, np.float32) for name, rows in (("target", target), ("prediction", predicted))}
    return Predictions(2, "regression", "examples", (), arrays)


def test_each_class_has_its_accuracy_and_its_precision():
    found = ClassResults(of_classes())
    rows = {row.name: row for row in found.rows}
    assert (rows["cat"].examples, rows["cat"].accuracy, rows["cat"].precision) == (2, 0.5, 0.5)
    assert (rows["dog"].examples, rows["dog"].accuracy, rows["dog"].precision) == (3, 1 / 3, 0.5)
    assert (rows["bird"].accuracy, rows["bird"].precision) == (None, None)
    assert found.accuracy == 2 / 5 and found.balanced_accuracy == pytest.approx((1 / 2 + 1 / 3) / 2)
    assert found.without_prediction == 1


def test_the_confusion_matrix_counts_each_example_in_the_row_of_its_class():
    found = ClassResults(of_classes())
    assert found.matrix[0] == [
        MatrixCell(1, 0.5, True), MatrixCell(1, 0.5), MatrixCell(0, 0.0), MatrixCell(0, 0.0)
    ]  # fmt: skip
    assert [cell.count for cell in found.matrix[1]] == [1, 1, 0, 1], "the last one had no prediction"
    assert found.numbers()["confusion_matrix"] == [[1, 1, 0], [1, 1, 0], [0, 0, 0]]
    assert found.confusions == [Confusion("cat", "dog", 1, 0.5), Confusion("dog", "cat", 1, pytest.approx(1 / 3))]


def test_the_most_confident_mistake_comes_first_and_one_without_a_prediction_is_none():
    told = [(one.example, one.predicted, one.truth.partition(",")[0]) for one in ClassResults(of_classes()).mistakes()]
    assert told == [(2, "cat", "dog"), (1, "dog", "cat")]


def test_an_example_without_a_prediction_is_in_no_bin_of_the_calibration():
    found = ClassResults(of_classes()).calibration
    assert found.total == 4
    gaps = [1 - 0.8, 0.6 - 0, 0.9 - 0, 1 - 0.7]  # one prediction in each bin
    assert found.expected_error == pytest.approx(sum(gaps) / 4, rel=1e-6)


def test_of_a_thousand_classes_the_worst_are_shown_and_the_numbers_have_all():
    target = np.repeat(np.arange(1000), 3)
    predicted = target.copy()
    predicted[: 3 * 25] = 999  # the first 25 classes are all wrong
    half = np.full(3000, 0.5)
    found = ClassResults(of_classes(target, predicted, half, half, [f"class {label}" for label in range(1000)]))
    assert [row.name for row in map(found.rows.__getitem__, found.shown)] == [
        f"class {label}" for label in range(MOST_SHOWN)
    ]
    assert found.has_others and [row[-1].count for row in found.matrix] == [3] * MOST_SHOWN
    numbers = found.numbers()
    assert len(numbers["classes"]) == 1000 and numbers["confusion_matrix"] is None
    assert numbers["confusions"][0] == {"target": "class 0", "predicted": "class 999", "count": 3, "share": 1.0}
    assert len(found.mistakes()) == MISTAKES


@pytest.mark.parametrize(
    "wrong",
    [
        {"target": [0, 0, 1, 1, 3]}, {"predicted": [0, 0, 0, 0, -2]}, {"confidence": [0.5] * 4 + [1.5]},
        {"confidence": [0.5] * 4 + [np.nan]}, {"names": ("cat",)},
    ],
)  # fmt: skip
def test_predictions_that_can_not_be_are_refused(wrong):
    with pytest.raises(Malformed):
        ClassResults(of_classes(**wrong))


def test_labels_are_found_or_not_each_for_itself():
    has = np.array([[1, 0], [1, 1], [0, 0]], np.uint8)
    probability = np.array([[0.9, 0.8], [0.4, 0.7], [0.2, np.nan]], np.float32)
    found = LabelResults(
        Predictions(2, "multi-label", "images", ("sun", "sea"), {"target": has, "prediction": probability})
    )
    sun, sea = found.rows
    assert (sun.found, sun.precision, sun.f1, sun.accuracy) == (0.5, 1.0, pytest.approx(2 / 3), pytest.approx(2 / 3))
    assert (sea.found, sea.precision, sea.f1, sea.accuracy) == (1.0, 0.5, pytest.approx(2 / 3), pytest.approx(1 / 3))
    assert found.all_right == 0 and found.without_prediction == 1 and found.calibration.total == 5
    told = [(one.example, one.predicted, one.truth) for one in found.mistakes()]
    assert told == [(0, "sea", "no sea"), (1, "no sun", "sun")]


def test_errors_of_numbers_are_those_computed_by_hand():
    found = ValueResults(of_numbers([[1], [2], [3], [9]], [[2], [2], [1], [np.inf]]), "price")
    (row,) = found.rows
    assert (row.name, row.mean_absolute, row.bias) == ("price", 1.0, pytest.approx(-1 / 3))
    assert row.root_mean_square == pytest.approx((5 / 3) ** 0.5)
    assert row.explained == pytest.approx(1 - (5 / 3) / (2 / 3))
    assert found.without_prediction == 1
    assert next((one.example, one.predicted, one.truth, one.measure) for one in found.mistakes()) == (2, "1", "3", "2")


def test_of_many_numbers_those_are_shown_of_which_least_is_explained():
    true = np.random.default_rng(0).normal(size=(50, 30))
    true -= true.mean(0)
    found = ValueResults(of_numbers(true, true * np.linspace(0, 1, 30)))
    assert found.shown == list(range(MOST_SHOWN)) and found.rows[29].explained == pytest.approx(1)
    assert len(found.plots()) == 6 and len(found.numbers()["outputs"]) == 30


def test_without_a_finite_number_there_is_nothing_to_draw():
    found = ValueResults(of_numbers([[1]], [[np.nan]]))
    assert found.plots() == [] and found.mistakes() == [] and found.rows[0].mean_absolute is None


@pytest.fixture
def unrendered(monkeypatch):
    """Plots are made, but not rendered, which takes a second."""
    monkeypatch.setattr(Plot, "_saved", lambda *_: b"<svg/>")


def change_summary(run_dir: RunDir, evaluation=(), history=(), **changes) -> None:
    """Change fields of a summary, of its evaluation, and of the last score in it."""
    summary = json.loads(run_dir.summary.read_text()) | changes
    summary["evaluation"] |= dict(evaluation)
    if history:
        summary["evaluation"]["history"][-1] |= history
    run_dir.summary.write_text(json.dumps(summary))


def drawn(run_dir: RunDir) -> tuple[str, dict, list[str]]:
    """Return the page, the numbers, and what was told."""
    told = []
    draw_results(run_dir, told.append)
    return run_dir.results_page.read_text(), json.loads(run_dir.results_numbers.read_text()), told


@pytest.fixture
def of_images(tmp_path):
    """A run that was scored on 20 images; every second one was taken for the next class."""
    run_dir = RunDir(write_run(tmp_path / "run", Fake({}, outcome="stopped")))
    names = ("<b>cat</b>", *"bcdefghij")
    images, labels = random_images(20)
    dataset = pack_images(tmp_path / "packed", "cifar10", names, (images, labels, images, labels))
    write_pointer(run_dir.dataset, dataset)
    said = np.where(np.arange(20) % 2, labels, (labels + 1) % 10)
    write_predictions(run_dir.predictions, of_classes(labels, said, np.full(20, 0.9), np.full(20, 0.05), names))
    return run_dir


@pytest.mark.parametrize(
    ("outcome", "said"),
    [
        ("diverged", "The run diverged: this page shows the training until then."),
        (
            "nan_loss",
            "The run had a loss that was NaN or infinite in every step: this page shows the training until then.",
        ),
    ],
)
def test_the_page_says_in_words_how_a_run_without_result_ended(tmp_path, outcome, said):
    page, _, _ = drawn(RunDir(write_run(tmp_path / "run", Fake({}, outcome=outcome))))
    assert said in page


def test_the_page_has_everything_in_itself_and_pictures_of_the_mistakes(of_images):
    page, numbers, told = drawn(of_images)
    loaded = loaded_by(page, has_script=True)
    assert all(value.startswith(("data:image/svg+xml;base64,", "data:image/png;base64,")) for value in loaded)
    assert sum("image/png" in value for value in loaded) == 10 == len(numbers["mistakes"])
    assert "<b>cat</b>" not in page and html.escape("<b>cat</b>") in page
    assert "The run was stopped" in page and numbers["found"]["accuracy"] == 0.5 and told == []
    assert len(list((of_images.results / "plots").glob("*.svg"))) == 7
    shown = [int(number) for number in re.findall(r"test example</span> (\d+)<br>", page)]
    assert shown == [one["example"] for one in numbers["mistakes"]], "the page says how examples are counted"
    assert re.search(r'<dd class="lines">[^<]*\n1 arrived a second time', page), "a fact of two lines"
    assert "dd.lines { white-space: pre-wrap; }" in page


def test_the_page_begins_with_the_curves_then_has_the_workers_and_the_staleness(of_images, unrendered):
    workers = [
        {"index": index, "pid": 9, "updates": 60 - 40 * index, "examples": 7680, "restarts": index} for index in (0, 1)
    ]
    staleness = {"mean": 1.25, "max": 2, "histogram": {"0": 20, "1": 20, "2": 40}}
    change_summary(of_images, workers=workers, staleness=staleness)
    page, _, _ = drawn(of_images)
    headings = re.findall(r"<h2[^>]*>(.*?)</h2>", page)
    assert headings[:4] == ["Curves", "Workers and staleness", "Classes", "Confusion matrix"]
    assert headings.index("The run") == len(headings) - 1 and "1.25 on average, and at most 2." in page
    rows = re.findall(r'<th scope="row">([01])</th>' + "<td>([^<]*)</td>" * 4, page)
    assert [[cell.replace("\xa0", " ") for cell in row] for row in rows] == [
        ["0", "60", "75.0 %", "7,680", "0"], ["1", "20", "25.0 %", "7,680", "1"]
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("staleness", "sentence"),
    [
        ({"mean": 0.0, "max": 0, "histogram": {"0": 80}}, "No gradient was stale: each was computed from the newest"),
        ({}, "The staleness is not known, because the leader was killed before it wrote its result."),
        ({"mean": 1.25}, "1.25 on average. More is not known, because the leader was killed"),
    ],
)
def test_the_page_says_that_no_gradient_was_stale_only_if_this_was_measured(of_images, unrendered, staleness, sentence):
    change_summary(of_images, staleness=staleness)
    page, _, _ = drawn(of_images)
    assert sentence in " ".join(page.split())
    assert ("No gradient was stale" in page) == ("max" in staleness)
    assert (of_images.results / "plots" / "staleness.svg").exists() == ("histogram" in staleness)


@pytest.mark.parametrize(
    ("column", "clicks", "order"),
    [(0, 1, "a b c9 c10"), (1, 2, "c10 a c9 b")],
)
def test_a_click_on_a_heading_sorts_the_table_and_dashes_are_last(tmp_path, column, clicks, order):
    rows = [("b", "–"), ("a", "≤ 70 ± 5"), ("c10", "9.5"), ("c9", "1,000")]
    cells = "".join(f"<tr><th>{name}</th><td>{value}</td></tr>" for name, value in rows)
    table = f'<table class="sortable"><thead><tr><th>a</th><th>b</th></tr></thead><tbody>{cells}</tbody></table>'
    click = f'document.querySelectorAll("th button")[{column}].click();' * clicks
    script = (IMPORT_FOLDER / "ps_cluster/report/templates/sort.js").read_text()
    (tmp_path / "page.html").write_text(f'<meta charset="utf-8">{table}<script>{script}\n{click}</script>')
    shown = dom_of(tmp_path / "page.html", tmp_path / "browser")
    assert re.findall(r"<tr><th>(\w+)</th>", shown) == order.split()


@pytest.mark.parametrize("last", [3, 45_000, 87_654_321, 3e9, 0.02])
def test_numbers_at_the_ticks_do_not_run_into_each_other(last):
    plot = small_plot("name", "title", "", lambda axes: (axes.plot([0, last], [0, 1]), plain_ticks(axes)))
    canvas = FigureCanvasAgg(plot.figure)
    canvas.draw()
    labels = [label for label in plot.figure.axes[0].get_xticklabels() if label.get_text()]
    places = sorted((box.x0, box.x1) for box in (label.get_window_extent() for label in labels))
    assert len(places) > 2 and all(end + 4 < begin for (_, end), (begin, _) in itertools.pairwise(places))
    assert len({label.get_text() for label in labels}) == len(labels)


def test_results_are_drawn_without_the_data_set_but_for_its_examples(of_images, unrendered):
    of_images.dataset.unlink()
    page, numbers, _ = drawn(of_images)
    assert "not on this machine any more" in page and "image/png" not in page
    assert len(numbers["mistakes"]) == 10


def test_examples_of_a_data_set_that_has_changed_are_not_shown(of_images, unrendered, tmp_path):
    images, labels = random_images(20, seed=5)
    other = pack_images(tmp_path / "other", "cifar10", tuple("abcdefghij"), (images, labels, images, labels))
    write_pointer(of_images.dataset, other)
    page, _, _ = drawn(of_images)
    assert "packed copy of the data set has changed since the predictions" in page and "image/png" not in page


@pytest.mark.parametrize(
    ("step", "says"),
    [(1, "that of step 1: test accuracy 70.00%; it was chosen on the test"), (2, "also the best model")],
)
def test_the_page_says_of_which_model_it_is_and_what_the_best_one_reaches(tmp_path, unrendered, step, says):
    run_dir = RunDir(write_run(tmp_path / "run", Fake({})))
    change_summary(run_dir, {"best_step": step, "best_test_accuracy": 0.7, "best_chosen_on": "test"})
    page, numbers, _ = drawn(run_dir)
    assert "shows the last scored model, that of step 2: test accuracy 60.00%" in page and says in page
    assert [numbers["evaluation"][name] for name in ("test_accuracy", "best_test_accuracy")] == [0.6, 0.7]


def test_the_page_of_a_run_with_held_out_images_speaks_of_the_score_that_chose(tmp_path, unrendered):
    run_dir = RunDir(write_run(tmp_path / "run", Fake({})))
    chosen = {"best_step": 1, "best_test_accuracy": 0.55, "best_validation_accuracy": 0.7}
    chosen |= {"best_chosen_on": "validation", "validation_accuracy": 0.65}
    change_summary(run_dir, chosen, {"validation_accuracy": 0.65, "validation_loss": 1.5})
    page, numbers, _ = drawn(run_dir)
    assert "that of step 2: validation accuracy 65.00%, test accuracy 60.00%." in page
    assert "that of step 1: validation accuracy 70.00%, test accuracy 55.00%; it was chosen on held-out" in page
    for label, value in (
        ("last validation accuracy", "65.00"), ("best validation accuracy", "70.00"), ("best model, test accuracy", "55.00")
    ):  # fmt: skip
        assert f"<dt>{label}</dt><dd>{value}" in page
    assert [numbers["evaluation"][f"{best}validation_accuracy"] for best in ("best_", "")] == [0.7, 0.65]
    assert numbers["curves"]["test"][-1]["validation_loss"] == 1.5


def test_damaged_predictions_are_left_out_with_a_notice(of_images, unrendered):
    of_images.predictions.write_bytes(b"PK")
    page, numbers, (notice,) = drawn(of_images)
    assert "predictions.safetensors" in notice and "\n" not in notice
    assert "only curves" in page and numbers["found"] is None and numbers["curves"]["test"]


def test_mistakes_in_a_table_are_shown_as_rows_and_errors_in_its_column(tmp_path):
    scores = ((0.5, 10.0, 5000), (0.4, 20.0, 10_000))
    run_dir = RunDir(write_run(tmp_path / "run", Fake({}, scores=scores, metric="error", unit="examples")))
    arrays = {"area": np.arange(8, dtype=np.float32), "target": np.arange(8, dtype=np.float32)}
    dataset = write_packed(
        tmp_path / "packed", "synthetic", "synthetic", Contents.of(arrays, arrays, objective="regression")
    )
    write_pointer(run_dir.dataset, dataset)
    true = np.arange(8.0)[:, None]
    write_predictions(run_dir.predictions, of_numbers(true, true + np.arange(8)[::-1, None]))
    page, numbers, _ = drawn(run_dir)
    assert "The largest errors" in page and ">area</th>" in page and "R²" in page
    assert numbers["mistakes"][0] == {"example": 0, "predicted": "7", "truth": "0", "measure": "7"}
    assert numbers["found"]["outputs"][0]["mean_absolute"] == 3.5 and "test error" in page


def test_a_run_that_was_not_scored_says_so_in_one_line(tmp_path):
    run_dir, told = RunDir(write_run(tmp_path / "run", Fake({}, scores=()))), []
    draw_results(run_dir, told.append)
    assert told == [NOT_SCORED] and not run_dir.results.exists()


def test_whatever_is_wrong_is_one_notice_with_the_command_that_tries_again(of_images):
    told = []
    of_images.summary.write_text('{"outcome": 3}')
    try_to_draw_results(of_images, told.append)
    (line,) = told
    assert line.startswith("the results can't be drawn (") and "summary.json" in line and "--page" in line
    assert "\n" not in line and not of_images.results.exists()


CHANGES = [
    {"applied": 30, "train_seconds": 6.0, "before": 2, "workers": 5},
    {"applied": 70, "train_seconds": 15.0, "before": 5, "workers": 1},
]


def test_a_run_that_was_scaled_says_when_on_its_page(tmp_path, unrendered):
    run_dir = RunDir(write_run(tmp_path / "run", Fake({})))
    for applied in range(10, 90, 10):
        times = {"train_seconds": applied / 4, "examples": 128 * applied, "examples_per_second": 512.0}
        append_row(run_dir.progress, progress_row(applied, **times))
    change_summary(run_dir, scaled=CHANGES)
    page, numbers, _ = drawn(run_dir)
    assert "2 → 5 at update 30 · 5 → 1 at update 70" in page
    assert numbers["curves"]["workers"] == CHANGES and numbers["curves"]["training"][0]["examples_per_second"] == 512.0


def test_drawing_again_replaces_what_was_drawn(of_images, unrendered):
    drawn(of_images)
    left = of_images.results / "plots" / "of-before.svg"
    left.touch()
    drawn(of_images)
    assert not left.exists() and not list(of_images.results.glob(".*"))
