import io
import os
import pickle
import tarfile
from pathlib import Path

import numpy as np
import pytest

from ps_cluster.config.datasets import DATASETS, NotThisDataSet
from ps_cluster.data import sets
from ps_cluster.data.archives import PickledArray, load_plain
from tests.helpers.data import CIFAR_ROWS, arrays_of

pytestmark = pytest.mark.usefixtures("small_cifar")
OFFICIAL = sets.Cifar10.batches
CIFAR10 = DATASETS["cifar10"]
PROJECT = Path(__file__).parents[2]
REAL = Path(os.environ.get("PS_CLUSTER_TEST_DATA", PROJECT.parent / "shared" / "data")) / "cifar-10-python.tar.gz"


def assert_one_line_about(error: pytest.ExceptionInfo, *parts: str):
    message = str(error.value)
    assert "\n" not in message
    for part in parts:
        assert part in message


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


@pytest.fixture
def broken_folder(tmp_path, folder):
    """broken_folder(name=bytes or None) is the sound folder with one file replaced or missing."""

    def make(**changes: bytes | None) -> Path:
        for file in folder.iterdir():
            content = changes.get(file.name, file)
            if content is file:
                os.link(file, tmp_path / file.name)
            elif content is not None:
                (tmp_path / file.name).write_bytes(content)
        return tmp_path

    yield make
    for file in tmp_path.iterdir():
        file.unlink()


def test_archive_is_read_in_the_order_of_the_batch_numbers(archive, contents):
    found = CIFAR10.read(archive, None)
    assert_is(found, contents)
    assert found.spec == sets.SPEC


def test_folder_without_class_names_gets_the_usual_ones(broken_folder, contents):
    found = CIFAR10.read(broken_folder(**{"batches.meta": None}), None)
    assert_is(found, contents)
    assert found.spec.classes == sets.CLASSES


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
    return pickle.dumps(
        {"data": np.zeros((CIFAR_ROWS, 3072), np.uint8), "labels": [0] * CIFAR_ROWS} | changes, protocol=2
    )


BROKEN_BATCHES = {
    "empty": (lambda: b"", "damaged pickle"),
    "not a pickle": (lambda: b"<html>404</html>", "data_batch_1: damaged pickle"),
    "truncated": (lambda: batch()[:200_000], "data_batch_1: damaged pickle"),
    "not a dictionary": (lambda: pickle.dumps([1]), "no dictionary"),
    "keys that are no text": (lambda: pickle.dumps({(1, 2): 3}), "a name is tuple"),
    "no images": (lambda: pickle.dumps({b"labels": []}), "no array 'data'"),
    "too few images": (lambda: pickle.dumps({b"data": np.zeros((CIFAR_ROWS - 1, 3072), np.uint8)}), "uint8 [99, 3072]"),
    "images in another shape": (lambda: pickle.dumps({b"data": np.zeros((CIFAR_ROWS, 32), np.uint8)}), "[100, 32]"),
    "floating-point images": (lambda: pickle.dumps({b"data": np.zeros((1, 3072), np.float32)}), "type 'f4'"),
    "wide images": (lambda: pickle.dumps({b"data": np.zeros((1, 3072), np.int64)}), "int64 [1, 3072]"),
    "objects for images": (lambda: pickle.dumps({b"data": np.array([None])}), "type 'O8'"),
    "no labels": (lambda: pickle.dumps({b"data": np.zeros((CIFAR_ROWS, 3072), np.uint8)}), "no 100 'labels'"),
    "a label too many": (lambda: batch(labels=[0] * 101), "no 100 'labels'"),
    "a label out of range": (lambda: batch(labels=[0] * 99 + [10]), "from 0 to 9"),
    "a negative label": (lambda: batch(labels=[-1] * CIFAR_ROWS), "from 0 to 9"),
    "labels as text": (lambda: batch(labels=["0"] * CIFAR_ROWS), "from 0 to 9"),
}


@pytest.mark.parametrize("what", BROKEN_BATCHES)
def test_broken_batch_is_refused_with_one_clear_line(broken_folder, what):
    make, reason = BROKEN_BATCHES[what]
    place = broken_folder(data_batch_1=make())
    with pytest.raises(NotThisDataSet) as error:
        CIFAR10.read(place, None)
    assert_one_line_about(error, str(place), reason)


def test_missing_batch_is_named(broken_folder):
    place = broken_folder(data_batch_2=None, test_batch=None)
    with pytest.raises(NotThisDataSet) as error:
        CIFAR10.read(place, None)
    assert_one_line_about(error, str(place), "it lacks data_batch_2, test_batch")


def test_wrong_class_names_are_refused(broken_folder):
    place = broken_folder(**{"batches.meta": pickle.dumps({"label_names": ["cat"]})})
    with pytest.raises(NotThisDataSet) as error:
        CIFAR10.read(place, None)
    assert_one_line_about(error, "batches.meta has no 10 'label_names'")


