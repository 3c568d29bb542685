"""CIFAR-10 of a hundredth of its images and made-up contents, pickled as Python 2 did for the official archive."""

import io
import pickle
import shutil
import struct
import tarfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from ps_cluster.data.sets import cifar
from tests.helpers.data import CIFAR_ROWS

BATCHES = (*(f"data_batch_{number}" for number in range(1, 6)), "test_batch")


class _Python2Pickler(pickle._Pickler):
    """Writes bytes as the `str` of Python 2; the pure-Python pickler is the one that can be extended."""

    dispatch = dict(pickle._Pickler.dispatch)

    def save_bytes(self, content):
        if len(content) < 256:
            self.write(pickle.SHORT_BINSTRING + bytes([len(content)]) + content)
        else:
            self.write(pickle.BINSTRING + struct.pack("<i", len(content)) + content)
        self.memoize(content)

    dispatch[bytes] = save_bytes


@pytest.fixture(scope="module")
def small_cifar():
    """The CIFAR sets have `CIFAR_ROWS` images where they have 10,000."""
    with pytest.MonkeyPatch.context() as patch:
        for kind in (cifar.Cifar10, cifar.Cifar100):
            small = tuple(batch._replace(rows=batch.rows * CIFAR_ROWS // 10_000) for batch in kind.batches)
            patch.setattr(kind, "batches", small)
        yield


@pytest.fixture(scope="session")
def python2_pickle():
    """Pickle with protocol 2 as Python 2 and numpy 1 do."""

    def dumps(content) -> bytes:
        stream = io.BytesIO()
        _Python2Pickler(stream, protocol=2).dump(content)
        return stream.getvalue().replace(b"numpy._core.multiarray", b"numpy.core.multiarray")

    return dumps


@pytest.fixture(scope="session")
def contents() -> dict[str, dict]:
    """What the six batches hold: a row of pixels is its own start value plus 7 for each position."""
    made = {}
    for number, name in enumerate(BATCHES):
        rng = np.random.default_rng(number)
        start = rng.integers(0, 256, (CIFAR_ROWS, 1), np.uint8)
        made[name] = {
            b"batch_label": f"batch {number}".encode(),
            b"labels": rng.permutation(np.arange(CIFAR_ROWS) % 10).tolist(),
            b"data": start + (7 * np.arange(3072)).astype(np.uint8),
            b"filenames": [b"image_%d.png" % index for index in range(CIFAR_ROWS)],
        }
    return made


@pytest.fixture(scope="session")
def pickled(contents, python2_pickle) -> dict[str, bytes]:
    """The files of the folder cifar-10-batches-py, in another order than that of their numbers."""
    numbers = (4, None, 3, 2, 5, 1)
    order = ["batches.meta", *(f"data_batch_{number}" if number else "test_batch" for number in numbers)]
    names = b"airplane automobile bird cat deer dog frog horse ship truck".split()
    meta = {"batches.meta": {b"num_cases_per_batch": 10_000, b"label_names": names, b"num_vis": 3072}}
    return {name: python2_pickle((contents | meta)[name]) for name in order}


@pytest.fixture(scope="session")
def write_archive():
    """write_archive(path, {name: bytes or a TarInfo}) packs a .tar.gz."""

    def write(path: Path, members: dict) -> Path:
        with tarfile.open(path, "w:gz", compresslevel=1) as archive:
            for name, content in members.items():
                if isinstance(content, tarfile.TarInfo):
                    archive.addfile(content)
                    continue
                member = tarfile.TarInfo(f"cifar-10-batches-py/{name}")
                member.size = len(content)
                archive.addfile(member, io.BytesIO(content))
        return path

    return write


@pytest.fixture(scope="session")
def archive(tmp_path_factory, pickled, write_archive) -> Path:
    """A sound cifar-10-python.tar.gz."""
    return write_archive(tmp_path_factory.mktemp("archive") / "cifar-10-python.tar.gz", pickled)


@pytest.fixture(scope="session")
def folder(tmp_path_factory, pickled) -> Iterator[Path]:
    """A sound folder cifar-10-batches-py; removed at the end, because pytest keeps what three sessions leave."""
    path = tmp_path_factory.mktemp("folder") / "cifar-10-batches-py"
    path.mkdir()
    for name, content in pickled.items():
        (path / name).write_bytes(content)
    yield path
    shutil.rmtree(path)
