"""Checkpoints as single files of plain numpy arrays: written whole or not at all, checked when read. No TensorFlow."""

from __future__ import annotations

import io
import os
import re
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import numpy as np

from ps_cluster.errors import RunFailed, UserError
from ps_cluster.files.array_archive import Member, array_of, header_of, open_members, write_members
from ps_cluster.files.json_files import read_json
from ps_cluster.files.malformed import Malformed
from ps_cluster.files.writing import create_beside, remove, remove_leftovers, write_json
from ps_cluster.run.rows.checkpoint import Header, Meta
from ps_cluster.run.rows.scores import EndedMark, Ending

ENDED = "ended.json"
READ_AGAIN_AFTER_S = (0.5, 2.0, 5.0)

_FILE_NAME = re.compile(r"step-(\d{9,})\.npz")
ACCEPTED_STEPS = "accepted_steps"
BY_SLICE = (ACCEPTED_STEPS, "counts")  # arrays that have a row for each slice
ONE_A_SLICE = "each_"  # begins the names of slots that are one number of each slice: float32 [ps]
# Array → dtype, and how many axes it may have. A slot is a vector, or has a row for each worker.
KNOWN = {
    "weights": (np.float32, (1,)),
    "statistics": (np.float32, (1,)),
    ACCEPTED_STEPS: (np.int64, (2,)),
    "counts": (np.int64, (2,)),
    "waiting": (np.float64, (2,)),
}
KNOWN_SLOT, KNOWN_NUMBERS = (np.float32, (1, 2)), (np.float32, (1,))


class CheckpointError(UserError):
    """A checkpoint that can't be read."""


class CheckpointUnreadable(CheckpointError):
    """A checkpoint that the system refused to read (I/O error, no permission, a folder). It may be readable later."""


class StatesUnreadable(RunFailed):
    """States are there, and the system refuses to read them. Nothing is begun anew: they may be readable later."""


class CheckpointNotWritten(RunFailed):
    """A checkpoint could not be written: the disk is full or refuses."""


class CheckpointGone(CheckpointError):
    """A checkpoint whose file is not there, or was removed by the writer to make room."""


@dataclass(frozen=True)
class Checkpoint:
    """The state of a training after `step` applied updates.

    `arrays` holds at least "weights" float32 [n] (all trainable variables, flat) and "statistics" float32 [m] (the
    other float variables, flat), and everything else that training needs to go on. Arrays of a loaded checkpoint are
    read-only views of the file.
    """

    step: int
    arrays: Mapping[str, np.ndarray]
    meta: Meta = Meta()


def path_of(directory: Path, step: int) -> Path:
    return directory / f"step-{step:09d}.npz"


def steps(directory: Path) -> list[int]:
    """Return the steps of the checkpoints in a directory, ascending; empty when there is no such directory.

    A file whose name `path_of` would not give, such as one with an extra zero, is not a checkpoint.
    """
    try:
        names = set(os.listdir(directory))
    except (FileNotFoundError, NotADirectoryError):
        return []
    except OSError as error:
        raise CheckpointUnreadable(f"checkpoint directory '{directory}' can't be read: {error.strerror}") from error
    found = (int(match[1]) for match in map(_FILE_NAME.fullmatch, names) if match)
    return sorted({step for step in found if path_of(directory, step).name in names})


def saved_at(directory: Path) -> float | None:
    """Return when the newest checkpoint of a directory was written, in unix seconds; None where there is none."""
    try:
        return max((path_of(directory, step).stat().st_mtime for step in steps(directory)[-1:]), default=None)
    except (OSError, CheckpointError):  # it has just been removed
        return None


def save(directory: Path, checkpoint: Checkpoint, keep: int, spare: int | None = None) -> Path:
    """Write a checkpoint and remove all but the newest `keep`, and that of step `spare`.

    Checkpoints of later steps are removed too: training went back to an earlier step, so their history was given up.

    Raises:
      CheckpointNotWritten: the disk is full or refuses.
    """
    path = path_of(directory, checkpoint.step)
    try:
        remove_leftovers(directory, "step-*.npz")
        write(path, checkpoint)
        remove_later(directory, checkpoint.step)
        keep_newest(directory, keep, spare)
    except OSError as error:
        raise CheckpointNotWritten(f"checkpoint directory '{directory}' can't be written: {error.strerror}") from error
    return path


def keep_newest(directory: Path, keep: int, spare: int | None = None) -> None:
    """Remove all checkpoints but the newest `keep`, and that of step `spare`."""
    for step in steps(directory)[:-keep]:
        if step != spare:
            remove(path_of(directory, step))


def remove_later(directory: Path, step: int) -> None:
    """Remove checkpoints of steps above `step`, as training goes back to it; unreadable ones might be read later."""
    for later in steps(directory):
        if later > step:
            remove(path_of(directory, later))


