import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from ps_cluster.data.packed import load_packed
from ps_cluster.errors import UserError
from tests.helpers.data import contents_of, only_named, pack_images

PROJECT = Path(__file__).parents[2]
CLASSES = tuple("abcdefghij")


def made(train=6, test=3):
    images = np.arange((train + test) * 3072, dtype=np.uint32).astype(np.uint8).reshape(-1, 32, 32, 3)
    labels = (np.arange(train + test) % 10).astype(np.uint8)
    return images[:train], labels[:train], images[train:], labels[train:]


def change(directory: Path, **fields):
    manifest = json.loads((directory / "dataset.json").read_text())
    (directory / "dataset.json").write_text(json.dumps(manifest | fields))


def test_what_is_packed_is_what_is_loaded(tmp_path):
    arrays = made()
    written = pack_images(tmp_path / "set", "synthetic", CLASSES, arrays)
    assert written == load_packed(tmp_path / "set")
    named = only_named("synthetic", tmp_path / "set", 6, 3)
    assert written == replace(named, spec=contents_of(arrays).spec, checksum=written.checksum)
    other = pack_images(tmp_path / "other", "synthetic", CLASSES, (arrays[0] + 1, *arrays[1:]))
    assert written.checksum != other.checksum
    read = (
        written.inputs("train")["image"],
        written.target("train"),
        written.inputs("test")["image"],
        written.target("test"),
    )
    for array, mapped in zip(arrays, read, strict=True):
        assert isinstance(mapped, np.memmap) and mapped.dtype == np.uint8
        assert (mapped == array).all() and mapped.shape == array.shape
        with pytest.raises(ValueError, match="read-only"):
            mapped[0] = 1


def test_images_held_out_are_the_last_ones_and_no_training_images(tmp_path):
    arrays = made(train=6)
    dataset = pack_images(tmp_path / "set", "synthetic", CLASSES, arrays).holding_out(2)
    assert (dataset.train_examples, dataset.validation_examples, dataset.test_examples) == (4, 2, 3)
    for split, images, labels in (
        ("train", arrays[0][:4], arrays[1][:4]), ("validation", arrays[0][4:], arrays[1][4:]), ("test", *arrays[2:])
    ):  # fmt: skip
        assert (dataset.inputs(split)["image"] == images).all() and (dataset.target(split) == labels).all()
    assert dataset.holding_out(2) == dataset, "of all training images, not of those that are left"
    with pytest.raises(UserError, match="evaluation.validation_examples: got 6: the data set has 6 training examples"):
        dataset.holding_out(6)


@pytest.mark.parametrize(
    ("held_out", "labels", "refused"),
    [(40, np.arange(100) // 50, True), (40, np.arange(100) % 2, False), (5, np.arange(100) // 50, False)],
    ids=["sorted", "mixed", "too few to tell"],
)
def test_examples_that_are_sorted_by_class_are_not_held_out(tmp_path, held_out, labels, refused):
    images, _, *test = made(train=100)
    dataset = pack_images(tmp_path / "set", "synthetic", CLASSES, (images, labels.astype(np.uint8), *test))
    if refused:
        with pytest.raises(
            UserError, match="got 40: the held-out end .* no example of class '.*': the data seems sorted"
        ):
            dataset.holding_out(held_out)
    else:
        assert dataset.holding_out(held_out).validation_examples == held_out


def test_directory_is_absolute_so_that_other_processes_find_it(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert pack_images(Path("set"), "cifar10", CLASSES, made()).directory == tmp_path / "set"


@pytest.mark.parametrize(
    ("damage", "reason"),
    [
        (lambda set_: (set_ / "dataset.json").unlink(), "dataset.json: No such file"),
        (lambda set_: (set_ / "dataset.json").write_text("{"), "dataset.json': is not JSON"),
        (lambda set_: (set_ / "dataset.json").write_text("{}"), "'format' is missing"),
        (lambda set_: change(set_, format=99), "format 99 instead of 2"),
        (lambda set_: change(set_, kind="made up"), "kind: got 'made up'"),
        (lambda set_: change(set_, inputs={}), "inputs: got {}"),
        (lambda set_: change(set_, inputs={"../etc": {"dtype": "uint8", "shape": []}}), "inputs"),
        (lambda set_: change(set_, inputs={"target": {"dtype": "uint8", "shape": []}}), "an input is called 'target'"),
        (lambda set_: change(set_, target={"dtype": "object", "shape": []}), "target.dtype: got 'object'"),
        (lambda set_: change(set_, objective="guessing"), "objective 'guessing': "),
        (lambda set_: change(set_, train_examples="6"), "train_examples: got '6'"),
        (lambda set_: change(set_, test_examples=0), "test_examples: got 0"),
        (lambda set_: change(set_, classes=[]), "a label is 5, but the 0 classes are numbered from 0"),
        (lambda set_: change(set_, train_examples=7), "do not fit the numbers of examples"),
        (lambda set_: (set_ / "test_target.uint8").unlink(), "test_target.uint8: No such file"),
        (lambda set_: (set_ / "test_image.uint8").write_bytes(b"x"), "test_image.uint8 has 1 bytes, not 9216"),
    ],
)
def test_damaged_folder_is_refused_with_one_clear_line(tmp_path, damage, reason):
    pack_images(tmp_path / "set", "synthetic", CLASSES, made())
    damage(tmp_path / "set")
    with pytest.raises(UserError) as error:
        load_packed(tmp_path / "set")
    assert str(tmp_path / "set") in str(error.value) and reason in str(error.value)
    assert "\n" not in str(error.value)
