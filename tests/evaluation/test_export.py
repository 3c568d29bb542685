"""`export`: each file, loaded by what others load it with, predicts what the model of the run does."""

import json
import os
import re
import subprocess
import sys

import keras
import numpy as np
import pytest
import tensorflow as tf
from click.testing import CliRunner

from ps_cluster.cli.main import main
from ps_cluster.config.datasets import Contents
from ps_cluster.data.packing import write_packed
from ps_cluster.errors import UserError
from ps_cluster.evaluation import export as exporting
from ps_cluster.evaluation.export_check import compare
from ps_cluster.evaluation.predictor import Predictor, TrainedRun
from ps_cluster.evaluation.raw_rows import with_encoding
from ps_cluster.runs.dataset_rows import TableEncoding
from tests.helpers.bad_input import PROJECT, assert_one_line
from tests.helpers.left_by_runs import CLASSES, SHAPE, leave_image_run, leave_run, leave_table_run
from tests.helpers.users import SOMEBODY, SOMEBODY_ELSE, as_user, common  # noqa: F401

pytestmark = pytest.mark.slow

FORMATS = "keras,h5,savedmodel,tflite"
PAGE = (PROJECT / "docs" / "tools.md").read_text()
OWN = """
from ps_cluster.evaluation.export_formats.keras_files import KerasFile


class Wrong(KerasFile):
    file = "wrong.keras"

    def load(self, exported, path):
        right = super().load(exported, path)
        return lambda inputs: right(inputs) + {added}


class Missing(KerasFile):
    packages = ("not_there_at_all",)


class Broken(KerasFile):
    def write(self, exported, path):
        raise KeyError("no such layer")
"""


def export(run_dir, *arguments):
    return CliRunner().invoke(main, ["export", "--run", str(run_dir.root), *map(str, arguments)])


@pytest.fixture(scope="module")
def run_dir(tmp_path_factory):
    return leave_image_run(tmp_path_factory.mktemp("images"), dtype="mixed_bfloat16")


@pytest.fixture(scope="module")
def exported(run_dir, tmp_path_factory):
    """The folder with files of all formats, and what was printed."""
    folder = tmp_path_factory.mktemp("exported") / "deeper" / "out"
    done = export(run_dir, "--to", FORMATS, "--output", folder)
    assert done.exit_code == 0, done.stderr
    return folder, done.stdout


def test_the_report_has_what_was_measured_of_every_file(exported, run_dir):
    folder, printed = exported
    report = json.loads((folder / "export.json").read_text())
    rows = {row["name"]: row for row in report["compared"]}
    assert list(rows) == ["best model, float32", f"best model, {load_precision(run_dir)}", *FORMATS.split(",")]
    assert all(name in printed for name in rows) and report["classes"] == list(CLASSES)
    assert report["test_examples"] == 40 and report["inputs"]["image"] == {"dtype": "uint8", "shape": list(SHAPE)}
    for name in FORMATS.split(","):
        found = rows[name]["compared"]
        assert found["largest"] < 1e-5 and found["same"] == 1 and rows[name]["allowed"] == 1e-4
    assert rows["best model, float32"]["compared"]["largest"] == 0
    assert rows[f"best model, {load_precision(run_dir)}"]["compared"]["largest"] > 1e-4, "it was trained in bfloat16"
    assert {file.name for file in folder.iterdir()} == {
        "model.keras", "model.h5", "savedmodel", "model.tflite", "export.json",
    }  # fmt: skip
    assert {file.name for file in folder.parent.iterdir()} == {"out"}, "nothing is left beside it"


def load_precision(run_dir):
    return TrainedRun.open(run_dir.root, None, print).config.model.precision


def test_the_code_of_the_page_predicts_the_same_without_this_package(exported, run_dir, tmp_path):
    folder, _ = exported
    run = TrainedRun.open(run_dir.root, None, print)
    images = np.asarray(run.dataset.inputs("test")["image"])
    np.save(tmp_path / "images.npy", images)
    for file in folder.iterdir():
        (tmp_path / file.name).symlink_to(file)
    codes = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    assert len(codes) == 3
    program = "\n".join(f"{code}\nnp.save('found{place}.npy', probabilities)" for place, code in enumerate(codes))
    program += "\nnp.save('classes.npy', classes.astype(str))\nimport sys; assert 'ps_cluster' not in sys.modules"
    environment = dict(os.environ) | {"TF_CPP_MIN_LOG_LEVEL": "2"}
    subprocess.run([sys.executable, "-c", program], cwd=tmp_path, env=environment, check=True, timeout=120)
    expected = Predictor(run)({"image": images})
    for place in range(len(codes)):
        found = np.load(tmp_path / f"found{place}.npy")
        assert found.shape == expected.shape
        np.testing.assert_allclose(found, expected, atol=1e-5)
    assert np.load(tmp_path / "classes.npy").tolist() == [list(CLASSES)] * len(images)


