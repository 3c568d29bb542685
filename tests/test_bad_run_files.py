"""Files that somebody damaged or made to do harm: one line and exit code 2, in bounded memory and time, and no trace of it."""

import bz2
import contextlib
import gzip
import json
import os
import pickle
import shutil
import struct
import tarfile
import time
import unicodedata
import zipfile
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from cli import cli
from ps_cluster.cluster import start
from ps_cluster.evaluation import evaluator
from tests.helpers.run_files import (
    META,
    SCORE,
    STEP_NAME,
    STEPS,
    STEPS_STATE,
    SUMMARY,
    TALLY,
    TIMES,
    arrays,
    batch,
    counts,
    csv,
    ledger,
    member,
    members,
    npy,
    npy_header,
    tar_of,
    write_run,
    zipped,
)  # fmt: skip

MOST_BYTES, MOST_SECONDS, MOST_CHARACTERS = 400 * 2**20, 15.0, 2000
GIB = 2**30

RESUME, EVALUATE = "run --resume RUN", "evaluate --once --checkpoint-dir RUN"
COMPARE, CALIBRATE, CHECK = "compare RUN --output out", "simulate --workers 1 --ps 1 --from RUN", "simulate --check RUN"
DATA = "data --dataset cifar10 --data-dir DATA"


def text(name, content):
    """That file holds `content`."""
    return lambda run: (run / name).write_text(content)


def changed(name, /, **values):
    """Keys of a JSON file are other ones; None takes them away."""

    def change(run):
        content = json.loads((run / name).read_text()) | values
        (run / name).write_text(json.dumps({key: value for key, value in content.items() if value is not None}))

    return change


def summary(**values):
    return changed("summary.json", **values)


def checkpoint(content):
    """The only checkpoint is just these bytes."""
    return lambda run: (run / STEP_NAME).write_bytes(content() if callable(content) else content)


def header(**values):
    """The checkpoint's header says something else."""
    return checkpoint(lambda: zipped(members(header=values)))


def meta(**values):
    return header(meta=META | values)


def progress(**values):
    return meta(progress=META["progress"] | values)


def array(**replaced):
    return checkpoint(lambda: zipped(members(**replaced)))


def ledger_with(**columns):
    """updates.csv has other values in its last row."""

    def change(run):
        rows = ledger()
        for name, value in columns.items():
            rows[name][-1] = value
        (run / "metrics/updates.csv").write_text(csv(rows))

    return change


def huge(name, size=10 * GIB):
    """The file is as large as that, without taking any room."""

    def change(run):
        (run / name).parent.mkdir(parents=True, exist_ok=True)
        with (run / name).open("wb") as file:
            file.truncate(size)

    return change


def pipe(name):
    def change(run):
        (run / name).unlink(missing_ok=True)
        os.mkfifo(run / name)

    return change


def folder(name):
    def change(run):
        (run / name).unlink()
        (run / name).mkdir()

    return change


def gone(name):
    return lambda run: (run / name).unlink()


def twice():
    """Two members of one name: the first is the one that is checked, and the other is the one that is used."""
    content = zipped(members() | {"weightz.npy": npy(np.zeros([122_570], np.float32))})
    return content.replace(b"weightz.npy", b"weights.npy")


def huge_checkpoint(run):
    """Says that its weights have 10 GB, which the file has, too."""
    declared = npy_header("{'descr': '<f4', 'fortran_order': False, 'shape': (2684354560,), }\n")
    huge(STEP_NAME)(run)
    with (run / STEP_NAME).open("r+b") as file:
        file.write(declared)
        file.seek(0, os.SEEK_END)
        file.write(zipped(members())[-200:])


def declared_size(size):
    """The directory of the zip says that a member has so many bytes."""
    content = bytearray(zipped(members()))
    place = content.rfind(b"PK\1\2")
    content[place + 20 : place + 28] = struct.pack("<2L", size, size)
    return bytes(content)


def zip64_directory(size):
    """A directory of zip64 that says it has `size` bytes."""
    content = zipped(members())
    place = len(content) - 22
    record = struct.pack("<4sQ2H2L4Q", b"PK\6\6", 44, 45, 45, 0, 0, 6, 6, size, 0)
    return content[:place] + record + struct.pack("<4sLQL", b"PK\6\7", 0, place, 1) + content[place:]


