"""Folders of Hugging Face's library."""

import importlib.util
import json

import numpy as np
import pytest
from PIL import Image

from ps_cluster.catalogue.datasets import DATASETS
from ps_cluster.installation import to_install
from tests.helpers.own_data import packed, refused

needs_it = pytest.mark.skipif(
    importlib.util.find_spec("datasets") is None, reason="needs the extra huggingface: pip install datasets"
)


def described(folder, features):
    folder.mkdir()
    (folder / "state.json").write_text("{}")
    (folder / "dataset_info.json").write_text(json.dumps({"features": features}))
    return folder


def test_a_column_of_pictures_makes_it_a_set_of_images(tmp_path):
    pictures = described(tmp_path / "a", {"photo": {"_type": "Image"}, "label": {"_type": "ClassLabel"}})
    numbers = described(tmp_path / "b", {"x": {"_type": "Value"}})
    assert DATASETS.named_by_user(str(pictures), tmp_path) == f"hugging_face_images:{pictures}"
    assert DATASETS.named_by_user(str(numbers), tmp_path) == f"hugging_face:{numbers}"


@pytest.mark.skipif(importlib.util.find_spec("datasets") is not None, reason="the library is installed")
def test_without_the_library_the_way_to_install_it_is_told(tmp_path):
    folder = described(tmp_path / "a", {"x": {"_type": "Value"}})
    assert f"which is not installed: {to_install('huggingface')}" in refused(folder)


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

    features = datasets.Features(
        {
            "size": datasets.Value("float32"),
            "city": datasets.Value("string"),
            "label": datasets.ClassLabel(names=list("uv")),
        }
    )
    columns = {"size": [1.0, 3.0] * 10, "city": ["Rome", None] * 10, "label": [0, 1] * 10}
    datasets.Dataset.from_dict(columns, features).shuffle(seed=0).save_to_disk(tmp_path / "a")
    dataset, told = packed(tmp_path / "a")
    assert dataset.spec.classes == ("u", "v") and dataset.test_examples == 2 and "held out 2 of 20" in told[-1]
    assert set(zip(dataset.inputs("train")["numbers"][:, 0].tolist(), dataset.target("train").tolist())) == {
        (-1.0, 0), (1.0, 1)
    }  # fmt: skip


def labelled(labels, names):
    import datasets

    features = datasets.Features({"size": datasets.Value("float32"), "label": datasets.ClassLabel(names=names)})
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
    assert "the split 'train' has no label (a missing one, or -1) in 5 of 15 examples" in refused(tmp_path / "a")


@needs_it
def test_minus_one_beside_other_numbers_that_have_no_names_is_a_class(tmp_path):
    import datasets

    datasets.Dataset.from_dict({"x": [0.5, 1.5] * 10, "label": [-1, 1] * 10}).save_to_disk(tmp_path / "a")
    assert packed(tmp_path / "a")[0].spec.classes == ("-1", "1")
