"""MNIST and Fashion-MNIST in their official formats, with made-up contents."""

import gzip
import io
import os
import struct
import zipfile

import numpy as np
import pytest

from ps_cluster.config.datasets import DATASETS
from ps_cluster.data import sources
from ps_cluster.data.sets import mnist
from tests.helpers.data import arrays_of, copy_with_changes, refusal_of
from tests.helpers.digits import digits, idx, write_as_idx, write_as_keras

ROWS = {"train": 600, "t10k": 100}  # a hundredth of what there are


def made(name: str, rows: int) -> tuple[np.ndarray, np.ndarray]:
    """Images uint8 [rows, 28, 28] that tell their number, and labels; only Fashion-MNIST's are equally frequent."""
    numbers = np.arange(rows)
    images = np.zeros((rows, 28, 28), np.uint8)
    images[:, 3, 5], images[:, 3, 6] = numbers % 256, numbers // 256
    return images, (numbers % 10 if name == "fashion_mnist" else numbers % 11 % 10).astype(np.uint8)


@pytest.fixture(scope="module", autouse=True)
def small():
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(mnist.MNIST_ROWS, "train", ROWS["train"])
        patch.setitem(mnist.MNIST_ROWS, "test", ROWS["t10k"])
        yield


@pytest.fixture(scope="module", params=["mnist", "fashion_mnist"])
def four_files(request, tmp_path_factory):
    """(name, folder of the four gzipped files)."""
    folder = tmp_path_factory.mktemp(request.param)
    for stem, rows in ROWS.items():
        images, labels = made(request.param, rows)
        for what, array in (("images-idx3", images), ("labels-idx1", labels)):
            (folder / f"{stem}-{what}-ubyte.gz").write_bytes(gzip.compress(idx(array), 1))
    return request.param, folder


@pytest.fixture(scope="module")
def npz(tmp_path_factory):
    """Keras's archive of MNIST."""
    path = tmp_path_factory.mktemp("keras") / "mnist.npz"
    arrays = {}
    for stem, split in (("train", "train"), ("t10k", "test")):
        arrays[f"x_{split}"], arrays[f"y_{split}"] = made("mnist", ROWS[stem])
    np.savez_compressed(path, **arrays)
    return path


def assert_is(contents, name):
    for images, labels, rows in zip(*[iter(arrays_of(contents))] * 2, ROWS.values(), strict=True):
        wanted = made(name, rows)
        assert images.shape == (rows, 28, 28, 1) and images.dtype == labels.dtype == np.uint8
        assert (images[..., 0] == wanted[0]).all() and (labels == wanted[1]).all()
    assert len(contents.spec.classes) == 10


def read(name, source):
    return DATASETS[name].read(source, None)


def test_the_four_files_are_read_gzipped_and_not(four_files, tmp_path):
    name, folder = four_files
    assert_is(read(name, folder), name)
    for file in folder.iterdir():
        (tmp_path / file.stem).write_bytes(gzip.decompress(file.read_bytes()))
    assert_is(read(name, tmp_path), name)


def test_keras_archive_is_read(npz):
    assert_is(read("mnist", npz), "mnist")


def test_real_digits_are_packed_alike_from_keras_archive_and_from_the_four_files(tmp_path):
    arrays, packed = digits({"train": ROWS["train"], "test": ROWS["t10k"]}), []
    for write in (write_as_keras, write_as_idx):
        (folder := tmp_path / write.__name__).mkdir()
        settings = DATASETS["mnist"].Settings(dataset="mnist", data_dir=write(folder, arrays))
        packed.append(sources.resolve(settings, tmp_path / "cache", notify=print))
    one, other = packed
    assert one.directory != other.directory and one.spec == other.spec
    for split in ("train", "test"):
        for dataset in packed:
            assert (dataset.inputs(split)["image"][..., 0] == arrays[f"x_{split}"]).all()
            assert (dataset.target(split) == arrays[f"y_{split}"]).all()