def test_a_regression_with_two_inputs_keeps_its_values_and_its_names(tmp_path):
    run_dir = leave_table_run(tmp_path)
    done = export(run_dir, "--to", "savedmodel,tflite")
    assert done.exit_code == 0, done.stderr
    report = json.loads((run_dir.root / "export" / "export.json").read_text())
    assert set(report["inputs"]) == {"numbers", "categories"}
    assert all(row["compared"]["largest"] < 1e-3 and row["compared"]["same"] is None for row in report["compared"])
    again = export(run_dir)
    assert_one_line(again.exit_code, again.stderr, ["--output", "not empty"])


def test_files_of_a_table_take_its_rows_as_they_are_where_they_can(tmp_path):
    run_dir = leave_table_run(tmp_path)
    done = export(run_dir, "--to", "keras,h5,savedmodel,tflite", "--output", tmp_path / "out")
    assert done.exit_code == 0, done.stderr
    report = json.loads((tmp_path / "out" / "export.json").read_text())
    assert report["take_raw_rows"] == ["keras", "savedmodel"]
    assert (
        " ".join(done.output.split()).count("takes encoded columns of the table; export.json describes the encoding")
        == 2
    )
    (size,), (city,) = report["columns"]["numbers"], report["columns"]["categories"]
    assert (size["name"], city["name"], city["values"]) == ("size", "city", ["Oslo", "Rome"])
    sizes, cities = np.array([[6.5], [np.nan], [1e9], [0.5]]), np.array([["Rome"], ["Oslo"], ["Paris"], [""]])
    standard = np.nan_to_num((sizes - size["mean"]) / size["std"])
    expected = Predictor(TrainedRun.open(run_dir.root, None, print))(
        {"numbers": standard.astype(np.float32), "categories": np.array([[2], [1], [0], [0]], np.int32)}
    )
    raw = {"numbers": tf.constant(sizes), "categories": tf.constant(cities)}
    saved = keras.saving.load_model(tmp_path / "out" / "model.keras")
    served = tf.saved_model.load(str(tmp_path / "out" / "savedmodel" / "1")).signatures["serving_default"]
    assert {name: one["dtype"] for name, one in report["raw_inputs"].items()} == {
        "numbers": "float64",
        "categories": "string",
    }
    for found in (saved(raw), saved.predict(raw, verbose=0), served(**raw)["values"]):
        np.testing.assert_allclose(found, expected, rtol=1e-6)


@pytest.mark.filterwarnings("ignore:(?s).*structure of `inputs`:UserWarning")  # of a single input, Keras makes a list
@pytest.mark.parametrize("std", [1e-160, 1.0, 1e12])
def test_raw_numbers_are_standardised_by_deviations_of_any_size(tmp_path, std):
    about = {"is_time": False, "missing": 0}
    numbers = [
        {"name": "tiny", "mean": 2 * std, "std": std, **about},
        {"name": "large", "mean": 5e9, "std": 2.0, **about},
    ]
    encoding = TableEncoding.model_validate({"target": "y", "numbers": numbers, "categories": []})
    encoded = keras.Input((2,), name="numbers")
    with_encoding(keras.Model({"numbers": encoded}, encoded * 1.0), encoding).save(tmp_path / "model.keras")
    raw = np.array([[5 * std, 5e9 + 1], [std, 5e9 - 4], [np.nan, 5e9]])
    found = keras.saving.load_model(tmp_path / "model.keras")({"numbers": tf.constant(raw)})
    np.testing.assert_allclose(found, [[3, 0.5], [-1, -2], [0, 0]], rtol=1e-6)


def test_a_folder_of_another_user_is_not_written_to(run_dir, common):  # noqa: F811
    theirs = common / "theirs"
    theirs.mkdir()
    os.chown(theirs, SOMEBODY_ELSE, SOMEBODY_ELSE)
    with as_user(SOMEBODY), pytest.raises(UserError, match=f"'{theirs}' belongs to"):
        exporting.export(None, (), theirs, check_examples=1, notify=pytest.fail, console=None)


