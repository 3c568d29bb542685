"""Arrays of a script as a data set that other processes map."""

from pathlib import Path

import numpy as np
import pytest

from ps_cluster.api.data import with_data
from ps_cluster.config import build_config
from ps_cluster.config.datasets import DATASETS
from ps_cluster.data import inventory, sources
from ps_cluster.data.cache import default_cache_dir
from ps_cluster.data.packed import load_packed
from ps_cluster.launch.config_completion import complete_config
from tests.helpers.bad_input import refusal


def numbers(train=8, test=4):
    draw = np.random.default_rng(0)
    x, y = draw.normal(size=(train + test, 3)).astype(np.float32), np.arange(train + test) % 2
    return {"x_train": x[:train], "y_train": y[:train], "x_test": x[train:], "y_test": y[train:]}


def found(data, **values):
    """Return the settings that choose the data, and the data set that a run finds by these settings."""
    chosen = with_data(values, data, pytest.fail)
    settings = build_config(None, chosen).data
    return chosen, sources.resolve(settings, default_cache_dir(), notify=pytest.fail)


def test_arrays_come_back_as_they_were():
    given = numbers()
    _, dataset = found(given)
    assert dataset.name == "packed_arrays" and dataset.spec.classes == ("0", "1")
    np.testing.assert_array_equal(dataset.inputs("train")["x"], given["x_train"])
    np.testing.assert_array_equal(dataset.target("test"), given["y_test"])


def test_a_function_a_mapping_and_pairs_as_keras_gives_them_are_the_same_data_set():
    given = numbers()
    pairs = (given["x_train"], given["y_train"][:, None]), (given["x_test"], given["y_test"][:, None])
    folders = {found(data)[1].directory for data in (given, lambda: given, pairs)}
    assert len(folders) == 1


def test_one_changed_value_makes_another_data_set():
    given, changed = numbers(), numbers()
    changed["x_test"][-1, -1] += 1
    assert found(given)[1].directory != found(changed)[1].directory


def test_the_same_arrays_are_packed_once():
    folder = found(numbers())[1].directory
    before = (folder / "dataset.json").stat().st_mtime_ns
    assert (found(numbers())[1].directory / "dataset.json").stat().st_mtime_ns == before


def test_grey_pictures_are_images_which_are_not_varied_unless_it_is_asked_for():
    given = numbers()
    for split in ("train", "test"):
        given[f"x_{split}"] = np.zeros((len(given[f"x_{split}"]), 9, 9), np.uint8)
    chosen, dataset = found(given)
    assert dataset.name == "packed_images" and dataset.spec.image("any").shape == (9, 9, 1)
    augmentation = build_config(None, chosen).data.augmentation
    assert (augmentation.flip, augmentation.crop_padding_pixels) == ("none", 0)
    assert build_config(None, chosen | {"data.augmentation.flip": "random"}).data.augmentation.flip == "random"


def test_numbers_to_predict_are_a_regression_whose_labels_are_not_smoothed():
    given = numbers()
    given |= {name: given[name] / np.float32(2) for name in ("y_train", "y_test")}
    chosen, dataset = found(given)
    assert dataset.spec.objective == "regression"
    assert complete_config(build_config(None, chosen), dataset).training.label_smoothing == 0


def test_an_objective_can_be_chosen():
    given = numbers()
    chosen = with_data({"data.objective": "regression"}, given, pytest.fail)
    assert load_packed(Path(chosen["data.data_dir"])).spec.objective == "regression"


@pytest.mark.parametrize("dtype", ["float32", "bool"])
def test_labels_of_0_and_1_are_two_classes_whatever_their_dtype(dtype):
    given = numbers()
    given |= {name: given[name].astype(dtype) for name in ("y_train", "y_test")}
    _, dataset = found(given)
    assert (dataset.spec.objective, dataset.spec.classes) == ("classification", ("0", "1"))


def test_without_examples_to_test_on_a_share_is_held_out_and_said():
    given = {name: rows for name, rows in numbers(train=40).items() if name.endswith("train")}
    said = []
    chosen = with_data({"data.held_out": 0.25}, given, said.append)
    assert load_packed(Path(chosen["data.data_dir"])).test_examples == 10
    assert any("held out 10 of 40 examples" in line for line in said)


@pytest.mark.parametrize(
    ("data", "told"),
    [
        (numbers() | {"x_train": np.ones((7, 3), np.float32)}, "data: x_train has 7 rows, and y_train has 8"),
        (numbers() | {"x_test": np.ones((4, 2), np.float32)}, "test 'x' is float32 [2], not float32 [3]"),
        (lambda: 7, "data: got int: give (x_train, y_train), ((x_train, y_train), (x_test, y_test)), a mapping"),
        ([1, 2, 3], "data: got list of 3: give (x_train, y_train)"),
        (numbers() | {"x_train": [[1]] * 7 + [[1, 2]]}, "data: x_train is list, which can't become an array"),
        (numbers() | {"x_test": np.full((4, 3), np.nan, np.float32)}, "data: test 'x' has values that are not finite"),
    ],
)
def test_data_that_can_not_be_packed_is_told_in_one_line(data, told):
    assert told in refusal(with_data, {}, data, pytest.fail)


def test_packed_arrays_are_listed_among_the_copies_and_no_help_names_them(tmp_path, monkeypatch):
    monkeypatch.setenv("PS_CLUSTER_CACHE", str(tmp_path))
    assert "packed_arrays" not in [one.name for one in inventory.entries(tmp_path)]
    directory = found(numbers())[1].directory
    (listed,) = [one for one in inventory.entries(tmp_path) if one.name == "packed_arrays"]
    assert listed.title == "arrays of your own" and [copy.directory for copy in listed.copies] == [directory]
    inventory.remove(*inventory.copies_named([directory.name], inventory.copies(tmp_path), tmp_path))
    assert not directory.exists()
    assert not [name for name in DATASETS.names if "packed" in name] and "packed_arrays" in DATASETS


def test_an_error_of_a_function_is_raised_as_it_is():
    with pytest.raises(ZeroDivisionError):
        with_data({}, lambda: 1 / 0, pytest.fail)