def data_folder(content, name="data_batch_1"):
    def change(run):
        (run / "cifar").mkdir()
        (run / "cifar" / name).write_bytes(content() if callable(content) else content)

    return change


def archive(content, pack=gzip.compress, zeros_behind=0):
    """The archive holds this tar, compressed, and so many MiB of zeros behind it."""

    def change(run):
        (run / "cifar").mkdir()
        packed = pack(content() if callable(content) else content)
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


JSON_BOMBS = [
    ("is cut short", '{"outcome": "comp', "not JSON"),
    ("is empty", "", "not JSON"),
    ("is a list", "[]", "dictionary"),
    ("is nested 100,000 deep", '{"outcome": ' + "[" * 100_000 + "]" * 100_000 + "}", "too deep"),
    ("has a number of a million digits", '{"schema": ' + "9" * 10**6 + "}", "1,000,000 digits"),
    ("has a key twice", '{"outcome": "completed", "outcome": "failed"}', "twice"),
    ("has NaN", '{"outcome": "completed", "train_seconds": NaN}', "NaN"),
    ("is no text", "\udcff\udcfe", ""),
]
COMMON = [
    (f"summary.json {what}", COMPARE, lambda run, c=content: (run / "summary.json").write_bytes(os.fsencode(c)), says)
    for what, content, says in JSON_BOMBS
]
SUMMARIES = [
    ("summary.json is a pipe", COMPARE, pipe("summary.json"), "no regular file"),
    ("summary.json is a folder", COMPARE, folder("summary.json"), "directory"),
    ("summary.json has 10 GB", COMPARE, huge("summary.json"), "bytes"),
    ("its outcome is a list", COMPARE, summary(outcome=["completed"]), "outcome"),
    ("its outcome is a terminal's escape", COMPARE, summary(outcome="\x1b[2J\x1b]0;owned\x07"), "outcome"),
    ("its outcome has a megabyte", COMPARE, summary(outcome="x" * 2**20), "outcome"),
    ("its workers are a number", COMPARE, summary(workers=3), "workers"),
    ("a worker has no index", COMPARE, summary(workers=[{"pid": 1, "updates": 1, "examples": 1}]), "workers.0.index"),
    ("a worker's images are below 0", COMPARE, summary(workers=[{"index": 0, "pid": 1, "updates": 1, "examples": -5}]),
     "workers.0.examples"),
    ("its accuracy is a text", COMPARE, summary(evaluation={"history": [SCORE | {"test_accuracy": "0.5"}]}), "test_accuracy"),
    ("its accuracy is true", COMPARE, summary(evaluation={"history": [SCORE | {"test_accuracy": True}]}), "test_accuracy"),
    ("its accuracy is 7", COMPARE, summary(evaluation={"history": [SCORE | {"test_accuracy": 7}]}), "test_accuracy"),
    ("a score has no time", COMPARE, summary(evaluation={"history": [SCORE | {"train_seconds": None}]}), "train_seconds"),
    ("its seconds are 1e999", COMPARE, lambda run: text("summary.json", json.dumps(SUMMARY).replace(
        '"train_seconds": 6.0, "cpu', '"train_seconds": 1e999, "cpu'))(run), "train_seconds"),
    ("its staleness is of a word", COMPARE, summary(staleness={"histogram": {"two": 1}}), "histogram"),
    ("its machine is a list", COMPARE, summary(machine=[1]), "machine"),
    ("its updates are a text", COMPARE, summary(updates="80"), "updates"),
    ("its model is none", COMPARE, summary(model=None), "model"),
    ("nothing was trained", COMPARE, summary(train_seconds=0.0), "0.0 seconds"),
    ("its processes are a text", CALIBRATE, summary(processes="none"), "processes"),
    ("a process's time is a text", CALIBRATE,
     summary(processes=[{"type": "ps", "index": 0, "pid": 1, "cpu_seconds": "9"}]), "cpu_seconds"),
    ("parameters below 0", CALIBRATE, summary(parameter_servers=[{"index": 0, "parameters": -1}]), "parameters"),
    ("no parameter server", CALIBRATE, summary(parameter_servers=[]), "parameter_servers"),
    ("its time is below 0", CALIBRATE, summary(train_seconds=-1.0), "train_seconds"),
    ("its rate is a text", CHECK, summary(examples_per_second="fast"), "examples_per_second"),
    ("its summary is cut short", CHECK, text("summary.json", "{"), "not JSON"),
    ("its summary is gone", CHECK, gone("summary.json"), "summary.json"),
]  # fmt: skip
TABLES = [
    ("updates.csv has other columns", COMPARE, text("metrics/updates.csv", "step,colour\n1,2\n"), "other columns"),
    ("updates.csv has words", COMPARE, text("metrics/updates.csv", csv(ledger()) + "one,two\n"), "updates.csv"),
    ("updates.csv is cut short", COMPARE, text("metrics/updates.csv", csv(ledger())[:-40]), "cut short"),
    ("updates.csv has a line of a gigabyte", COMPARE, huge("metrics/updates.csv", GIB), "other columns"),
    ("updates.csv is a pipe", COMPARE, pipe("metrics/updates.csv"), "no regular file"),
    ("a worker's index is huge", COMPARE, ledger_with(worker=1e15), "worker"),
    ("a worker's index is none", COMPARE, ledger_with(worker=np.nan), "worker"),
    ("a staleness is below 0", COMPARE, ledger_with(staleness=-3), "staleness"),
    ("a step is a half", COMPARE, ledger_with(step=0.5), "step"),
    ("a time is infinite", CALIBRATE, ledger_with(applied_time=np.inf), "applied_time"),
    ("updates.csv is a folder", CALIBRATE, folder("metrics/updates.csv"), "directory"),
    ("updates.csv is gone", CHECK, gone("metrics/updates.csv"), "updates.csv"),
    ("updates.csv is no text", CHECK,
     lambda run: (run / "metrics/updates.csv").write_bytes(b"\xff\xfe"), "updates.csv"),
]  # fmt: skip
CONFIGS = [
    (f"config.yaml {what}", command, text("config.yaml", content), says)
    for command in (RESUME, EVALUATE, COMPARE, CALIBRATE)
    for what, content, says in (
        ("is no YAML", "cluster: [1, 2\n", "not YAML"),
        ("has a wrong type", "cluster: {workers: many}\n", "cluster.workers"),
    )
]
CHECKPOINTS = [
    ("is empty", checkpoint(b""), "end is not that of a zip"),
    ("is text", checkpoint(b"a text of some length that is no zip"), "end is not that of a zip"),
    ("is cut short", checkpoint(lambda: zipped(members())[:-100]), "end is not that of a zip"),
    ("is a pipe", pipe(STEP_NAME), "no regular file"),
    ("has a wrong byte", checkpoint(lambda: zipped(members()).replace(b"\0" * 64, b"\1" * 64, 1)), "CRC"),
    ("has 10 GB", huge(STEP_NAME), "bytes"),
    ("has 10 GB of weights", huge_checkpoint, "bytes"),
    ("has 3 GB of weights that nothing fits", huge(STEP_NAME, 3 * GIB), "end is not that of a zip"),
    ("says that a member has 4 GB", checkpoint(lambda: declared_size(2**32 - 2)), "damaged"),
    ("has a directory of 1 TB", checkpoint(lambda: zip64_directory(2**40)), "another kind"),
    ("is deflated", checkpoint(lambda: zipped(members(weights=npy(np.zeros(10**7, np.float32))), zipfile.ZIP_DEFLATED)),
     "compressed"),
    ("is packed by bzip2", checkpoint(lambda: zipped(members(), zipfile.ZIP_BZIP2)), "compressed"),
    ("is packed by LZMA", checkpoint(lambda: zipped(members(), zipfile.ZIP_LZMA)), "compressed"),
    ("has a member twice", checkpoint(twice), "two members of one name"),
    ("has 5,000 members", checkpoint(lambda: zipped(members() | {f"m{n}.npy": b"" for n in range(5000)})), "5,006 members"),
    ("has no header", checkpoint(lambda: zipped({"weights.npy": b""})), "no header"),
    ("has a header of 40 MB", checkpoint(lambda: zipped({"header": b" " * 40_000_000})), "bytes"),
    ("has a header that is no JSON", checkpoint(lambda: zipped({"header": b"{"})), "not JSON"),
    ("has a deep header", checkpoint(lambda: zipped({"header": b"[" * 10**6})), "too deep"),
    ("has a header that is a list", checkpoint(lambda: zipped({"header": b"[]"})), "dictionary"),
    ("is of a step below 0", header(step=-1), "step"),
    ("is of step true", header(step=True), "step"),
    ("is of a step of 10^30", header(step=10**30), "step"),
    ("names no arrays", header(arrays="weights"), "arrays"),
    ("names an array that is not there", header(arrays=[*arrays(), "colour"]), "no array 'colour'"),
    ("names an array outside", header(arrays=["../../etc/passwd"]), "arrays.0"),
    ("names an array by an escape", header(arrays=["\x1b[2J"]), "arrays.0"),
    ("has a meta that is a text", header(meta="none"), "meta"),
    ("has infinite seconds", meta(train_seconds=1e300), "train_seconds"),
    ("has images below 0", meta(examples=-1), "examples"),
    ("has weights of objects", array(weights=npy(np.array([{}]))), "object"),
    ("has weights of texts", array(weights=npy(np.array(["a" * 1000]))), "which it never is"),
    ("has weights of 64 bits", array(weights=np.zeros(10)), "'weights' is float64"),
    ("has weights in two axes", array(weights=np.zeros([2, 5], np.float32)), "'weights' is float32"),
    ("has an array of 10 GB in 40 bytes",
     array(weights=npy_header("{'descr': '<f4', 'fortran_order': False, 'shape': (2684354560,), }\n") + bytes(40)), "40 bytes"),
    ("has an array of a shape below 0",
     array(weights=npy_header("{'descr': '<f4', 'fortran_order': False, 'shape': (-1, -10), }\n") + bytes(40)), "40 bytes"),
    ("has an array whose header has 4 GB", array(weights=b"\x93NUMPY\x02\x00\xff\xff\xff\xff{"), "no header of an array"),
    ("has an array whose header is deep", array(weights=npy_header("(" * 5000 + ")" * 5000)), "no header of an array"),
    ("has an array whose header is code", array(weights=npy_header("__import__('os').abort()\n")), "no header of an array"),
    ("has an array of NaN axes", array(weights=npy_header("{'descr': '<f4', 'fortran_order': False, 'shape': nan}")),
     "no header of an array"),
]  # fmt: skip
UNREADABLE = [
    (f"the checkpoint {what}", command, damage, says)
    for number, (what, damage, says) in enumerate(CHECKPOINTS)
    for command in ((EVALUATE, RESUME) if number % 8 == 0 else (EVALUATE,))
]
RESUMED = [
    ("the checkpoint has no seconds", meta(times=None), "earlier version"),
    ("its updates are a text", progress(scheduled="60"), "progress.scheduled"),
    ("a step is a terabyte away", progress(scheduled=STEPS_STATE | {"beyond": [2**40]}), "out of reach"),
    ("its steps lie below what is done", progress(applied=STEPS_STATE | {"beyond": [-1]}), "progress.applied"),
    ("all lies far behind", progress(applied={"below": 2**45, "beyond": [], "count": 2**45}), "does not add up"),
    ("all is still to come", progress(applied={"below": 0, "beyond": [], "count": 0}, scheduled=STEPS_STATE | {"below": 2**45}),
     "does not add up"),
    ("its tally is of words", progress(tally=TALLY | {"staleness": {"0": "60"}}), "staleness"),
    ("its tally has 10^15 steps", progress(tally=TALLY | {"staleness": {"0": 10**15}}), "does not add up"),
    ("its workers are too short", progress(tally=TALLY | {"workers": [[0]]}), "workers"),
    ("its times are of two stories", meta(times=TIMES | {"last_update": None}), "first_update"),
    ("its counts are below 0", array(counts=-counts()), "does not add up"),
    ("its counts are of 3 things", array(counts=counts()[:, :3]), "earlier version"),
    ("its counts are of 2 slices", array(counts=np.repeat(counts(), 2, axis=0)), "does not add up"),
    ("its ledger waits for slice 9", array(waiting=np.full([1, arrays()["waiting"].shape[1]], 9.0)), "does not add up"),
    ("its configuration is a text", meta(config="none"), "config"),
    ("the journal is shorter", lambda run: os.truncate(run / "metrics/journal/slice-0.bin", 100), "holds 0 rows"),
    ("the journal is gone", gone("metrics/journal/slice-0.bin"), "holds 0 rows"),
]  # fmt: skip
MARKS = [
    ("ended.json is cut short", EVALUATE, text("checkpoints/ended.json", "{"), "ended.json"),
    ("ended.json is a list", EVALUATE, text("checkpoints/ended.json", "[1]"), "ended.json"),
    ("ended.json is of step true", EVALUATE, changed("checkpoints/ended.json", last_step=True), "last_step"),
    ("ended.json has an outcome of its own", EVALUATE, changed("checkpoints/ended.json", outcome="\x1b[2J"), "outcome"),
    ("ended.json is a pipe", EVALUATE, pipe("checkpoints/ended.json"), "no regular file"),
]
PACKED = [
    ("is of a later format", manifest(format=99), "format 99"),
    ("is of format true", manifest(format=True), "format"),
    ("is of another set", manifest(name="imagenet"), "name"),
    ("has a number of images in words", manifest(train_examples="20"), "train_examples"),
    ("has 10^30 images", manifest(train_examples=10**30), "train_examples"),
    ("has 10^9 images", manifest(train_examples=10**9), "bytes do not fit"),
    ("has no classes", manifest(classes=[]), "classes"),
    ("has a class that clears the terminal", manifest(classes=["\x1b[2J"]), "classes.0"),
    ("has a file of its own", manifest(bytes={"/etc/passwd": 1}), "bytes"),
    ("is nested", lambda run: manifest()(run) or (run / "packed/dataset.json").write_text("[" * 10**5), "too deep"),
    ("has a pipe for images", lambda run: manifest()(run) or pipe("packed/train_images.u8")(run), "no regular file"),
]
PICKLES = [
    ("LONG_BINPUT 2^31", pickled(b"}r" + struct.pack("<I", 2**31 - 1)), "memo"),
    ("PUT 10^9", pickled(b"}p1000000000\n"), "memo"),
    ("PUT of a million digits", pickled(b"}p" + b"9" * 10**6 + b"\n"), "damaged"),
    ("FRAME of 2^40", pickled(b"\x95" + struct.pack("<Q", 2**40), b"}"), "frame"),
    ("LONG4 of 2^31", pickled(b"\x8b" + struct.pack("<i", 2**31 - 1)), "damaged"),
    ("BINUNICODE8 of 2^60", pickled(b"\x8d" + struct.pack("<Q", 2**60)), "damaged"),
    ("BINBYTES8 of 10 GB", pickled(b"\x8e" + struct.pack("<Q", 10**10)), "damaged"),
    ("BYTEARRAY8 of 10 GB", pickled(b"\x96" + struct.pack("<Q", 10**10)), "damaged"),
    ("a tuple in a tuple as a key", data_folder(long_hash), "tuples"),
    ("a list in a list", pickled(b"]" * 90_000 + b"a" * 89_999), "no dictionary"),
    ("a million operations", pickled(b"N0" * 500_000 + b"}"), "operations"),
    ("one text a thousand times", data_folder(copies), "more bytes than it has itself"),
    ("a call", data_folder(pickle.dumps(os.getcwd)), "getcwd"),
    ("nothing", data_folder(b""), "damaged"),
    ("an array of 10 TB", data_folder(lambda: batch().replace(struct.pack("<H", 10_000), b"\xff\xff")), "data"),
    ("a file of 10 GB", lambda run: huge("cifar/data_batch_1")(run), "bytes"),
]
TARS = [
    ("a long name of 8 GB", archive(tar_of((member("x", 2**33 - 1, tarfile.GNUTYPE_LONGNAME), b"a"))), "cut short"),
    ("fields of PAX of 8 GB", archive(tar_of((member("x", 2**33 - 1, tarfile.XHDTYPE), b"9 path=a\n"))), "cut short"),
    ("a long name of 450 MB", archive(tar_of((member("x", 450 * 2**20, tarfile.GNUTYPE_LONGNAME), b"")), zeros_behind=450),
     "lacks data_batch_1"),
    ("fields of PAX of 450 MB", archive(tar_of((member("x", 450 * 2**20, tarfile.XGLTYPE), b"")), zeros_behind=450),
     "lacks data_batch_1"),
    ("a sparse batch", archive(tar_of((member("data_batch_1", 512, tarfile.GNUTYPE_SPARSE), bytes(512)))),
     "lacks data_batch_1"),
    ("a batch of 5 GB", archive(tar_of((member("data_batch_1", 5 * 10**9), b""))), "5000000000 bytes"),
    ("a batch below 0", archive(tar_of((member("data_batch_1", -512), b""))), "-512 bytes"),
    ("5,000 members", archive(lambda: tar_of((member("x", 0), b"")) * 5000), "members"),
    ("20 GB of zeros", bomb, "decompressed"),
    ("a link", archive(tar_of((member("data_batch_1", 0, tarfile.SYMTYPE), b""))), "lacks data_batch_1"),
    ("bzip2", archive(b"x" * 1000, bz2.compress), "gzip"),
    ("10 GB of nothing", lambda run: huge("cifar/cifar-10-python.tar.gz")(run), "not CIFAR-10"),
]  # fmt: skip
CASES = [
    *COMMON, *SUMMARIES, *TABLES, *CONFIGS, *UNREADABLE, *MARKS,
    *((what, RESUME, damage, says) for what, damage, says in RESUMED),
    *((f"the manifest {what}", DATA, damage, says) for what, damage, says in PACKED),
    *((f"a pickle: {what}", DATA, damage, says) for what, damage, says in PICKLES),
    *((f"a tar: {what}", DATA, damage, says) for what, damage, says in TARS),
]  # fmt: skip


