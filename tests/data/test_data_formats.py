"""Which data format a path is taken for."""

from importlib.metadata import EntryPoint

import numpy as np
import pytest

from ps_cluster.config import build_config, load_config, user_code
from ps_cluster.config.datasets import DATA_FORMATS, DATASETS, DataFormat, DataSet
from ps_cluster.data import sources
from ps_cluster.data.packed import write_pointer
from ps_cluster.errors import UserError
from tests.helpers.own_data import draw, packed

NUMBERS = {"x_train": np.arange(40.0).reshape(10, 4), "y_train": np.arange(10) % 2}
PIXELS = {"x_train": np.zeros((10, 5, 4), np.uint8), "y_train": np.arange(10) % 2}


def touched(*files):
    for file in files:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text("{}")


def npy(folder, arrays):
    folder.mkdir()
    for name, array in arrays.items():
        np.save(folder / name, array)


MADE = {
    "arrays": ("a.npz", lambda path: np.savez(path, **NUMBERS)),
    "arrays of a folder": ("a", lambda path: npy(path, NUMBERS)),
    "image_arrays": ("a.npz", lambda path: np.savez_compressed(path, **PIXELS)),
    "image_arrays of a folder": ("a", lambda path: npy(path, PIXELS)),
    "image_folder": ("a", lambda path: draw(path / "train" / "cat" / "1.PNG")),
    "image_folder without splits": ("a", lambda path: draw(path / "cat" / "1.jpeg")),
    "image_folder with pictures in sub-folders alone": ("a", lambda path: draw(path / "cat" / "2023" / "1.png")),
    "table beside a folder of plots": (
        "a",
        lambda path: (touched(path / "train.csv", path / "test.csv"), draw(path / "figures" / "eda" / "plot.png")),
    ),
    "table": ("a.csv", lambda path: path.write_text("a,b\n1,2\n")),
    "table of a folder": ("a", lambda path: touched(path / "train.parquet")),
    "hugging_face": ("a", lambda path: touched(path / "state.json", path / "dataset_info.json")),
    "tfds": ("a", lambda path: touched(path / "features.json", path / "dataset_info.json")),
}


@pytest.mark.parametrize("case", MADE)
def test_a_path_is_recognised_by_what_is_there(tmp_path, case):
    name, make = MADE[case]
    make(tmp_path / name)
    data_format = case.replace(",", " ").split()[0]
    assert DATASETS.allow_code_of(str(tmp_path / name), tmp_path) == f"{data_format}:{tmp_path / name}"


def test_a_relative_path_is_that_of_the_folder_in_which_it_was_written(tmp_path):
    (tmp_path / "sub").mkdir()
    np.savez(tmp_path / "sub" / "a.npz", **NUMBERS)
    file = tmp_path / "sub" / "mine.yaml"
    file.write_text("data: {dataset: a.npz}\nmodel: {name: mlp}\n")
    whole = f"arrays:{tmp_path}/sub/a.npz"
    assert build_config(file).data.dataset == whole
    assert DATASETS.allow_code_of("sub/../sub/a.npz", tmp_path) == whole


def test_a_name_of_a_data_set_is_no_path_even_if_a_folder_has_it(tmp_path):
    draw(tmp_path / "mnist" / "cat" / "1.png")
    draw(tmp_path / "pets" / "cat" / "1.png")
    assert DATASETS.allow_code_of("mnist", tmp_path) == "mnist"
    assert DATASETS.allow_code_of("pets", tmp_path) == f"image_folder:{tmp_path}/pets"


def test_the_form_can_be_chosen(tmp_path):
    assert DATASETS.allow_code_of("table:numbers.txt", tmp_path) == f"table:{tmp_path}/numbers.txt"


def test_the_configuration_of_a_run_is_read_after_its_data_has_gone(tmp_path):
    np.savez(tmp_path / "a.npz", **PIXELS)
    config = build_config(
        None, {"data.dataset": str(tmp_path / "a.npz"), "data.held_out": 0.25, "data.augmentation.flip": "random"}
    )
    (tmp_path / "config.yaml").write_text(config.to_yaml())
    (tmp_path / "a.npz").unlink()
    assert load_config(tmp_path / "config.yaml").data == config.data
    assert config.data.augmentation.flip == "random", "a setting of images"


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("../own", "there is no '{folder}/own': correct the path"),
        ("none.npz", "there is no '{folder}/here/none.npz'"),
        ("~nobody-of-this-name/x", "there is no '{folder}/here/~nobody-of-this-name/x'"),
        ("mine.py", "to use code, name the function that the file defines, e.g. '{folder}/here/mine.py:load'"),
        ("empty", "'{folder}/here/empty' has no known format."),
        ("notes.pdf", "docs/extending.md#your-own-data shows each format"),
    ],
)
def test_a_path_that_can_not_be_data_is_told_with_all_formats(tmp_path, text, told):
    touched(tmp_path / "here" / "mine.py", tmp_path / "here" / "notes.pdf")
    (tmp_path / "here" / "empty").mkdir()
    with pytest.raises(UserError) as error:
        DATASETS.allow_code_of(text, tmp_path / "here")
    line = str(error.value)
    assert line.startswith("dataset: ") and told.format(folder=tmp_path) in line and "\n" not in line
    assert "there is no" in line or all(data_format.looks_for in line for data_format in DATA_FORMATS)