def write(path: Path, checkpoint: Checkpoint) -> None:
    """Write one checkpoint beside `path` and rename it: readers see the old file or the new one, never a part.

    Raises:
      CheckpointNotWritten: the disk is full or refuses.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with create_beside(path) as file:
            _write_into(file, checkpoint)
    except OSError as error:
        raise CheckpointNotWritten(f"checkpoint '{path}' can't be written: {error.strerror or error}") from error


def to_bytes(checkpoint: Checkpoint) -> bytes:
    """Return the content of a checkpoint's file."""
    file = io.BytesIO()
    _write_into(file, checkpoint)
    return file.getvalue()


def _write_into(file: IO[bytes], checkpoint: Checkpoint) -> None:
    header = Header(step=checkpoint.step, meta=checkpoint.meta, arrays=list(checkpoint.arrays))
    write_members(file, header, checkpoint.arrays)


def load(path: Path) -> Checkpoint:
    """Read a checkpoint and check the CRC-32 of every array. The arrays map the file, whatever sizes it declares.

    Raises:
      CheckpointGone: there is no such file.
      CheckpointUnreadable: the system refused to read it.
      CheckpointError: it is cut short, damaged, or no checkpoint.
    """
    try:
        members = open_members(path)
        header = header_of(members, Header)
        if (named := _FILE_NAME.fullmatch(path.name)) and int(named[1]) != header.step:
            raise Malformed(f"it is of step {header.step}")
        return Checkpoint(header.step, {name: _array(members, name) for name in header.arrays}, header.meta)
    except FileNotFoundError as error:
        raise CheckpointGone(f"checkpoint '{path}' does not exist") from error
    except OSError as error:
        raise CheckpointUnreadable(f"checkpoint '{path}' can't be read ({error.strerror or error})") from error
    except Malformed as error:
        raise CheckpointError(f"checkpoint '{path}' is damaged or cut short ({error})") from error


def _array(members: Mapping[str, Member], name: str) -> np.ndarray:
    array = array_of(members, name)
    numbers = KNOWN_NUMBERS if name.startswith(ONE_A_SLICE) else None
    known = KNOWN_SLOT if name.startswith("slot_") else numbers or KNOWN.get(name)
    if known and (array.dtype != known[0] or array.ndim not in known[1]):
        raise Malformed(f"'{name}' is {array.dtype} {list(array.shape)}")
    return array


def newest_first(directories: Iterable[Path]) -> list[Path]:
    """Return the checkpoints in all directories, the latest step first."""
    found = [(step, path_of(directory, step)) for directory in directories for step in steps(directory)]
    return [path for _, path in sorted(found, reverse=True)]


def load_newest_good(
    directories: Iterable[Path], notify: Callable[[str], None], check: Callable[[Checkpoint], None] = lambda found: None
) -> Checkpoint | None:
    """Return the newest checkpoint that can be read, None without one. Reports by `notify` those that are damaged.

    Args:
      check: raises CheckpointError for a checkpoint that is of no use; it is reported and passed over too.
    Raises:
      CheckpointUnreadable: the system refuses to read one.
    """
    directories, passed_over = list(directories), set()
    # List again every time: during a read the writer may have written another one and removed the rest.
    while candidates := [path for path in newest_first(directories) if path not in passed_over]:
        try:
            check(found := load(candidates[0]))
            return found
        except CheckpointGone:
            pass
        except CheckpointUnreadable:
            raise
        except CheckpointError as error:
            notify(f"passed over: {error}")
        passed_over.add(candidates[0])
    return None


def load_to_go_on(
    directories: Sequence[Path],
    notify: Callable[[str], None],
    check: Callable[[Checkpoint], None],
    sleep: Callable[[float], None] = time.sleep,
) -> Checkpoint | None:
    """Return what `load_newest_good` does. A disk that refuses for a moment is asked again.

    An older state is no way out: to go on from it, the newer ones would be removed.

    Raises:
      StatesUnreadable: the system still refuses after the last wait.
    """
    for wait_s in (*READ_AGAIN_AFTER_S, None):
        try:
            return load_newest_good(directories, notify, check)
        except CheckpointUnreadable as error:
            if wait_s is None:
                raise StatesUnreadable(
                    f"{error}; asked {len(READ_AGAIN_AFTER_S) + 1} times. All files are as they were: see to the disk, or to "
                    "the limit of open files, and go on with --resume"
                ) from error
            notify(f"{error}; asking again in {wait_s:g} s")
            sleep(wait_s)
    return None


def mark_ended(directory: Path, *, last_step: int, outcome: Ending, goes_on: bool = False) -> None:
    """Write the mark that tells readers of the directory that no checkpoint comes after `last_step`.

    Args:
      goes_on: none comes of this leader; another one will go on.
    """
    mark = EndedMark(last_step=last_step, outcome=outcome, goes_on=goes_on)
    write_json(directory / ENDED, mark.model_dump())


def ended(directory: Path) -> EndedMark | None:
    """Return the mark when training has ended, else None. Raises CheckpointError where it can't be read."""
    try:
        return read_json(directory / ENDED, EndedMark)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except UserError as error:
        raise CheckpointError(str(error)) from error


def clear_ended(directory: Path) -> None:
    """Remove the mark, because training goes on. Call it before anybody follows the directory again."""
    remove(directory / ENDED)
