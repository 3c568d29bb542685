import io
import os
import pickle
import tarfile
from pathlib import Path

import numpy as np
import pytest

from ps_cluster.config.datasets import DATASETS
from ps_cluster.data.plain_pickles import PickledArray, load_plain
from ps_cluster.data.sets import cifar
from tests.helpers.data import CIFAR_ROWS, arrays_of, copy_with_changes, refusal_of

pytestmark = pytest.mark.usefixtures("small_cifar")
OFFICIAL = cifar.Cifar10.batches
CIFAR10 = DATASETS["cifar10"]
PROJECT = Path(__file__).parents[2]
REAL = Path(os.environ.get("PS_CLUSTER_TEST_DATA", PROJECT.parent / "shared" / "data")) / "cifar-10-python.tar.gz"


def assert_is(found, contents):
    """The arrays are the batches in the order of their numbers, whatever order they were stored in."""
    train_images, train_labels, test_images, test_labels = arrays = arrays_of(found)
    assert train_images.shape == (5 * CIFAR_ROWS, 32, 32, 3) and test_images.shape == (CIFAR_ROWS, 32, 32, 3)
    assert {array.dtype for array in arrays} == {np.dtype(np.uint8)}
    for number in range(1, 6):
        batch = slice((number - 1) * CIFAR_ROWS, number * CIFAR_ROWS)
        assert train_labels[batch].tolist() == contents[f"data_batch_{number}"][b"labels"]
        assert (train_images[batch, 0, 0, 0] == contents[f"data_batch_{number}"][b"data"][:, 0]).all()
    assert test_labels.tolist() == contents["test_batch"][b"labels"]
    row, column, colour = 5, 9, 2
    stored = contents["test_batch"][b"data"][:, colour * 1024 + row * 32 + column]
    assert (test_images[:, row, column, colour] == stored).all()


def test_archive_is_read_in_the_order_of_the_batch_numbers(archive, contents):
    found = CIFAR10.read(archive, None)
    assert_is(found, contents)
    assert found.spec == cifar.SPEC


def test_folder_without_class_names_gets_the_usual_ones(folder, tmp_path, contents):
    found = CIFAR10.read(copy_with_changes(folder, tmp_path, {"batches.meta": None}), None)
    assert_is(found, contents)
    assert found.spec.classes == cifar.CLASSES


@pytest.mark.parametrize("protocol", [0, 2, 4])
def test_arrays_pickled_by_python_3_are_read_too(protocol):
    pixels = np.arange(12, dtype=np.uint8).reshape(3, 4)
    made = {"data": pixels, "labels": np.arange(3), "transposed": pixels.T}
    read = load_plain(pickle.dumps(made, protocol))
    assert all(isinstance(read[name], PickledArray) for name in made)
    for name, array in made.items():
        assert (read[name].to_numpy() == array).all() and read[name].to_numpy().shape == array.shape


@pytest.mark.parametrize(
    ("place", "expected"),
    [
        ("cifar-10-batches-py", "."),
        ("nested/cifar-10-batches-py", "nested"),
        (".keras/datasets/cifar-10-batches-py-target/cifar-10-batches-py", ".keras/datasets"),
    ],
)
def test_folder_of_batches_is_found(tmp_path, place, expected):
    (tmp_path / place).mkdir(parents=True)
    (tmp_path / place / "data_batch_3").touch()
    assert [found.resolve() for found in CIFAR10.candidates(tmp_path / expected)] == [tmp_path / place]
    assert [found.resolve() for found in CIFAR10.candidates(tmp_path / place)] == [tmp_path / place]


@pytest.mark.parametrize(
    "name", ["cifar-10-python.tar.gz", "cifar-10-batches-py.tar.gz", "cifar-10-batches-py-target_archive"]
)
def test_archive_is_found_by_its_own_path_and_by_its_folder(tmp_path, name):
    (tmp_path / name).touch()
    assert list(CIFAR10.candidates(tmp_path)) == list(CIFAR10.candidates(tmp_path / name)) == [tmp_path / name]


def test_nothing_is_found_in_an_empty_folder_or_where_there_is_none(tmp_path):
    assert list(CIFAR10.candidates(tmp_path)) == list(CIFAR10.candidates(tmp_path / "missing")) == []


def batch(**changes) -> bytes:
    sound = {"data": np.zeros((CIFAR_ROWS, 3072), np.uint8), "labels": [0] * CIFAR_ROWS}
    return pickle.dumps(sound | changes, protocol=2)


