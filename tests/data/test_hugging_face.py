"""Folders of Hugging Face's library."""

import importlib.util
import io
import json
import os

import numpy as np
import pyarrow as pa
import pytest
from PIL import Image

from ps_cluster.config.datasets import DATASETS
from tests.helpers.own_data import packed, refused, save_hugging_face

needs_it = pytest.mark.skipif(
    importlib.util.find_spec("datasets") is None, reason="what the library itself writes: make test-extras"
)


def described(folder, features):
    folder.mkdir()
    (folder / "state.json").write_text("{}")
    (folder / "dataset_info.json").write_text(json.dumps({"features": features}))
    return folder


def test_a_column_of_pictures_makes_it_a_set_of_images(tmp_path):
    pictures = described(tmp_path / "a", {"photo": {"_type": "Image"}, "label": {"_type": "ClassLabel"}})
    numbers = described(tmp_path / "b", {"x": {"_type": "Value"}})
    assert DATASETS.allow_code_of(str(pictures), tmp_path) == f"hugging_face_images:{pictures}"
    assert DATASETS.allow_code_of(str(numbers), tmp_path) == f"hugging_face:{numbers}"


CLASSES = {"image": {"_type": "Image"}, "label": {"_type": "ClassLabel", "names": ["cat", "dog"]}}


def pictures(labels, **more):
    """Rows of a picture and a label each; `more`: what a picture is instead."""
    file = io.BytesIO()
    Image.fromarray(np.full((6, 5, 3), 40, np.uint8)).save(file, "PNG")
    one = {"bytes": file.getvalue(), "path": None} | more
    kind = pa.struct({"bytes": pa.binary(), "path": pa.string()})
    return pa.record_batch({"image": pa.array([one] * len(labels), kind), "label": labels})


def test_a_folder_is_read_without_the_library(tmp_path):
    save_hugging_face(tmp_path / "a/train", CLASSES, *[pictures([0, 1])] * 3, files=2)
    save_hugging_face(tmp_path / "a/validation", CLASSES, pictures([1]))
    (tmp_path / "a/dataset_dict.json").write_text('{"splits": ["train", "validation"]}')
    dataset, _ = packed(tmp_path / "a")
    assert dataset.spec.classes == ("cat", "dog") and dataset.target("test").tolist() == [1]
    assert dataset.inputs("train")["image"].shape == (6, 6, 5, 3)


@pytest.mark.parametrize("has_pictures", [True, False])
def test_a_split_without_the_column_to_predict_leaves_the_test_to_the_next_one(tmp_path, has_pictures):
    rows, features = pictures([0, 1] * 5), CLASSES
    if not has_pictures:
        rows = pa.record_batch({"x": [1.0, 2.0] * 5, "label": [0, 1] * 5})
        features = {"label": CLASSES["label"]}
    save_hugging_face(tmp_path / "a/train", features, rows)
    save_hugging_face(tmp_path / "a/test", features, rows.drop_columns(["label"]))
    save_hugging_face(tmp_path / "a/validation", features, rows.slice(0, 3))
    (tmp_path / "a/dataset_dict.json").write_text('{"splits": ["train", "test", "validation"]}')
    dataset, told = packed(tmp_path / "a")
    assert (dataset.train_examples, dataset.target("test").tolist()) == (10, [0, 1, 0])
    assert "the split 'test' is not used: its examples have no labels" in told


def test_the_names_of_classes_may_be_the_letters_of_a_text(tmp_path):
    rows = pa.record_batch({"x": [1.0, 2.0] * 5, "label": [0, 1] * 5})
    features = {"label": {"_type": "ClassLabel", "names": "uv"}}
    assert packed(save_hugging_face(tmp_path / "a", features, rows))[0].spec.classes == ("u", "v")


@pytest.mark.parametrize(("labels", "unnamed"), [([0, 1], "1"), (["a", "b"], "a")])
def test_a_label_without_a_name_is_reported(tmp_path, labels, unnamed):
    rows = pa.record_batch({"x": [1.0, 2.0] * 5, "label": labels * 5})
    line = refused(save_hugging_face(tmp_path / "a", {"label": {"_type": "ClassLabel", "names": ["u"]}}, rows))
    assert f"the column 'label' contains the label '{unnamed}', but has names only for the labels 0 to 0" in line


def test_a_column_of_pictures_that_is_not_there_is_told(tmp_path):
    numbers = pa.record_batch({"x": [1.0, 2.0], "label": [0, 1]})
    line = refused(save_hugging_face(tmp_path / "a", CLASSES, numbers))
    assert "there is no column of pictures among x, label" in line


def test_a_picture_is_not_opened_at_the_path_that_the_folder_names(tmp_path):
    os.mkfifo(tmp_path / "pipe.png")
    rows = pictures([0, 1] * 5, bytes=None, path=str(tmp_path / "pipe.png"))
    assert "the folder holds only its path" in refused(save_hugging_face(tmp_path / "a", CLASSES, rows))


