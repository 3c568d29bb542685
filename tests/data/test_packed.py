import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from ps_cluster.config.datasets import Contents
from ps_cluster.config.objectives import Field
from ps_cluster.data.packed import RunningStatistics, load_packed, write_packed
from ps_cluster.errors import UserError
from ps_cluster.files import locks
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
        with pytest.raises(UserError, match="got 40: the end .* no example of class '.*': the data seems sorted"):
            dataset.holding_out(held_out)
    else:
        assert dataset.holding_out(held_out).validation_examples == held_out


def statistics(array):
    """The mean and deviation that are kept of an input."""
    gathered = RunningStatistics(Field(str(array.dtype), array.shape[1:]))
    for piece in np.array_split(array, 3):
        gathered.add(piece)
    return gathered.field


def test_statistics_are_those_of_the_training_examples_channel_by_channel():
    images = np.random.default_rng(0).integers(0, 256, (50, 8, 6, 3), np.uint8)
    field = statistics(images)
    assert field.mean == pytest.approx(images.mean((0, 1, 2))) and field.std == pytest.approx(images.std((0, 1, 2)))
    assert statistics(np.arange(10)).mean == (), "a whole number may be a name"


def test_statistics_far_from_0_are_as_exact_and_a_constant_has_none():
    values = np.random.default_rng(0).normal(1e8, 1, 1000)
    assert statistics(values).std == pytest.approx((values.std(),), rel=1e-9)
    assert statistics(np.full((1000, 2), 1234.5, np.float32)).std == (0.0, 0.0)


def test_a_long_last_axis_is_no_row_of_channels():
    assert statistics(np.ones((3, 5000), np.float32)).mean == ()


@pytest.mark.parametrize("split", ["train", "test"])
def test_a_value_that_is_not_finite_is_told_with_its_example_in_any_field(tmp_path, split):
    rows = {"x": np.ones((3, 5000), np.float16), "target": np.arange(3)}
    wrong = {**rows, "x": rows["x"].copy()}
    wrong["x"][2, 4999] = np.inf
    splits = {"train": rows, "test": rows} | {split: wrong}
    with pytest.raises(UserError, match=f"{split} 'x' has values that are not finite: inf in example 2: replace them"):
        write_packed(tmp_path / "set", "w", "real", Contents.of(**splits))
    assert not list(tmp_path.iterdir())


class Unreadable:
    """Rows on a disk that fails."""

    dtype, shape = np.dtype("float32"), (4, 3)

    def __len__(self):
        return 4

    def __getitem__(self, part):
        raise OSError(5, "Input/output error")


def test_rows_that_can_not_be_read_are_not_told_as_a_folder_that_can_not_be_written(tmp_path):
    rows = {"x": Unreadable(), "target": np.arange(4) % 2}
    with pytest.raises(UserError, match="can't be packed: train 'x' can't be read: Input/output error"):
        write_packed(tmp_path / "set", "w", "real", Contents.of(rows, rows))


def weighted(train_weights, test_weights=(1.0, 1.0)):
    """Contents of two numbers with weights."""

    def split(weights):
        return {"x": np.zeros((2, 3), np.float32), "target": np.arange(2), "weight": np.array(weights, np.float32)}

    return Contents.of(split(train_weights), split(test_weights))


def test_weights_are_packed_and_are_no_input(tmp_path):
    packed = write_packed(tmp_path / "set", "w", "real", weighted((0.5, 2)))
    assert list(packed.inputs("train")) == ["x"] and packed == load_packed(tmp_path / "set")
    assert packed.weight("train").tolist() == [0.5, 2] and packed.weight("test").tolist() == [1, 1]
    assert pack_images(tmp_path / "other", "synthetic", CLASSES, made()).weight("train") is None


@pytest.mark.parametrize(
    ("contents", "reason"),
    [
        (weighted((1, -0.5)), "a train weight is -0.5: weights are finite and at least 0"),
        (weighted((1, 1), (np.nan, 1)), "a test weight is nan: weights are finite and at least 0"),
        (weighted((0, 0)), "all train weights are 0: nothing would count"),
        (weighted(((1, 1), (1, 1)), ((1, 1), (1, 1))), r"train weights are float32 \[2\], not one float each"),
        (weighted((1, 1), (1, 1, 1)), "test has 2 of x, 2 of target, 3 of weight"),
    ],
)
def test_weights_that_cannot_count_are_refused(tmp_path, contents, reason):
    with pytest.raises(UserError, match=f"^dataset: 'w' can't be packed: {reason}$"):
        write_packed(tmp_path / "set", "w", "real", contents)
    assert not list(tmp_path.iterdir())


class Computed:
    """Rows that are made when they are asked for, and only once."""

    dtype, shape = np.dtype("float32"), (50_000, 700)

    def __init__(self):
        self.asked = []

    def __len__(self):
        return self.shape[0]

    def __getitem__(self, part):
        self.asked.append(part)
        return np.arange(self.shape[0], dtype=np.float32)[part, None] * np.ones(700, np.float32)


