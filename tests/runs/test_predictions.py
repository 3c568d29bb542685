"""The file of predictions is read as it was written, and a damaged file is reported in one line."""

import os

import numpy as np
import pytest

from ps_cluster.errors import UserError
from ps_cluster.files.values import Malformed
from ps_cluster.runs.predictions import Predictions, load_predictions, write_predictions
from ps_cluster.runs.result_rows import EvaluationRow, PredictionsHeader, ProgressRow

ARRAYS = {"target": np.array([0, 1, 1], np.int32), "confidence": np.array([0.5, 0.75, 1], np.float32)}
SOME = Predictions(7, "classification", "images", ("cat", "dög"), ARRAYS)


@pytest.fixture
def file(tmp_path):
    write_predictions(tmp_path / "predictions.safetensors", SOME)
    return tmp_path / "predictions.safetensors"


def test_what_is_read_is_what_was_written(file):
    read = load_predictions(file)
    assert (read.step, read.objective, read.unit, read.classes) == (7, "classification", "images", ("cat", "dög"))
    arrays = {name: array.tolist() for name, array in read.arrays.items()}
    assert arrays == {"target": [0, 1, 1], "confidence": [0.5, 0.75, 1]}
    assert read.examples == 3 and os.listdir(file.parent) == ["predictions.safetensors"]


@pytest.mark.parametrize(
    ("arrays", "classes", "says"),
    [
        ({"target": np.zeros(3, np.int32), "confidence": np.zeros(2, np.float32)}, (), "do not have 2 examples"),
        ({"target": np.zeros(0, np.int32)}, (), "examples"),
        (ARRAYS, ("\x1b[2J",), "classes"),
        (ARRAYS | {"../up": np.zeros(3)}, (), "arrays"),
    ],
)
def test_a_file_that_no_evaluator_wrote_is_refused_in_one_line(tmp_path, arrays, classes, says):
    """The file is written without the checks of `PredictionsHeader`."""
    from ps_cluster.files.tensor_files import write_tensors

    header = PredictionsHeader.model_construct(
        step=1, objective="classification", unit="images", examples=min(map(len, arrays.values())),
        classes=list(classes), arrays=list(arrays),
    )  # fmt: skip
    with (tmp_path / "predictions.safetensors").open("wb") as file:
        write_tensors(file, header, arrays)
    with pytest.raises(UserError, match=says) as error:
        load_predictions(tmp_path / "predictions.safetensors")
    assert "predictions.safetensors" in str(error.value) and "\n" not in str(error.value)


def test_a_file_that_is_cut_short_is_refused_and_a_missing_one_is_missing(file):
    file.write_bytes(file.read_bytes()[:-30])
    with pytest.raises(UserError, match="damaged or cut short"):
        load_predictions(file)
    file.unlink()
    with pytest.raises(FileNotFoundError):
        load_predictions(file)


def test_an_array_of_another_kind_is_refused():
    assert SOME.column("target", "i").tolist() == [0, 1, 1]
    for name, kind, axes in (("target", "f", 1), ("target", "i", 2), ("none", "i", 1)):
        with pytest.raises(Malformed):
            SOME.column(name, kind, axes)


def test_a_loss_that_grows_as_far_as_its_type_goes_is_still_written_down():
    largest = float(np.finfo(np.float32).max)
    row = ProgressRow(phase="training", loss=largest)
    score = EvaluationRow(step=1, test_accuracy=0.1, test_loss=largest)
    assert ProgressRow.model_validate_json(row.model_dump_json()).loss == largest
    assert EvaluationRow.model_validate_json(score.model_dump_json()).test_loss == largest
