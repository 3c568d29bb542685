"""Damaged checkpoints, and such as were made to do harm: refused in one line, or an older one does."""

import os
import struct
import zipfile

import numpy as np
import pytest

from tests.bad_files.damage import (
    EVALUATE,
    GIB,
    RESUME,
    assert_told_in_one_line,
    gone,
    huge,
    invoke,
    parametrized,
    pipe,
)
from tests.bad_files.run_files import (
    META,
    STEP_NAME,
    STEPS,
    STEPS_STATE,
    TALLY,
    TIMES,
    arrays,
    counts,
    members,
    npy,
    npy_header,
    zipped,
)


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
    ("has a deep header", checkpoint(lambda: zipped({"header": b"[" * 10**5})), "too deep"),
    ("has a header that is a list", checkpoint(lambda: zipped({"header": b"[]"})), "names with values"),
    ("is of a step below 0", header(step=-1), "step"),
    ("is of step true", header(step=True), "step"),
    ("is of a step of 10^30", header(step=10**30), "step"),
    ("names no arrays", header(arrays="weights"), "arrays"),
    ("names an array that is not there", header(arrays=[*arrays(), "colour"]), "no array 'colour'"),
    ("names an array outside", header(arrays=["../../etc/passwd"]), "arrays.0"),
    ("names an array by an escape", header(arrays=["\x1b[2J"]), "arrays.0"),
    ("has a meta that is a text", header(meta="none"), "meta"),
    ("has infinite seconds", meta(train_seconds=1e300), "train_seconds"),
    ("is of another step than its name", header(step=STEPS + 1), f"it is of step {STEPS + 1}"),
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
    (
        "its ledger waits for what no row can be",
        array(waiting=np.concatenate([np.zeros([1, 1]), np.full([1, arrays()["waiting"].shape[1] - 1], np.nan)], axis=1)),
        "does not add up",
    ),
    ("its configuration is a text", meta(config="none"), "config"),
    ("the journal is shorter", lambda run: os.truncate(run / "metrics/journal/slice-0.bin", 100), "holds 0 rows"),
    ("the journal is gone", gone("metrics/journal/slice-0.bin"), "holds 0 rows"),
]  # fmt: skip
CASES = [*UNREADABLE, *((what, RESUME, damage, says) for what, damage, says in RESUMED)]


@parametrized(CASES)
def test_a_damaged_checkpoint_is_told_in_one_line_and_takes_little_memory_and_time(place, command, damage, says):
    damage(place / "run")
    assert_told_in_one_line(place, command, says)


@pytest.mark.parametrize("command", [RESUME, EVALUATE])
@pytest.mark.parametrize("content", [b"", b"PK", zipped(members(header={"step": -1}))])
def test_an_older_checkpoint_does_where_the_newest_is_damaged(place, command, content):
    newer = place / f"run/checkpoints/step-{STEPS + 2:09}.npz"
    newer.write_bytes(content)
    result = invoke(command, place)
    assert result.exit_code == 0 and f"passed over: checkpoint '{newer}'" in result.output