@pytest.fixture(scope="module")
def sound(tmp_path_factory):
    """A folder with a run and the cache with its data."""
    root = tmp_path_factory.mktemp("sound")
    write_run(root / "run", root / "cache")
    return root


@pytest.fixture
def place(tmp_path, sound, monkeypatch):
    """A copy of it to damage, as the working directory; nothing is trained or scored in it."""
    shutil.copytree(sound / "run", tmp_path / "run")
    shutil.copytree(sound / "cache/synthetic-v1", tmp_path / "run/packed")
    monkeypatch.setenv("PS_CLUSTER_CACHE", str(sound / "cache"))
    monkeypatch.setenv("KERAS_HOME", str(tmp_path / "keras"))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(start, "run_local", lambda *_, **__: 0)
    monkeypatch.setattr(evaluator, "Scorer", NoScorer)
    monkeypatch.setattr(evaluator, "EvaluationWriter", NoWriter)
    yield tmp_path
    shutil.rmtree(tmp_path)


class NoScorer:
    test_examples = 20

    def __init__(self, *_):
        pass

    def score(self, checkpoint, *, augmented):
        from ps_cluster.evaluation.scorer import Score

        return Score(0.5, 1.0)

    def save_model(self, path):
        path.write_bytes(b"a model")


class NoWriter:
    def __init__(self, _):
        pass

    def write(self, row):
        pass

    def close(self):
        pass


