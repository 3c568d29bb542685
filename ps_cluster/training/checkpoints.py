"""Checkpoints as single files of plain numpy arrays: written whole or not at all, checked when read. No TensorFlow."""

from __future__ import annotations

import io
import json
import os
import re
import zipfile
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ps_cluster.errors import RunFailed, UserError
from ps_cluster.files.writing import create_beside, remove_leftovers, write_json

ENDED = "ended.json"

_FILE_NAME = re.compile(r"step-(\d{9,})\.npz")
_HEADER = "header"  # the member that holds step, meta and the names of the others, as JSON
_MTIME = (1980, 1, 1, 0, 0, 0)  # the oldest a zip can name: equal checkpoints are equal files


class CheckpointError(UserError):
    """A checkpoint that can't be read."""


class CheckpointUnreadable(CheckpointError):
    """The system refused to read it (an I/O error, no permission, a folder): it may give it later."""


class CheckpointNotWritten(RunFailed):
    """The disk is full or refuses."""


class CheckpointGone(CheckpointError):
    """The file is not there (any more): the writer has thinned it out."""


@dataclass(frozen=True)
class Checkpoint:
    """The state of a training after `step` applied updates.

    `arrays` holds at least "weights" float32 [n] (all trainable variables, flat) and "statistics" float32 [m] (the other
    float variables, flat); whatever else the training needs to go on lies beside them. `meta` is JSON.
    """

    step: int
    arrays: dict[str, np.ndarray]
    meta: dict[str, Any]


def path_of(directory: Path, step: int) -> Path:
    return directory / f"step-{step:09d}.npz"


def steps(directory: Path) -> list[int]:
    """The steps there are checkpoints of, ascending; empty when there is no such directory.

    A name that `path_of` would not give, such as one with a zero more, is none of a checkpoint.
    """
    try:
        names = set(os.listdir(directory))
    except (FileNotFoundError, NotADirectoryError):
        return []
    except OSError as error:
        raise CheckpointError(f"checkpoint directory '{directory}' can't be read: {error.strerror}") from error
    found = (int(match[1]) for match in map(_FILE_NAME.fullmatch, names) if match)
    return sorted({step for step in found if path_of(directory, step).name in names})


def save(directory: Path, checkpoint: Checkpoint, keep: int) -> Path:
    """Writes a checkpoint and removes all but the newest `keep`.

    Checkpoints of later steps are removed too: training went back behind them, so they are of a history that was given up.

    Raises:
      CheckpointNotWritten: the disk is full or refuses.
    """
    path = path_of(directory, checkpoint.step)
    try:
        remove_leftovers(directory, "step-*.npz")
        write(path, checkpoint)
        remove_later(directory, checkpoint.step)
        keep_newest(directory, keep)
    except OSError as error:
        raise CheckpointNotWritten(f"checkpoint directory '{directory}' can't be written: {error.strerror}") from error
    return path


def keep_newest(directory: Path, keep: int) -> None:
    """Remove all checkpoints but the newest `keep`."""
    for step in steps(directory)[:-keep]:
        path_of(directory, step).unlink(missing_ok=True)


def remove_later(directory: Path, step: int) -> None:
    """Remove the checkpoints of steps above `step`: training goes back behind them. Unreadable ones may come back."""
    for later in steps(directory):
        if later > step:
            path_of(directory, later).unlink(missing_ok=True)


def write(path: Path, checkpoint: Checkpoint) -> None:
    """Writes one checkpoint to `path`, beside it first; readers see the old file or the new one, never a part.

    Raises:
      CheckpointNotWritten: the disk is full or refuses.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with create_beside(path) as file:
            _write_zip(file, checkpoint)
    except OSError as error:
        raise CheckpointNotWritten(f"checkpoint '{path}' can't be written: {error.strerror or error}") from error


def load(path: Path) -> Checkpoint:
    """Reads a checkpoint and checks the CRC-32 of every array.

    Raises:
      CheckpointGone: there is no such file.
      CheckpointUnreadable: the system refused to read it.
      CheckpointError: it is cut short, damaged, or no checkpoint.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            header = json.loads(archive.read(_HEADER))
            # Whole members through zipfile, because numpy's own lazy reading would stop before the CRC is compared.
            arrays = {name: _array(archive.read(f"{name}.npy")) for name in header["arrays"]}
        return Checkpoint(int(header["step"]), arrays, dict(header["meta"]))
    except FileNotFoundError as error:
        raise CheckpointGone(f"checkpoint '{path}' does not exist") from error
    except Exception as error:  # a damaged zip makes zipfile, zlib, numpy and json raise about anything
        if refused := _refusal(error):
            raise CheckpointUnreadable(f"checkpoint '{path}' can't be read ({refused.strerror or refused})") from error
        reason = " ".join(str(error).split()) or type(error).__name__
        raise CheckpointError(f"checkpoint '{path}' is damaged or cut short ({reason})") from error


def newest_first(directories: Iterable[Path]) -> list[Path]:
    """The checkpoints in all of the directories, that of the latest step first."""
    found = [(step, path_of(directory, step)) for directory in directories for step in steps(directory)]
    return [path for _, path in sorted(found, reverse=True)]


def load_newest_good(directories: Iterable[Path], notify: Callable[[str], None]) -> Checkpoint | None:
    """The newest checkpoint that can be read; says which ones it passed over. None when there is none."""
    directories, passed_over = list(directories), set()
    # Lists again every time: while one was being read the writer may have written another and thinned out the rest.
    while candidates := [path for path in newest_first(directories) if path not in passed_over]:
        try:
            return load(candidates[0])
        except CheckpointGone:
            pass
        except CheckpointError as error:
            notify(f"passed over: {error}")
        passed_over.add(candidates[0])
    return None


def mark_ended(directory: Path, *, last_step: int, outcome: str) -> None:
    """Says to whoever follows the directory that no checkpoint comes after that of `last_step`.

    Args:
      outcome: "completed" or "stopped".
    """
    write_json(directory / ENDED, {"last_step": last_step, "outcome": outcome})


def ended(directory: Path) -> dict[str, Any] | None:
    """{"last_step": int, "outcome": str} when training has ended, else None."""
    try:
        return json.loads((directory / ENDED).read_text(encoding="utf-8"))
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, ValueError) as error:
        raise CheckpointError(f"'{directory / ENDED}' can't be read: {error}") from error


def clear_ended(directory: Path) -> None:
    """Training goes on: takes the mark away. Do it before anybody follows the directory again."""
    (directory / ENDED).unlink(missing_ok=True)


def _write_zip(file: io.BufferedIOBase, checkpoint: Checkpoint) -> None:
    header = {"step": checkpoint.step, "meta": checkpoint.meta, "arrays": list(checkpoint.arrays)}
    with zipfile.ZipFile(file, "w", zipfile.ZIP_STORED) as archive:
        archive.writestr(zipfile.ZipInfo(_HEADER, _MTIME), json.dumps(header))
        for name, array in checkpoint.arrays.items():
            with archive.open(zipfile.ZipInfo(f"{name}.npy", _MTIME), "w", force_zip64=True) as member:
                np.lib.format.write_array(member, np.asarray(array), allow_pickle=False)


def _refusal(error: BaseException | None) -> OSError | None:
    """Return what the system said, of which zipfile may have made that the file is no zip."""
    while error is not None and not isinstance(error, OSError):
        error = error.__context__
    return error


def _array(content: bytes) -> np.ndarray:
    return np.lib.format.read_array(io.BytesIO(content), allow_pickle=False)