@pytest.mark.parametrize(
    ("content", "reason"),
    [(b"", "empty file"), (b"<html>404</html>", "gzip"), (b"\x1f\x8b garbage", ""), (b"PK\x03\x04", "gzip")],
)
def test_file_that_is_no_archive_is_refused(tmp_path, content, reason):
    path = tmp_path / "cifar-10-python.tar.gz"
    path.write_bytes(content)
    with pytest.raises(NotThisDataSet) as error:
        CIFAR10.read(path, None)
    assert_one_line_about(error, str(path), reason)


def test_truncated_archive_is_refused(tmp_path, archive):
    path = tmp_path / archive.name
    path.write_bytes(archive.read_bytes()[: archive.stat().st_size // 6])
    with pytest.raises(NotThisDataSet) as error:
        CIFAR10.read(path, None)
    assert_one_line_about(error, str(path), "ended before the end")


def test_archive_with_a_wrong_checksum_at_its_end_is_refused(tmp_path, archive):
    content = bytearray(archive.read_bytes())
    content[-8] ^= 1  # the CRC of everything before it
    path = tmp_path / archive.name
    path.write_bytes(content)
    with pytest.raises(NotThisDataSet) as error:
        CIFAR10.read(path, None)
    assert_one_line_about(error, "CRC")


def test_links_in_an_archive_are_ignored(tmp_path, pickled, write_archive):
    outside = tmp_path / "outside"
    outside.write_bytes(pickled["test_batch"])
    members = dict(pickled)
    for name, kind in (("test_batch", tarfile.SYMTYPE), ("data_batch_1", tarfile.LNKTYPE)):
        members[name] = tarfile.TarInfo(f"cifar-10-batches-py/{name}")
        members[name].type, members[name].linkname = kind, str(outside)
    path = write_archive(tmp_path / "cifar-10-python.tar.gz", members)
    with pytest.raises(NotThisDataSet) as error:
        CIFAR10.read(path, None)
    assert_one_line_about(error, "it lacks data_batch_1, test_batch")
    assert sorted(tmp_path.iterdir()) == [path, outside]


def test_member_too_large_to_be_a_batch_is_not_read_into_memory(tmp_path):
    path = tmp_path / "data_batch_1"
    with open(path, "wb") as file:
        file.truncate(2**31)  # sparse: takes no room on the disk
    with pytest.raises(NotThisDataSet) as error:
        CIFAR10.read(tmp_path, None)
    assert_one_line_about(error, "data_batch_1 has 2147483648 bytes")


class Malicious:
    def __init__(self, function, *arguments):
        self.call = function, arguments

    def __reduce__(self):
        return self.call


@pytest.mark.parametrize("protocol", [0, 2, 4])
@pytest.mark.parametrize("function", [os.system, exec, eval, getattr, np.load, np.dtype, io.open])
def test_malicious_pickle_does_not_run(broken_folder, tmp_path_factory, function, protocol):
    witness = tmp_path_factory.mktemp("witness") / "ran"
    command = f"touch {witness}" if function is os.system else f"open({str(witness)!r}, 'w')"
    attack = pickle.dumps({b"data": Malicious(function, command)}, protocol)
    place = broken_folder(data_batch_1=attack)
    with pytest.raises(NotThisDataSet) as error:
        CIFAR10.read(place, None)
    assert_one_line_about(error, str(place))
    assert not witness.exists()


def test_pickle_that_asks_for_code_is_named_as_such(broken_folder):
    place = broken_folder(data_batch_1=pickle.dumps(Malicious(os.system, "true")))
    with pytest.raises(NotThisDataSet) as error:
        CIFAR10.read(place, None)
    assert_one_line_about(error, "data_batch_1: its pickle asks for posix.system, which data does not need")


def test_array_whose_state_refers_to_itself_is_refused():
    itself = b"\x80\x02cnumpy.core.multiarray\n_reconstruct\n(tRq\x00(K\x01K\x01h\x00\x89U\x01at" + b"b."
    with pytest.raises(ValueError, match="malformed array"):
        load_plain(itself).to_numpy()


@pytest.mark.slow
@pytest.mark.skipif(not REAL.is_file(), reason=f"no real CIFAR-10 at {REAL}")
def test_real_archive_has_the_published_statistics(monkeypatch):
    monkeypatch.setattr(sets.Cifar10, "batches", OFFICIAL)
    found = CIFAR10.read(REAL, None)
    train_images, train_labels, test_images, test_labels = arrays_of(found)
    assert found.spec.classes == sets.CLASSES
    assert np.bincount(train_labels).tolist() == [5_000] * 10
    assert np.bincount(test_labels).tolist() == [1_000] * 10
    sample = train_images[::5] / np.float32(255)
    assert np.abs(sample.mean((0, 1, 2)) - [0.4914, 0.4822, 0.4465]).max() < 0.005
    assert np.abs(sample.std((0, 1, 2)) - [0.2470, 0.2435, 0.2616]).max() < 0.005
    neighbours = np.abs(np.diff(test_images[:500].astype(int), axis=2)).mean()
    assert neighbours < 15, "pixels beside each other are alike only when the layout is read right"