def test_rows_that_are_computed_are_asked_for_once_and_in_pieces(tmp_path):
    rows = Computed()
    train = {"x": rows, "target": np.zeros(50_000, np.uint8)}
    test = {"x": np.zeros((2, 700), np.float32), "target": np.zeros(2, np.uint8)}
    packed = write_packed(tmp_path / "set", "c", "real", Contents.of(train, test, classes=["a"]))
    assert len(rows.asked) == 3 and rows.asked[-1].stop >= 50_000 and rows.asked[0].stop < 25_000
    assert packed.inputs("train")["x"][49_999, 699] == 49_999
    assert packed.spec.inputs["x"].mean[0] == pytest.approx(24_999.5)


def test_directory_is_absolute_so_that_other_processes_find_it(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert pack_images(Path("set"), "cifar10", CLASSES, made()).directory == tmp_path / "set"


def test_what_killed_processes_left_is_removed_and_what_is_being_packed_is_not(tmp_path):
    (tmp_path / ".other.0123.tmp").mkdir()
    with locks.sharing_new(tmp_path / ".set.4567.tmp"):
        os.utime(tmp_path / ".set.4567.tmp", (0, 0))
        pack_images(tmp_path / "set", "synthetic", CLASSES, made())
        assert sorted(path.name for path in tmp_path.iterdir()) == [".set.4567.tmp", "set"]
    pack_images(tmp_path / "set2", "synthetic", CLASSES, made())
    assert sorted(path.name for path in tmp_path.iterdir()) == ["set", "set2"]


def test_sound_copy_of_somebody_faster_is_kept(tmp_path):
    pack_images(tmp_path / "set", "synthetic", CLASSES, made(train=9))
    assert pack_images(tmp_path / "set", "synthetic", CLASSES, made(train=6)).train_examples == 9
    assert [path.name for path in tmp_path.iterdir()] == ["set"]


def test_damaged_copy_is_replaced(tmp_path):
    pack_images(tmp_path / "set", "synthetic", CLASSES, made(train=9))
    (tmp_path / "set" / "train_image.uint8").write_bytes(b"short")
    assert pack_images(tmp_path / "set", "synthetic", CLASSES, made(train=6)).train_examples == 6
    assert [path.name for path in tmp_path.iterdir()] == ["set"]


@pytest.mark.parametrize(
    ("damage", "reason"),
    [
        (lambda set_: (set_ / "dataset.json").unlink(), "dataset.json: No such file"),
        (lambda set_: (set_ / "dataset.json").write_text("{"), "dataset.json': is not JSON"),
        (lambda set_: (set_ / "dataset.json").write_text("[]"), "dataset.json': got []: names with values are needed"),
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
        (lambda set_: change(set_, classes=[]), "a label is 5, of 0 classes"),
        (lambda set_: change(set_, train_examples=7), "bytes do not fit"),
        (lambda set_: (set_ / "test_target.uint8").unlink(), "test_target.uint8: No such file"),
        (lambda set_: (set_ / "test_image.uint8").write_bytes(b"x"), "9216 bytes in test_image.uint8, which has 1"),
    ],
)
def test_damaged_folder_is_refused_with_one_clear_line(tmp_path, damage, reason):
    pack_images(tmp_path / "set", "synthetic", CLASSES, made())
    damage(tmp_path / "set")
    with pytest.raises(UserError) as error:
        load_packed(tmp_path / "set")
    assert str(tmp_path / "set") in str(error.value) and reason in str(error.value)
    assert "\n" not in str(error.value)


def test_place_that_cannot_be_written_is_an_error(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(UserError, match=r"^cache_dir: cannot write '.*/file/set' \(.*\); set PS_CLUSTER_CACHE"):
        pack_images(tmp_path / "file" / "set", "synthetic", CLASSES, made())


@pytest.mark.slow
def test_processes_that_pack_at_the_same_time_all_get_the_whole_set(tmp_path):
    pack_often = """
import sys
from pathlib import Path
import numpy as np
from tests.helpers.data import pack_images
arrays = tuple(np.ones(shape, np.uint8) for shape in ((500, 32, 32, 3), 500, (9, 32, 32, 3), 9))
print("ready", flush=True)
sys.stdin.readline()
for number in range(40):
    packed = pack_images(Path(sys.argv[1]) / str(number), "synthetic", ("a", "b"), arrays)
    assert packed.inputs("train")["image"].sum() == 500 * 3072 and packed.target("test").sum() == 9
"""
    command = [sys.executable, "-c", pack_often, str(tmp_path)]
    pipe = subprocess.PIPE
    racers = [subprocess.Popen(command, cwd=PROJECT, stdin=pipe, stdout=pipe, stderr=pipe, text=True) for _ in range(3)]
    try:
        assert [racer.stdout.readline() for racer in racers] == ["ready\n"] * 3
        for racer in racers:
            racer.stdin.write("go\n")
            racer.stdin.flush()
        errors = [racer.communicate(timeout=30)[1] for racer in racers]
    finally:
        for racer in racers:
            racer.kill()
            racer.wait(5)
    assert errors == [""] * 3 and [racer.returncode for racer in racers] == [0] * 3
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(map(str, range(40)))
