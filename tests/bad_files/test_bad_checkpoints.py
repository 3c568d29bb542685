"""Damaged checkpoints, and such as were made to do harm: refused in one line, or an older one does."""

import json
import os
import struct

import numpy as np
import pytest

from tests.bad_files.damage import EVALUATE, GIB, RESUME, assert_told_in_one_line, huge, invoke, parametrized, pipe
from tests.bad_files.run_files import (
    JOURNAL_NAME,
    META,
    STEP_NAME,
    STEPS,
    STEPS_STATE,
    TALLY,
    TIMES,
    arrays,
    checkpoint,
    counts,
    stretch,
    table,
)  # fmt: skip


def written(content):
    """The only checkpoint is just these bytes."""
    return lambda run: (run / STEP_NAME).write_bytes(content() if callable(content) else content)


def header(**values):
    """The checkpoint's header says something else."""
    return written(lambda: checkpoint(header=values))


def meta(**values):
    return header(meta=META | {"leaders": [stretch()]} | values)


def progress(**values):
    return meta(progress=META["progress"] | values)


def array(**replaced):
    return written(lambda: checkpoint(**replaced))


def weights(**form):
    """The table says something else of the weights."""

    def content():
        sound = checkpoint()
        (length,) = struct.unpack("<Q", sound[:8])
        return table(sound, weights=json.loads(sound[8 : 8 + length])["weights"] | form)

    return written(content)


def beginning(length, text=b""):
    """A table that says it has so many bytes."""
    return written(struct.pack("<Q", length) + text)


def words(**texts):
    """The table has other texts beside the arrays."""
    return written(lambda: table(checkpoint(), __metadata__=texts))


def huge_checkpoint(run):
    """Says that its weights have 10 GB, which the file has, too."""
    size = 10 * GIB
    told = {"__metadata__": {}, "weights": {"dtype": "F32", "shape": [size // 4], "data_offsets": [0, size]}}
    text = json.dumps(told).encode()
    huge(STEP_NAME, 8 + len(text) + size)(run)
    with (run / STEP_NAME).open("r+b") as file:
        file.write(struct.pack("<Q", len(text)) + text)


CHECKPOINTS = [
    ("is empty", written(b""), "no table"),
    ("is text", written(b"a text of some length that is no table"), "its table would have"),
    ("is cut short", written(lambda: checkpoint()[:-100]), "damaged or cut short"),
    ("is a pipe", pipe(STEP_NAME), "a regular file"),
    ("has 10 GB of zeros", huge(STEP_NAME), "damaged"),
    ("has 10 GB of weights", huge_checkpoint, "no crc32"),
    ("has a table of 1 TB", beginning(2**40, b"{"), "its table would have"),
    ("has a deep table", beginning(10**5, b"[" * 10**5), "damaged"),
    ("has no header", words(crc32='{"header": 0, "arrays": {}}'), "no header"),
    ("has a header that is no JSON", words(header="{", crc32='{"header": 1025557945, "arrays": {}}'), "header"),
    ("has checksums that are deep", words(header="{}", crc32="[" * 10**5), "too deep"),
    ("has a header that was changed", words(header="{}", crc32='{"header": 7, "arrays": {}}'), "its header is wrong"),
    ("is of a step of 10^30", header(step=10**30), "step"),
    ("names an array that is not there", header(arrays=[*arrays(), "colour"]), "no array 'colour'"),
    ("names an array outside", header(arrays=["../../etc/passwd"]), "arrays.0"),
    ("has infinite seconds", meta(train_seconds=1e300), "train_seconds"),
    ("is of another step than its name", header(step=STEPS + 1), f"its content is that of step-{STEPS + 1:09}-term-000001"),
    ("is of another leader than its name", meta(leaders=[stretch() | {"term": 2}]), "-term-000002"),
    ("is of a leader without shards", meta(leaders=[stretch() | {"rows": [], "checksums": []}]), "meta.leaders.0"),
    ("has weights of another type", weights(dtype="BF16"), "damaged"),
    ("has weights of 64 bits", array(weights=np.zeros(10)), "'weights' has the wrong dtype or shape: float64"),
    ("has an array of 10 GB in few bytes", weights(shape=[2684354560]), "damaged"),
    ("has an array of a shape below 0", weights(shape=[-1, -122_570]), "damaged"),
    ("has an array of another shape", weights(shape=[2, 61_285]), "CRC"),
    ("has arrays that overlap", weights(data_offsets=[0, 490_280]), "damaged"),
]  # fmt: skip
UNREADABLE = [
    (f"the checkpoint {what}", command, damage, says)
    for number, (what, damage, says) in enumerate(CHECKPOINTS)
    for command in ((EVALUATE, RESUME) if number % 8 == 0 else (EVALUATE,))
]
RESUMED = [
    ("the checkpoint has no seconds", meta(times=None), "earlier version"),
    ("a step is a terabyte away", progress(scheduled=STEPS_STATE | {"beyond": [2**40]}), "too far above"),
    ("all lies far behind", progress(applied={"below": 2**45, "beyond": [], "count": 2**45}), "contradict each other"),
    ("all is still to come", progress(applied={"below": 0, "beyond": [], "count": 0}, scheduled=STEPS_STATE | {"below": 2**45}),
     "contradict each other"),
    ("its tally has 10^15 steps", progress(tally=TALLY | {"staleness": {"0": 10**15}}), "contradict each other"),
    ("its times are of two stories", meta(times=TIMES | {"last_update": None}), "first_update"),
    ("its counts are below 0", array(counts=-counts()), "contradict each other"),
    ("its counts are of 3 things", array(counts=counts()[:, :3]), "earlier version"),
    ("its ledger waits for shard 9", array(waiting=np.full([1, arrays()["waiting"].shape[1]], 9.0)), "contradict each other"),
    (
        "its ledger waits for what no row can be",
        array(waiting=np.concatenate([np.zeros([1, 1]), np.full([1, arrays()["waiting"].shape[1] - 1], np.nan)], axis=1)),
        "contradict each other",
    ),
    ("the journal is shorter", lambda run: os.truncate(run / JOURNAL_NAME, 100), "holds 0 rows"),
]  # fmt: skip
CASES = [*UNREADABLE, *((what, RESUME, damage, says) for what, damage, says in RESUMED)]


@parametrized(CASES)
def test_a_damaged_checkpoint_is_told_in_one_line_and_takes_little_memory_and_time(place, command, damage, says):
    damage(place / "run")
    assert_told_in_one_line(place, command, says)


@pytest.mark.parametrize("command", [RESUME, EVALUATE])
@pytest.mark.parametrize("content", [b"", checkpoint(header={"step": -1})])
def test_an_older_checkpoint_does_where_the_newest_is_damaged(place, command, content):
    newer = (place / "run" / STEP_NAME).with_name(f"step-{STEPS + 2:09}-term-000001.safetensors")
    newer.write_bytes(content)
    result = invoke(command, place)
    assert result.exit_code == 0 and f"passed over: checkpoint '{newer}'" in result.output