@pytest.mark.parametrize(
    ("damage", "told"),
    [
        (lambda folder: (folder / "data-0.arrow").unlink() or os.mkfifo(folder / "data-0.arrow"), "a regular file"),
        (lambda folder: (folder / "data-0.arrow").write_bytes(b""), "'data-0.arrow' is empty"),
        (
            lambda folder: (folder / "state.json").write_text('{"_data_files": [{"filename": "../x"}]}'),
            "'../x', which is outside its folder",
        ),
        (lambda folder: (folder / "state.json").write_text('{"_data_files": []}'), "_data_files"),
        (lambda folder: (folder / "state.json").write_text("{"), "is not JSON"),
        (lambda folder: far_offset(folder / "data-0.arrow"), "'data-0.arrow' can't be read"),
    ],
)
def test_a_folder_that_was_made_to_do_harm_is_refused_in_one_line(tmp_path, damage, told):
    folder = save_hugging_face(tmp_path / "a", {}, pa.record_batch({"x": ["abc", "defgh"], "label": [0, 1]}))
    damage(folder)
    assert told in refused(folder)


def far_offset(file):
    """The second text begins a gigabyte behind the first."""
    content = file.read_bytes()
    offsets = np.array([0, 3, 8], np.int32).tobytes()
    assert content.count(offsets) == 1
    file.write_bytes(content.replace(offsets, np.array([0, 2**30, 2**30 + 8], np.int32).tobytes()))


@needs_it
def test_pictures_with_the_names_of_their_classes(tmp_path):
    import datasets

    features = datasets.Features({"image": datasets.Image(), "label": datasets.ClassLabel(names=["cat", "dog"])})
    images = [Image.fromarray(np.full((6, 5, 3), 40 * number, np.uint8)) for number in range(6)]
    train = datasets.Dataset.from_dict({"image": images, "label": [0, 1] * 3}, features)
    datasets.DatasetDict({"train": train, "validation": train.select([1])}).save_to_disk(tmp_path / "a")
    dataset, _ = packed(tmp_path / "a")
    assert dataset.spec.classes == ("cat", "dog") and dataset.target("test").tolist() == [1]
    found = zip(dataset.inputs("train")["image"][:, 0, 0, 0].tolist(), dataset.target("train").tolist())
    assert sorted(found) == [(40 * number, number % 2) for number in range(6)]


@needs_it
def test_columns_of_numbers_and_names_are_a_table(tmp_path):
    import datasets

    size, city = datasets.Value("float32"), datasets.Value("string")
    features = datasets.Features({"size": size, "city": city, "label": datasets.ClassLabel(names=list("uv"))})
    columns = {"size": [1.0, 3.0] * 10, "city": ["Rome", None] * 10, "label": [0, 1] * 10}
    datasets.Dataset.from_dict(columns, features).shuffle(seed=0).save_to_disk(tmp_path / "a")
    dataset, told = packed(tmp_path / "a")
    assert dataset.spec.classes == ("u", "v") and dataset.test_examples == 2 and "held out 2 of 20" in told[-1]
    assert set(zip(dataset.inputs("train")["numbers"][:, 0].tolist(), dataset.target("train").tolist())) == {
        (-1.0, 0), (1.0, 1)
    }  # fmt: skip


def labelled(labels, names):
    import datasets

    features = datasets.Features({"size": datasets.Value("float32"), "label": datasets.ClassLabel(names=list(names))})
    return datasets.Dataset.from_dict({"size": [float(one) for one in labels], "label": list(labels)}, features)


@needs_it
def test_more_than_a_hundred_named_classes_are_classes(tmp_path):
    names = [f"n{number}" for number in range(150)]
    labelled(list(range(150)) * 2, names).save_to_disk(tmp_path / "a")
    spec = packed(tmp_path / "a")[0].spec
    assert (spec.objective, spec.classes) == ("classification", tuple(names))


@needs_it
def test_a_split_whose_labels_are_all_secret_is_not_tested_on(tmp_path):
    import datasets

    splits = {"train": labelled([0, 1] * 10, "uv"), "test": labelled([-1] * 4, "uv")}
    datasets.DatasetDict(splits).save_to_disk(tmp_path / "a")
    dataset, told = packed(tmp_path / "a")
    assert dataset.test_examples == 2 and dataset.spec.classes == ("u", "v")
    assert any("the split 'test' is not used" in line for line in told) and any("held out 2" in line for line in told)
    datasets.DatasetDict(splits | {"validation": labelled([1, 0, 1], "uv")}).save_to_disk(tmp_path / "b")
    assert packed(tmp_path / "b")[0].target("test").tolist() == [1, 0, 1]


@needs_it
def test_some_examples_without_a_label_are_told_in_one_line(tmp_path):
    labelled([0, 1, -1] * 5, "uv").save_to_disk(tmp_path / "a")
    assert "in the split 'train', 5 of 15 examples have no label (it is missing, or -1)" in refused(tmp_path / "a")


@needs_it
def test_minus_one_beside_other_numbers_that_have_no_names_is_a_class(tmp_path):
    import datasets

    datasets.Dataset.from_dict({"x": [0.5, 1.5] * 10, "label": [-1, 1] * 10}).save_to_disk(tmp_path / "a")
    assert packed(tmp_path / "a")[0].spec.classes == ("-1", "1")