@pytest.mark.parametrize(
    ("files", "path", "told"),
    [
        (["a.xlsx"], "a.xlsx", "is a .xlsx file: save the table as .csv or .parquet"),
        (["a.csv.zip"], "a.csv.zip", "is a .csv.zip file: compress the table by gzip, as .csv.gz, or unpack it"),
        (["a.jpg"], "a.jpg", "is one picture: put the pictures of each class into a folder of its own"),
        (["p/1.jpg", "p/2.jpg"], "p", "has pictures outside the folders of classes: put the pictures of each class"),
        (["p/cat/1.HEIC", "p/dog/2.avif"], "p", "has .avif, .heic pictures, which are not read: convert them to"),
        (["p/year=2023/a.parquet"], "p", "has tables in its folder 'year=2023': give that folder"),
    ],
)
def test_a_path_that_needs_only_one_change_is_told_which_and_not_all_formats(tmp_path, files, path, told):
    touched(*(tmp_path / file for file in files))
    with pytest.raises(UserError) as error:
        DATASETS.allow_code_of(str(tmp_path / path), tmp_path)
    line = str(error.value)
    assert line.startswith(f"dataset: '{tmp_path / path}' {told[:3]}") and told in line and "hugging_face" not in line
    assert line.endswith("docs/extending.md#your-own-data shows all data formats") and len(line) < 400


def test_a_copy_is_made_anew_when_a_file_or_a_setting_changes_and_not_otherwise(tmp_path):
    draw(tmp_path / "a" / "cat" / "1.png")
    for name in ("cat/2", "dog/1", "dog/2"):
        draw(tmp_path / "a" / f"{name}.png")
    first = packed(tmp_path / "a")[0].directory
    assert packed(tmp_path / "a")[0].directory == first
    assert packed(tmp_path / "a", held_out=0.4)[0].directory != first
    draw(tmp_path / "a" / "dog" / "3.png", colour=(0, 0, 9))
    changed = packed(tmp_path / "a")[0]
    assert changed.directory != first and changed.train_examples == 4


def test_a_run_that_goes_on_after_its_file_has_changed_says_that_it_keeps_to_the_packed_copy(tmp_path):
    file = tmp_path / "a.npz"
    np.savez(file, **NUMBERS)
    dataset, told = packed(file)[0], []
    write_pointer(tmp_path / "dataset.json", dataset)

    def of_run():
        settings = DATASETS[dataset.name].Settings(dataset=dataset.name)
        told.clear()
        return sources.resolve_for_run(tmp_path / "dataset.json", settings, tmp_path / "cache", notify=told.append)

    assert of_run().directory == dataset.directory and told == []
    np.savez(file, **NUMBERS | {"weight_train": np.ones(10)})
    assert of_run().directory == dataset.directory
    (line,) = told
    assert f"'{file}' has changed since it was packed: this run keeps the packed copy '{dataset.directory}'" in line
    file.unlink()
    assert of_run().directory == dataset.directory and told == []


def test_what_was_held_out_is_told_for_a_copy_that_was_there_before_too(tmp_path):
    np.savez(tmp_path / "a.npz", **NUMBERS)
    _, first = packed(tmp_path / "a.npz")
    _, again = packed(tmp_path / "a.npz")
    assert again == first[1:] and again[0].startswith("held out 1 of 10 examples for testing")


def test_a_folder_to_look_in_has_no_use_beside_a_path(tmp_path):
    np.savez(tmp_path / "a.npz", **NUMBERS)
    with pytest.raises(UserError, match="^data_dir: .* can't be used with dataset .* read from its own path: leave"):
        packed(tmp_path / "a.npz", data_dir=tmp_path)


class Notes(DataFormat):
    name, looks_for, endings = "notes", "a file .notes", (".notes",)

    def dataset(self, path):
        return DataSet()


@pytest.mark.parametrize("name", ["a.notes", "sub/a.notes"])
def test_a_form_of_an_installed_package_is_recognised_by_its_path(tmp_path, monkeypatch, name):
    point = EntryPoint("notes", f"{__name__}:Notes", "ps_cluster.formats")
    monkeypatch.setattr(EntryPoint, "load", lambda self: Notes)
    monkeypatch.setattr(user_code, "entry_points", lambda group: [point] if group == point.group else [])
    monkeypatch.setattr(DATA_FORMATS, "_brought", {})
    touched(tmp_path / name)
    assert DATASETS.allow_code_of(name, tmp_path) == f"notes:{tmp_path / name}"
    with pytest.raises(UserError, match="there is no '.*gone.notes'"):
        DATASETS.allow_code_of("gone.notes", tmp_path)
    touched(tmp_path / "a.other")
    with pytest.raises(UserError, match="has no known format.*notes: a file .notes"):
        DATASETS.allow_code_of("a.other", tmp_path)


@pytest.mark.parametrize(
    ("data_format", "network"), [("table", "mlp"), ("arrays", "mlp"), ("image_folder", "airbench")]
)
def test_data_that_is_no_images_gets_a_network_that_takes_it(data_format, network):
    assert build_config(None, {"data.dataset": f"{data_format}:/data/here"}).model.name == network
    chosen = build_config(None, {"data.dataset": f"{data_format}:/data/here", "model.name": "tutorial_cnn"})
    assert chosen.model.name == "tutorial_cnn"