@pytest.mark.parametrize(
    ("file", "content", "reason"),
    [
        ("data_batch_1", b"", "damaged pickle"),
        ("data_batch_1", batch()[:200_000], "data_batch_1: damaged pickle"),
        ("data_batch_1", pickle.dumps([1]), "no dictionary"),
        ("data_batch_1", pickle.dumps({(1, 2): 3}), "a name is no text, but of type tuple"),
        ("data_batch_1", pickle.dumps({b"labels": []}), "no array 'data'"),
        ("data_batch_1", pickle.dumps({b"data": np.zeros((CIFAR_ROWS, 32), np.uint8)}), "[100, 32]"),
        ("data_batch_1", pickle.dumps({b"data": np.zeros((1, 3072), np.float32)}), "type 'f4'"),
        ("data_batch_1", pickle.dumps({b"data": np.array([None])}), "type 'O8'"),
        ("data_batch_1", batch(labels=[0] * 101), "no list 'labels' of 100 labels"),
        ("data_batch_1", batch(labels=[0] * 99 + [10]), "from 0 to 9"),
        ("data_batch_1", batch(labels=[-1] * CIFAR_ROWS), "from 0 to 9"),
        ("data_batch_1", batch(labels=["0"] * CIFAR_ROWS), "from 0 to 9"),
        ("test_batch", None, "it lacks test_batch"),
        ("batches.meta", pickle.dumps({"label_names": ["cat"]}), "batches.meta has no list 'label_names' of 10 names"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_folder_with_a_broken_or_missing_file_is_refused_in_one_line(folder, tmp_path, file, content, reason):
    assert reason in refusal_of("cifar10", copy_with_changes(folder, tmp_path, {file: content}))


@pytest.mark.parametrize(
    ("damage", "reason"),
    [
        (lambda sound: b"", "it is empty"),
        (lambda sound: b"<html>404</html>", "gzip"),
        (lambda sound: b"\x1f\x8b garbage", ""),
        (lambda sound: sound[: len(sound) // 6], "ended before the end"),
        (lambda sound: sound[:-8] + bytes([sound[-8] ^ 1]) + sound[-7:], "CRC"),  # the checksum of all before it
    ],
)
def test_a_damaged_archive_is_refused(tmp_path, archive, damage, reason):
    path = tmp_path / archive.name
    path.write_bytes(damage(archive.read_bytes()))
    assert reason in refusal_of("cifar10", path)


def test_links_in_an_archive_are_ignored(tmp_path, pickled, write_archive):
    outside = tmp_path / "outside"
    outside.write_bytes(pickled["test_batch"])
    members = dict(pickled)
    for name, kind in (("test_batch", tarfile.SYMTYPE), ("data_batch_1", tarfile.LNKTYPE)):
        members[name] = tarfile.TarInfo(f"cifar-10-batches-py/{name}")
        members[name].type, members[name].linkname = kind, str(outside)
    path = write_archive(tmp_path / "cifar-10-python.tar.gz", members)
    assert "it lacks data_batch_1, test_batch" in refusal_of("cifar10", path)
    assert sorted(tmp_path.iterdir()) == [path, outside]


def test_member_too_large_to_be_a_batch_is_not_read_into_memory(tmp_path):
    with open(tmp_path / "data_batch_1", "wb") as file:
        file.truncate(2**31)  # sparse: takes no room on the disk
    assert "data_batch_1 has 2,147,483,648 bytes" in refusal_of("cifar10", tmp_path)


class Malicious:
    def __init__(self, function, *arguments):
        self.call = function, arguments

    def __reduce__(self):
        return self.call


@pytest.mark.parametrize("protocol", [0, 4])
@pytest.mark.parametrize("function", [os.system, exec, getattr, np.load, io.open])
def test_malicious_pickle_does_not_run(folder, tmp_path, tmp_path_factory, function, protocol):
    witness = tmp_path_factory.mktemp("witness") / "ran"
    command = f"touch {witness}" if function is os.system else f"open({str(witness)!r}, 'w')"
    attack = pickle.dumps({b"data": Malicious(function, command)}, protocol)
    told = refusal_of("cifar10", copy_with_changes(folder, tmp_path, {"data_batch_1": attack}))
    assert not witness.exists()
    if function is os.system:
        assert "data_batch_1: its pickle imports posix.system, which plain data does not need" in told


def test_array_whose_state_refers_to_itself_is_refused():
    itself = b"\x80\x02cnumpy.core.multiarray\n_reconstruct\n(tRq\x00(K\x01K\x01h\x00\x89U\x01at" + b"b."
    with pytest.raises(ValueError, match="malformed array"):
        load_plain(itself).to_numpy()


@pytest.mark.slow
@pytest.mark.skipif(not REAL.is_file(), reason=f"no real CIFAR-10 at {REAL}")
def test_real_archive_has_the_published_statistics(monkeypatch):
    monkeypatch.setattr(cifar.Cifar10, "batches", OFFICIAL)
    found = CIFAR10.read(REAL, None)
    train_images, train_labels, test_images, test_labels = arrays_of(found)
    assert found.spec.classes == cifar.CLASSES
    assert np.bincount(train_labels).tolist() == [5_000] * 10
    assert np.bincount(test_labels).tolist() == [1_000] * 10
    sample = train_images[::5] / np.float32(255)
    assert np.abs(sample.mean((0, 1, 2)) - [0.4914, 0.4822, 0.4465]).max() < 0.005
    assert np.abs(sample.std((0, 1, 2)) - [0.2470, 0.2435, 0.2616]).max() < 0.005
    neighbours = np.abs(np.diff(test_images[:500].astype(int), axis=2)).mean()
    assert neighbours < 15, "pixels beside each other are alike only when the layout is read right"