def test_each_is_found_in_a_folder_with_several(four_files, npz, tmp_path):
    name, folder = four_files
    os.symlink(folder, tmp_path / {"mnist": "mnist", "fashion_mnist": "fashion-mnist"}[name])
    kind = DATASETS[name]
    assert list(kind.candidates(folder)) == [folder / "."]
    assert [path.resolve() for path in kind.candidates(tmp_path)] == [folder]
    assert list(DATASETS["mnist"].candidates(npz.parent)) == list(DATASETS["mnist"].candidates(npz)) == [npz]
    assert not list(kind.candidates(tmp_path / "nothing"))


def test_a_set_of_the_same_form_is_not_taken_for_the_other(four_files, npz):
    name, folder = four_files
    other = {"mnist": "fashion_mnist", "fashion_mnist": "mnist"}[name]
    assert "equally many images" in refusal_of(other, folder)
    assert "do not have equally many images" in refusal_of("fashion_mnist", npz)


LABELS = "train-labels-idx1-ubyte.gz"


@pytest.mark.parametrize(
    ("content", "told"),
    [
        (None, "it lacks train-labels-idx1-ubyte"),
        (b"\x1f\x8b", ""),
        (gzip.compress(idx(np.zeros(600, np.uint8)))[:-9], ""),
        (idx(np.zeros(600, np.uint8))[:-1], "it is cut short"),
        (idx(np.zeros(600, np.uint8)) + b"\0", "longer than its header says"),
        (idx(np.zeros(599, np.uint8)), "its array has the shape [599] instead of [600]"),
        (struct.pack(">HBBI", 0, 8, 1, 2**32 - 1), "its array has the shape [4294967295]"),
        (struct.pack(">HBBI", 0, 13, 1, 600), "no IDX file with a 1-dimensional array of bytes"),
        (idx(np.arange(600).astype(np.uint8)), "a label is 255"),
        # 1 GB of zeros, a hundred times the same part: quick to make, as this is done wherever tests are collected.
        (
            gzip.compress(struct.pack(">HBBI", 0, 8, 1, 600)) + 100 * gzip.compress(bytes(10**7)),
            "longer than its header",
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_damaged_file_is_told_in_one_line(four_files, tmp_path, content, told):
    name, folder = four_files
    assert told in refusal_of(name, copy_with_changes(folder, tmp_path, {LABELS: content}))


def zipped(path, **members: bytes):
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in members.items():
            archive.writestr(f"{name}.npy", content)
    return path


def npy(array: np.ndarray) -> bytes:
    file = io.BytesIO()
    np.lib.format.write_array(file, array, allow_pickle=True)
    return file.getvalue()


@pytest.mark.parametrize(
    ("members", "told"),
    [
        ({}, "it lacks x_train"),
        ({"x_train": bytes(10**8)}, "x_train.npy is not an array"),
        ({"x_train": b"no array"}, "x_train.npy is not an array"),
        ({"x_train": npy(np.zeros((10, 28, 28), np.uint8))}, "x_train is uint8 [10, 28, 28]"),
        ({"x_train": npy(np.array([print], object))}, "holds Python objects"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_damaged_archive_is_told_in_one_line_and_runs_nothing(tmp_path, members, told):
    assert told in refusal_of("mnist", zipped(tmp_path / "mnist.npz", **members))
    (tmp_path / "mnist.npz").write_bytes(b"<html>")
    assert "is not an .npz file" in refusal_of("mnist", tmp_path / "mnist.npz")


def test_all_files_of_a_data_set_are_downloaded_then_packed_and_removed(four_files, tmp_path, monkeypatch):
    name, folder = four_files
    asked = []

    def fake_download(url, destination, sha256, progress, patience):
        asked.append((url, sha256))
        destination.parent.mkdir(parents=True, exist_ok=True)
        os.link(folder / destination.name, destination)

    monkeypatch.setenv("KERAS_HOME", str(tmp_path / "keras"))
    monkeypatch.setattr(sources, "download", fake_download)
    kind = DATASETS["fashion_mnist"]
    if name != kind.name:
        pytest.skip("MNIST is one file")
    settings = kind.Settings(dataset=name)
    packed = sources.resolve(settings, tmp_path / "cache", notify=print)
    assert asked == [(one.url, one.sha256) for one in kind.downloads]
    assert packed.spec.inputs["image"].shape == (28, 28, 1) and packed.kind == "real"
    assert [path.name for path in (tmp_path / "cache").iterdir()] == ["packed-2"]
