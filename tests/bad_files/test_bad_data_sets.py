"""Data sets that were made to do harm: pickles, archives and manifests of packed copies."""

import gzip
import os
import pickle
import struct
import tarfile

import pytest

from tests.bad_files.damage import DATA, assert_told_in_one_line, changed, huge, parametrized, pipe
from tests.bad_files.run_files import batch, member, tar_of


def data_folder(content, name="data_batch_1"):
    def change(run):
        (run / "cifar").mkdir()
        (run / "cifar" / name).write_bytes(content() if callable(content) else content)

    return change


def archive(content, zeros_behind=0):
    """The archive holds this tar, compressed, and so many MiB of zeros behind it."""

    def change(run):
        (run / "cifar").mkdir()
        packed = gzip.compress(content() if callable(content) else content)
        (run / "cifar/cifar-10-python.tar.gz").write_bytes(packed + zeros(zeros_behind))

    return change


def bomb(run):
    """20 GB of zeros, a thousand times smaller as they lie there."""
    (run / "cifar").mkdir()
    begin = gzip.compress(tar_of((member("filler", 2**33 - 1), b"")))
    (run / "cifar/cifar-10-python.tar.gz").write_bytes(begin + zeros(20 * 1024))


def zeros(mebibytes):
    """So many of them, compressed."""
    return gzip.compress(bytes(2**20)) * mebibytes


def manifest(**values):
    def change(run):
        changed("dataset.json", **values)(run / "packed")
        (run / "cifar").symlink_to(run / "packed")

    return change


def pickled(*parts):
    """A pickle of protocol 4 with these operations, then the end."""
    return data_folder(b"\x80\x04" + b"".join(parts) + b".")


def long_hash():
    """A tuple in a tuple in a tuple …, as a key: to look it up overflows the stack."""
    return b"\x80\x02}" + b")" + b"\x85" * 190_000 + b"K\x01s."


def copies():
    """One text that is made bytes of again and again."""
    given = b"c_codecs\nencode\nq\x00" + b"X" + struct.pack("<I", 2**20) + b"a" * 2**20 + b"q\x01X\x06\0\0\0latin1q\x02"
    return b"\x80\x02" + given + b"(" + b"h\x00h\x01h\x02\x86R" * 900 + b"l."


PACKED = [
    ("is of another set", manifest(name="imagenet"), "holds the data set 'imagenet'"),
    ("has 10^30 images", manifest(train_examples=10**30), "train_examples"),
    ("has rows of a terabyte", manifest(target={"dtype": "uint8", "shape": [2**40]}), "target.shape.0"),
    ("has a class that clears the terminal", manifest(classes=["\x1b[2J"]), "classes.0"),
    ("has a file of its own", manifest(bytes={"/etc/passwd": 1}), "sizes of the files"),
    ("is nested", lambda run: manifest()(run) or (run / "packed/dataset.json").write_text("[" * 10**5), "too deep"),
    ("has a pipe for images", lambda run: manifest()(run) or pipe("packed/train_image.uint8")(run), "a regular file"),
]
PICKLES = [
    ("LONG_BINPUT 2^31", pickled(b"}r" + struct.pack("<I", 2**31 - 1)), "memo"),
    ("PUT 10^9", pickled(b"}p1000000000\n"), "memo"),
    ("FRAME of 2^40", pickled(b"\x95" + struct.pack("<Q", 2**40), b"}"), "frame"),
    ("LONG4 of 2^31", pickled(b"\x8b" + struct.pack("<i", 2**31 - 1)), "damaged"),
    ("BINUNICODE8 of 2^60", pickled(b"\x8d" + struct.pack("<Q", 2**60)), "damaged"),
    ("a tuple in a tuple as a key", data_folder(long_hash), "tuples"),
    ("a million operations", pickled(b"N0" * 500_000 + b"}"), "operations"),
    ("one text a thousand times", data_folder(copies), "shorter than the bytes that it unpacks to"),
    ("a call", data_folder(pickle.dumps(os.getcwd)), "getcwd"),
    ("an array of 10 TB", data_folder(lambda: batch().replace(struct.pack("<H", 10_000), b"\xff\xff")), "data"),
    ("a file of 10 GB", lambda run: huge("cifar/data_batch_1")(run), "bytes"),
]
TARS = [
    ("a long name of 8 GB", archive(tar_of((member("x", 2**33 - 1, tarfile.GNUTYPE_LONGNAME), b"a"))), "cut short"),
    ("fields of PAX of 8 GB", archive(tar_of((member("x", 2**33 - 1, tarfile.XHDTYPE), b"9 path=a\n"))), "cut short"),
    ("a sparse batch", archive(tar_of((member("data_batch_1", 512, tarfile.GNUTYPE_SPARSE), bytes(512)))),
     "lacks data_batch_1"),
    ("a batch of 5 GB", archive(tar_of((member("data_batch_1", 5 * 10**9), b""))), "5,000,000,000 bytes"),
    ("a batch below 0", archive(tar_of((member("data_batch_1", -512), b""))), "-512 bytes"),
    ("5,000 members", archive(lambda: tar_of((member("x", 0), b"")) * 5000), "members"),
    ("10 GB of nothing", lambda run: huge("cifar/cifar-10-python.tar.gz")(run), "not CIFAR-10"),
]  # fmt: skip
LARGE_TARS = [
    ("a long name of 450 MB", archive(tar_of((member("x", 450 * 2**20, tarfile.GNUTYPE_LONGNAME), b"")), zeros_behind=450),
     "lacks data_batch_1"),
    ("fields of PAX of 450 MB", archive(tar_of((member("x", 450 * 2**20, tarfile.XGLTYPE), b"")), zeros_behind=450),
     "lacks data_batch_1"),
    ("20 GB of zeros", bomb, "decompressed"),
]  # fmt: skip
CASES = [
    *((f"the manifest {what}", DATA, damage, says) for what, damage, says in PACKED),
    *((f"a pickle: {what}", DATA, damage, says) for what, damage, says in PICKLES),
    *((f"a tar: {what}", DATA, damage, says) for what, damage, says in TARS),
]


@parametrized(CASES)
def test_a_bad_data_set_is_told_in_one_line_and_takes_little_memory_and_time(place, command, damage, says):
    damage(place / "run")
    assert_told_in_one_line(place, command, says)


@pytest.mark.slow
@parametrized([(f"a tar: {what}", DATA, damage, says) for what, damage, says in LARGE_TARS])
def test_of_a_bad_data_set_that_is_unpacked_little_is_kept(place, command, damage, says):
    damage(place / "run")
    assert_told_in_one_line(place, command, says)