@pytest.mark.parametrize(
    ("added", "code", "says"), [("0.01", 1, "differs by 0.01"), ("float('nan')", 1, "differs by nan"), ("1e-6", 0, "")]
)
def test_a_file_that_differs_by_more_than_is_allowed_is_not_written(run_dir, tmp_path, added, code, says):
    (tmp_path / "my.py").write_text(OWN.format(added=added))
    done = export(run_dir, "--to", f"keras,{tmp_path}/my.py:Wrong", "--output", tmp_path / "out")
    assert done.exit_code == code and says in done.stderr
    assert (tmp_path / "out").exists() == (not code) and not list(tmp_path.glob(".*"))


@pytest.mark.parametrize(
    ("name", "code", "says"),
    [
        ("Missing", 2, ["not_there_at_all", "-m pip install not_there_at_all"]),
        ("Broken", 1, ["my.py:Broken: the model can't be written (KeyError", "my.py:Broken out of --to"]),
    ],
)
def test_a_format_that_can_not_be_written_is_named_with_what_helps(run_dir, tmp_path, name, code, says):
    (tmp_path / "my.py").write_text(OWN.format(added="0"))
    refused = export(run_dir, "--to", f"{tmp_path}/my.py:{name}", "--output", tmp_path / "out")
    assert refused.exit_code == code and refused.stderr.count("\n") == 1
    assert all(part in refused.stderr for part in says), refused.stderr
    assert not (tmp_path / "out").exists()


def test_onnx_predicts_the_same_where_the_converter_is_installed(run_dir, tmp_path):
    pytest.importorskip("tf2onnx")
    done = export(run_dir, "--to", "onnx", "--output", tmp_path / "out")
    assert done.exit_code == 0, done.stderr
    report = json.loads((tmp_path / "out" / "export.json").read_text())
    assert report["compared"][-1]["compared"]["largest"] < 1e-5
    table = export(leave_table_run(tmp_path), "--to", "onnx", "--output", tmp_path / "table")
    assert table.exit_code == 0, table.stderr


def test_the_comparison_counts_what_is_different(run_dir):
    dataset = TrainedRun.open(run_dir.root, None, print).dataset
    target = np.asarray(dataset.target("test"))
    wrong = np.arange(40) % 4 == 0

    def right(inputs):
        return np.eye(3, dtype=np.float32)[target]

    def other(inputs):
        return right(inputs)[:, [2, 0, 1]] * wrong[:, None] * 0.5 + right(inputs) * ~wrong[:, None] * 0.5

    found = compare(dataset, right, {"right": right, "other": other}, most=100)
    assert (found["right"].metric, found["right"].same, found["right"].largest) == (1, 1, 0)
    assert (found["other"].metric, found["other"].same, found["other"].largest) == (0.75, 0.75, 1)
    assert found["other"].mean == pytest.approx((0.75 * 0.5 + 0.25 * 1.5) / 3)


@pytest.mark.parametrize("unroll", [False, True])
def test_tflite_of_a_recurrent_network_is_refused_in_one_line_unless_it_is_unrolled(tmp_path, unroll, capfd):
    draw = np.random.default_rng(0)
    split = {"x": draw.normal(size=(40, 4, 2)).astype(np.float32), "target": np.arange(40, dtype=np.uint8) % 2}
    layers = [keras.Input((4, 2)), keras.layers.LSTM(3, unroll=unroll), keras.layers.Dense(2)]
    dataset = write_packed(tmp_path / "packed", "packed_arrays", "real", Contents.of(split, split))
    settings = {"data.data_dir": str(tmp_path / "packed"), "model.name": "mlp"}
    run_dir = leave_run(tmp_path / "run", dataset, keras.Sequential(layers), "packed_arrays", **settings)
    done = export(run_dir, "--to", "tflite")
    if unroll:
        assert done.exit_code == 0, done.stderr
        return
    why = "tflite: the model can't be written: TensorFlow Lite can't run the loop of a recurrent layer such as LSTM"
    assert done.exit_code == 1 and f"{why}: build the layer with unroll=True" in done.stderr
    assert done.stderr.count("\n") == 1 and "loc(" not in done.output + capfd.readouterr().err
