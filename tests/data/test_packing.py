"""Packing a data set: what is refused, and that its folder appears complete or not at all."""

import os
import subprocess
import sys

import numpy as np
import pytest

from ps_cluster.config.datasets import Contents
from ps_cluster.data.packed import load_packed
from ps_cluster.data.packing import PackingProgress, write_packed
from ps_cluster.errors import UserError
from ps_cluster.files import locks
from tests.helpers.bad_input import PROJECT
from tests.helpers.data import LETTERS, pack_images, random_images


def images(train: int):
    return *random_images(train), *random_images(3, seed=1)


@pytest.mark.parametrize("split", ["train", "test"])
def test_a_value_that_is_not_finite_is_told_with_its_example_in_any_field(tmp_path, split):
    rows = {"x": np.ones((3, 5000), np.float16), "target": np.arange(3)}
    wrong = {**rows, "x": rows["x"].copy()}
    wrong["x"][2, 4999] = np.inf
    splits = {"train": rows, "test": rows} | {split: wrong}
    with pytest.raises(UserError, match=f"{split} 'x' has values that are not finite, e.g. inf in example 2: rep"):
        write_packed(tmp_path / "set", "w", "real", Contents.of(**splits))
    assert not list(tmp_path.iterdir())


class Failing:
    """Rows whose reading fails."""

    dtype, shape = np.dtype("float32"), (4, 3)

    def __init__(self, error):
        self.error = error

    def __len__(self):
        return 4

    def __getitem__(self, part):
        raise self.error


def test_rows_that_can_not_be_read_are_not_told_as_a_folder_that_can_not_be_written(tmp_path):
    rows = {"x": Failing(OSError(5, "Input/output error")), "target": np.arange(4) % 2}
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
    assert pack_images(tmp_path / "other", "synthetic", LETTERS, images(6)).weight("train") is None


@pytest.mark.parametrize(
    ("contents", "reason"),
    [
        (weighted((1, -0.5)), "a train weight is -0.5: weights are finite and at least 0"),
        (weighted((1, 1), (np.nan, 1)), "a test weight is nan: weights are finite and at least 0"),
        (weighted((0, 0)), "all train weights are 0, so no example would count"),
        (
            weighted(((1, 1), (1, 1)), ((1, 1), (1, 1))),
            r"train weights are float32 \[2\], not one float for each example",
        ),
        (
            weighted((1, 1), (1, 1, 1)),
            "all test arrays need the same number of rows, and at least one row: there are 2 in x, 2 in tar",
        ),
    ],
)
def test_weights_that_cannot_count_are_refused(tmp_path, contents, reason):
    with pytest.raises(UserError, match=f"^dataset: 'w' can't be packed: {reason}"):
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


def test_what_killed_processes_left_is_removed_and_what_is_being_packed_is_not(tmp_path):
    (tmp_path / ".other.0123.tmp").mkdir()
    with locks.sharing_new(tmp_path / ".set.4567.tmp"):
        os.utime(tmp_path / ".set.4567.tmp", (0, 0))
        pack_images(tmp_path / "set", "synthetic", LETTERS, images(6))
        assert sorted(path.name for path in tmp_path.iterdir()) == [".set.4567.tmp", "set"]
    pack_images(tmp_path / "set2", "synthetic", LETTERS, images(6))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["set", "set2"]


def test_a_sound_copy_of_somebody_faster_is_kept_and_a_damaged_one_is_replaced(tmp_path):
    pack_images(tmp_path / "set", "synthetic", LETTERS, images(9))
    assert pack_images(tmp_path / "set", "synthetic", LETTERS, images(6)).train_examples == 9
    (tmp_path / "set" / "train_image.uint8").write_bytes(b"short")
    assert pack_images(tmp_path / "set", "synthetic", LETTERS, images(6)).train_examples == 6
    assert [path.name for path in tmp_path.iterdir()] == ["set"]


def test_place_that_cannot_be_written_is_an_error(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(UserError, match=r"^cache_dir: cannot write '.*/file/set' \(.*\); set PS_CLUSTER_CACHE"):
        pack_images(tmp_path / "file" / "set", "synthetic", LETTERS, images(6))


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


def contents(x):
    train = {"x": x, "target": np.arange(len(x)) % 2}
    return Contents.of(train, train)


def test_progress_is_told_at_most_once_in_five_seconds():
    now, told = [0.0], []
    progress = PackingProgress("mine", 4_000_000_000, told.append, clock=lambda: now[0])
    for now[0] in (1.0, 4.9, 5.0, 9.9, 11.0):
        progress.add(500_000_000)
    assert told == ["packed 37 % of 4.00 GB of 'mine'", "packed 62 % of 4.00 GB of 'mine'"]


def test_a_disk_without_room_is_told_before_anything_is_written(tmp_path):
    with pytest.raises(UserError, match="takes 0.00 GB, and the disk of .* has 0.00 GB free: set PS_CLUSTER_CACHE"):
        write_packed(tmp_path / "set", "mine", "real", contents(np.zeros((4, 2))), free_bytes=lambda folder: 63)
    assert not list(tmp_path.iterdir())


def test_packing_that_is_interrupted_leaves_nothing_behind(tmp_path):
    with pytest.raises(KeyboardInterrupt):
        write_packed(tmp_path / "set", "mine", "real", contents(Failing(KeyboardInterrupt())))
    assert not list(tmp_path.iterdir())