def invoke(command: str, place: Path):
    words = command.replace("RUN", str(place / "run")).replace("DATA", str(place / "run/cifar")).split()
    return CliRunner().invoke(cli, words)


@pytest.mark.parametrize("command", [RESUME, EVALUATE, COMPARE, CALIBRATE])
def test_the_run_that_is_damaged_here_was_sound_before(place, command):
    result = invoke(command, place)
    assert result.exit_code == 0, result.output


@pytest.mark.parametrize(
    ("command", "damage", "says"),
    [case[1:] for case in CASES],
    ids=[f"{command.split()[0]}: {what}" for what, command, *_ in CASES],
)
def test_a_damaged_file_is_told_in_one_line_and_takes_little_memory_and_time(place, command, damage, says):
    damage(place / "run")
    before, began = set(place.rglob("*")), time.monotonic()
    with peak_of_memory() as peak:
        result = invoke(command, place)
    assert time.monotonic() - began < MOST_SECONDS
    assert peak() < MOST_BYTES, f"{peak() / 2**20:.0f} MB more than before"
    assert result.exit_code == 2, result.output
    assert result.stderr.startswith("Error: ") and result.stderr.count("\n") == 1, result.stderr
    assert says in result.output, result.output
    for line in result.output.splitlines():
        assert len(line) < MOST_CHARACTERS
        assert not any(unicodedata.category(character) == "Cc" for character in line), repr(line)
    left = {path for path in set(place.rglob("*")) - before if path.name != "evaluation.lock"}
    assert not left


