"""CIFAR-100 in its official format, with made-up contents; what both CIFAR sets share is in test_cifar10.py."""

import numpy as np
import pytest

from ps_cluster.config.datasets import DATASETS
from ps_cluster.data.plain_pickles import load_plain
from tests.helpers.data import CIFAR_ROWS, arrays_of

pytestmark = pytest.mark.usefixtures("small_cifar")
ROWS = {"train": 5 * CIFAR_ROWS, "test": CIFAR_ROWS}
FINE = [b"fine %d" % label for label in range(100)]
COARSE = [b"coarse %d" % label for label in range(20)]


def lists(rows: int) -> dict:
    fine = np.arange(rows) * 7 % 100
    return {
        b"filenames": [b"a_%d.png" % row for row in range(rows)],
        b"batch_label": b"all of it",
        b"fine_labels": fine.tolist(),
        b"coarse_labels": (fine // 5).tolist(),
    }


def batch(rows: int) -> dict:
    start = (np.arange(rows) % 251).astype(np.uint8)[:, None]
    return lists(rows) | {b"data": start + np.arange(3072).astype(np.uint8)}


@pytest.fixture(scope="module")
def files(python2_pickle):
    """name → content of the files of the folder cifar-100-python."""
    meta = {b"fine_label_names": FINE, b"coarse_label_names": COARSE}
    contents = {"meta": meta, "test": batch(ROWS["test"]), "train": batch(ROWS["train"])}
    return {name: python2_pickle(content) for name, content in contents.items()}


@pytest.fixture(scope="module")
def archive(files, tmp_path_factory, write_archive):
    return write_archive(tmp_path_factory.mktemp("cifar100") / "cifar-100-python.tar.gz", files)


@pytest.mark.parametrize(("name", "divisor", "names"), [("cifar100", 1, FINE), ("cifar100_coarse", 5, COARSE)])
def test_the_archive_is_read_with_either_labels_and_their_names(archive, name, divisor, names):
    kind = DATASETS[name]
    assert list(kind.candidates(archive.parent)) == [archive]
    found = kind.read(archive, None)
    assert found.spec.classes == tuple(text.decode() for text in names)
    for images, labels, rows in zip(*[iter(arrays_of(found))] * 2, ROWS.values(), strict=True):
        assert images.shape == (rows, 32, 32, 3) and labels.dtype == np.uint8
        assert (labels == np.arange(rows) * 7 % 100 // divisor).all()
        stored = batch(rows)[b"data"]
        assert (images[:, 5, 9, 2] == stored[:, 2 * 1024 + 5 * 32 + 9]).all()


def test_the_folder_is_found_where_keras_unpacks_it(files, tmp_path):
    folder = tmp_path / "cifar-100-python-target" / "cifar-100-python"
    folder.mkdir(parents=True)
    for name, content in files.items():
        (folder / name).write_bytes(content)
    assert [path.resolve() for path in DATASETS["cifar100"].candidates(tmp_path)] == [folder]
    assert DATASETS["cifar100"].read(folder, None).spec.classes[99] == "fine 99"


def test_the_lists_of_the_official_training_file_have_no_more_operations_than_are_read(python2_pickle):
    assert len(load_plain(python2_pickle(lists(50_000)))) == 4
