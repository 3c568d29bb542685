"""Results of finished runs, read from Python."""

import re
import sys

import numpy as np
import pytest

import ps_cluster
from ps_cluster.data.packed import write_description
from ps_cluster.files.json_rows import append_row
from ps_cluster.runs.run_dir import RunDir
from tests.helpers.bad_input import refusal
from tests.helpers.data import pack_images, random_images
from tests.helpers.fake_runs import Fake, write_run
from tests.helpers.rows import progress_row

ROWS = ((1, 0, 0, 0.0, 0.1, 0.2, 0.3, 0.4, 0.5), (2, 1, 1, 0.0, 0.1, 0.2, 0.3, 0.4, 0.6))


@pytest.fixture
def root(tmp_path):
    return write_run(tmp_path / "run", Fake({"mode.name": "async"}, rows=ROWS))


def test_the_history_is_a_dictionary_for_each_score(root):
    history = ps_cluster.Result(root).history
    assert [(row["step"], row["test_accuracy"]) for row in history] == [(1, 0.4), (2, 0.6)]


@pytest.fixture
def without_pandas(monkeypatch):
    monkeypatch.setitem(sys.modules, "pandas", None)  # what Python does where it is not installed


def test_the_ledger_has_a_row_for_each_update_by_the_names_of_its_columns(root, without_pandas):
    ledger = ps_cluster.Result(root).ledger
    assert isinstance(ledger, np.ndarray) and ledger["staleness"].tolist() == [0, 1] and len(ledger) == 2


def test_the_ledger_is_a_data_frame_where_pandas_is(root):
    pandas = pytest.importorskip("pandas", reason="pandas is an extra")
    ledger = ps_cluster.Result(root).ledger
    assert isinstance(ledger, pandas.DataFrame) and ledger["staleness"].tolist() == [0, 1]


def test_a_result_says_in_a_line_what_came_out(root):
    assert repr(ps_cluster.Result(root)) == f"Result('{root}': completed, test accuracy 60.00% at step 2)"


def test_the_plot_has_what_was_trained_and_what_was_tested_over_time_and_examples(root):
    run_dir = RunDir(root)
    for applied in (0, 1, 2):
        row = progress_row(applied, examples=128 * applied, train_seconds=applied, loss=2 - applied)
        append_row(run_dir.progress, row)
    figure = ps_cluster.Result(root).plot()
    drawn = {
        (panel.get_ylabel(), number % 2, line.get_label()): line.get_xydata().tolist()
        for number, panel in enumerate(figure.axes)
        for line in panel.get_lines()
    }
    assert drawn["accuracy", 0, "test"] == [[10, 0.4], [20, 0.6]]
    assert drawn["accuracy", 1, "test"] == [[5000, 0.4], [10_000, 0.6]]
    assert drawn["loss", 0, "training"] == [[1, 1], [2, 0]] and drawn["loss", 1, "training"] == [[128, 1], [256, 0]]
    assert figure._repr_png_().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("spoil", "told"),
    [
        (lambda run: run.summary.unlink(), "has no summary.json: its run has not ended"),
        (lambda run: run.config.unlink(), "is not a run: it holds no config.yaml"),
    ],
)
def test_a_folder_without_a_finished_run_is_refused_in_one_line(root, spoil, told):
    spoil(RunDir(root))
    assert told in refusal(ps_cluster.Result, root)


def test_a_model_whose_file_is_damaged_is_told_in_one_line(root, tmp_path):
    images, labels = random_images(20, seed=1)
    dataset = pack_images(tmp_path / "packed", "cifar10", tuple("abcdefghij"), (images, labels, images, labels))
    write_description(RunDir(root).examples, dataset)
    file = RunDir(root).best_model
    file.parent.mkdir()
    file.write_bytes(b"PK no archive")
    assert re.match("model: .* can't be loaded", refusal(lambda: ps_cluster.Result(root).model))


def test_a_model_that_no_score_has_chosen_is_told(root):
    assert "train with evaluator=True" in refusal(lambda: ps_cluster.Result(root).model)