@contextlib.contextmanager
def peak_of_memory():
    """How many bytes this process had at most beyond those it has now; asked after the block."""
    Path("/proc/self/clear_refs").write_text("5")
    before, found = _status("VmRSS"), []
    yield lambda: found[0]
    found.append(_status("VmHWM") - before)


def _status(name: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(1024 * int(line.split()[1]) for line in lines if line.startswith(f"{name}:"))


@pytest.mark.parametrize(
    ("damage", "says"),
    [
        (text("metrics/evaluation.jsonl", '{"step": true, "test_accuracy": 0.5}\n'), "step: got True"),
        (text("metrics/evaluation.jsonl", "[" * 10**5 + "\n"), "too deep"),
        (text("metrics/evaluation.jsonl", "x" * 10**7), "a line of more than"),
        (text("metrics/evaluation.jsonl", '{"step": 3, "test_accuracy": "\x1b[2J"}\n'), "not JSON"),
        (huge("metrics/evaluation.jsonl", GIB), "a line of more than"),
        (summary(outcome="completed"), ""),
    ],
)
def test_rows_that_are_none_are_passed_over_with_a_notice(place, damage, says):
    damage(place / "run")
    with peak_of_memory() as peak:
        result = invoke(EVALUATE, place)
    assert (result.exit_code, result.stderr) == (0, "") and says in result.output
    assert peak() < MOST_BYTES
    assert json.loads((place / "run/summary.json").read_text())["evaluation"]["test_accuracy"] == 0.5


@pytest.mark.parametrize("content", ["{", "[]", '{"test_accuracy": "high"}', '{"test_accuracy": 1e999}'])
def test_a_record_of_the_best_model_that_is_damaged_is_replaced_with_a_notice(place, content):
    (place / "run/best").mkdir()
    (place / "run/best/model.keras").write_bytes(b"another")
    (place / "run/best/best.json").write_text(content)
    (place / "run/metrics/evaluation.jsonl").unlink()
    result = invoke(EVALUATE, place)
    assert result.exit_code == 0 and "takes its place" in result.output
    assert json.loads((place / "run/best/best.json").read_text())["test_accuracy"] == 0.5


@pytest.mark.parametrize("command", [RESUME, EVALUATE])
@pytest.mark.parametrize("content", [b"", b"PK", zipped(members(header={"step": -1}))])
def test_an_older_checkpoint_does_where_the_newest_is_damaged(place, command, content):
    newer = place / f"run/checkpoints/step-{STEPS + 2:09}.npz"
    newer.write_bytes(content)
    result = invoke(command, place)
    assert result.exit_code == 0 and f"passed over: checkpoint '{newer}'" in result.output


@pytest.mark.parametrize(
    ("damage", "says"),
    [
        (text("dataset.json", "{"), "looking for the data set again"),
        (changed("dataset.json", directory=7), "directory: got 7"),
        (changed("dataset.json", directory="/a\0b"), "looking for the data set again"),
        (changed("dataset.json", directory="/nowhere"), "looking for the data set again"),
        (pipe("dataset.json"), ""),
        (text("summary.json", "{"), "to be written anew"),
        (summary(outcome=7), "to be written anew"),
        (text("checkpoints/ended.json", "[]"), "to be written anew"),
    ],
)
def test_a_run_is_resumed_without_what_can_be_had_again(place, damage, says):
    damage(place / "run")
    result = invoke(RESUME, place)
    assert (result.exit_code, result.stderr) == (0, "") and says in result.output
