"""Write and read checkpoints. No TensorFlow.

A checkpoint is one file of plain numpy arrays. It is written completely or not at all, and checked when it is read.
The name of a file contains the term number of the leader that wrote it, and a leader never removes a file of a newer
leader. So a leader that was frozen between the check of its claim and the change of a file does no harm when it wakes
up (runs/leaders.py).

A snapshot of a network with embedding tables may hold only the rows that have changed since an earlier snapshot, which
holds all rows. This earlier snapshot is called its full state. The name and header of the later snapshot identify the
full state. Both files are read together, and the full state is kept as long as there is a snapshot that builds on it.
"""

from __future__ import annotations

import contextlib
import io
import math
import os
import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby
from pathlib import Path
from typing import IO, Annotated, Any, NamedTuple

import numpy as np
from pydantic import Field, Strict

from ps_cluster.errors import RunFailed, UserError
from ps_cluster.files.json_files import read_json
from ps_cluster.files.tensor_files import Pieces, checksum_of, open_tensors, write_tensors
from ps_cluster.files.values import Malformed
from ps_cluster.files.writing import create_beside, remove, remove_leftovers, write_json
from ps_cluster.notices import Notify
from ps_cluster.runs.changed_vector import ChangedVector
from ps_cluster.runs.checkpoint_arrays import CHANGED, NAME_PATTERN, form_of
from ps_cluster.runs.dataset_rows import Kind
from ps_cluster.runs.journal import CountedWork
from ps_cluster.runs.result_rows import TrainingOutcome
from ps_cluster.runs.rows import Count, Histogram, Index, Number, Pid, Row, Text, Word
from ps_cluster.runs.step_set import StepsState
from ps_cluster.runs.times import TrainingTimes

ENDED = "ended.json"
READ_AGAIN_AFTER_S = (0.5, 2.0, 5.0)

_FILE_NAME = re.compile(r"step-(\d{9,})-term-(\d{6,})(?:-since-(\d{9,}))?\.safetensors")


class CheckpointError(UserError):
    """Raised for a checkpoint that can't be read or used."""


class CheckpointUnreadable(CheckpointError):
    """Raised if the system refuses to read a checkpoint, e.g. after an I/O error. A retry may succeed."""


class StatesUnreadable(RunFailed):
    """Raised if the system refuses to read the existing checkpoints or snapshots.

    They may be readable later, so training does not restart from scratch.
    """


class CheckpointNotWritten(RunFailed):
    """Raised if a checkpoint can't be written, because the disk is full or refuses to write."""


class CheckpointGone(CheckpointError):
    """Raised if the file of a checkpoint does not exist, e.g. because its writer has removed it to save space."""


# The header of a file: its step, the names of its arrays, and the other state that a resumed training needs.


class TallyState(Row):
    """Totals over all ledger rows so far, which a resumed training continues (training/applied_totals.py).

    Attributes:
      workers: for each worker process, its index, its pid, and its numbers of updates and of examples.
      first_updates: for each worker, its index, the time of its first update [s of training], and the number of
        examples of all workers up to that time.
      bad_losses: the number of steps whose loss was NaN or infinite.
      rows, row_values: how many rows of embedding tables were pulled and pushed, and how many numbers these rows held.
    """

    examples: Count = 0
    workers: list[Annotated[tuple[Index, Pid, Count, Count], Strict(False)]] = []
    staleness: Histogram = {}
    first_updates: list[Annotated[tuple[Count, Number, Count], Strict(False)]] = []
    bad_losses: Count = 0
    rows: Count = 0
    row_values: Count = 0


class ProgressState(Row):
    """The scheduled and the applied work of a training (training/run_progress.py).

    `mixed`: the number of steps whose pushes to different shards came from different processes, because a worker died.
    """

    scheduled: StepsState
    applied: StepsState
    tally: TallyState
    mixed: Count


class CheckpointMeta(Row):
    """The contents of a checkpoint in addition to its arrays; None for values that its writer did not record.

    Attributes:
      times, progress: state that the next leader resumes.
      data: what distinguishes the packed data set from other data sets (training/agreement.py).
      network: the path and shape of each variable of the network, in the order in which the arrays "weights" and then
        "statistics" hold their values.
      leaders: the work of each leader, in order. The last leader wrote the checkpoint.
    """

    config: dict[str, Any] | None = None
    dataset_kind: Kind | None = None
    train_seconds: Number | None = None
    examples: Count | None = None
    times: TrainingTimes | None = None
    progress: ProgressState | None = None
    data: dict[Word, Word] | None = None
    network: list[Text] | None = None
    leaders: list[CountedWork] = []


class FullState(Row):
    """The full state on which a snapshot of changed rows builds. `checksum`: the checksum of the full state's file."""

    step: Count
    term: Count
    checksum: Count


class CheckpointHeader(Row):
    """The header of a checkpoint's file."""

    step: Count
    meta: CheckpointMeta
    since: FullState | None = None
    arrays: Annotated[list[Annotated[str, Field(pattern=NAME_PATTERN)]], Field(max_length=100)]


class EndedMark(Row):
    """The content of checkpoints/ended.json, which a leader writes when it ends cleanly after `last_step` updates.

    Attributes:
      is_continued: whether another leader is expected to continue the training. If not, the checkpoint of `last_step`
        is the last one.
      term: the number of the leader that wrote the mark. If a later leader has written states, the mark is ignored.
    """

    last_step: Count
    outcome: TrainingOutcome
    is_continued: bool = False
    term: Count = 0

    def completes(self, updates: int) -> bool:
        """Return whether a training of this number of updates is complete."""
        return self.outcome == "completed" and self.last_step == updates


@dataclass(frozen=True)
class Checkpoint:
    """The state of a training after `step` applied updates.

    `arrays` holds at least "weights" float32 [n] (all trainable variables, flat) and "statistics" float32 [m] (the
    other float variables, flat), and everything else that training needs to continue. Arrays of a loaded checkpoint are
    read-only views of the file. `pieces` has the arrays whose values are fetched only while the file is written; it is
    empty in a loaded checkpoint. A snapshot may hold only the rows that have changed since the full state `since`. Once
    such a snapshot is loaded, its weights and slots are in `changed`.
    """

    step: int
    arrays: Mapping[str, np.ndarray]
    meta: CheckpointMeta = CheckpointMeta()
    pieces: Mapping[str, Pieces] = field(default_factory=dict)
    since: FullState | None = None
    changed: Mapping[str, ChangedVector] = field(default_factory=dict)

    @property
    def term(self) -> int:
        """The number of the leader that wrote this checkpoint; 0 if the leader has not claimed the run directory."""
        return self.meta.leaders[-1].term if self.meta.leaders else 0

    @property
    def name(self) -> str:
        return name_of(self.step, self.term, self.since.step if self.since else None)


class State(NamedTuple):
    """A checkpoint file. States are ordered by the term of the leader, then by the step.

    `since`: the step of the full state on which this state builds; both have the same term. None if this state is
    itself a full state.
    """

    term: int
    step: int
    path: Path
    since: int | None = None


def name_of(step: int, term: int, since: int | None = None) -> str:
    """Return the file name of a checkpoint. No other leader ever replaces this file.

    `term`: the number of the leader that writes it. `since`: the step of the full state on which it builds, if any.
    """
    return f"step-{step:09d}-term-{term:06d}{'' if since is None else f'-since-{since:09d}'}.safetensors"


def path_of(directory: Path, step: int) -> Path:
    """Return the path of the newest leader's checkpoint of a step; if there is none, the path for term 0."""
    return by_step(directory).get(step, directory / name_of(step, 0))


def states(*directories: Path) -> list[State]:
    """Return the checkpoints in directories, the newest last.

    Checkpoints of an earlier leader that have more steps than a checkpoint of a later leader are left out, because the
    later leader did not continue from them. A file whose name differs from `name_of`, e.g. by an extra zero, is no
    checkpoint.
    """
    newest_first = sorted((state for directory in directories for state in _all(directory)), reverse=True)
    kept: list[State] = []
    for _, written in groupby(newest_first, key=lambda state: state.term):
        least = kept[-1].step if kept else math.inf
        kept += [state for state in written if state.step <= least]
    return kept[::-1]


def by_step(directory: Path) -> dict[int, Path]:
    """Return the path of the newest leader's checkpoint of each step, in ascending order; empty without a directory."""
    return dict(sorted((state.step, state.path) for state in states(directory)))


def steps(directory: Path) -> list[int]:
    """Return the steps of the checkpoints in a directory, ascending; empty if there is no directory."""
    return list(by_step(directory))


def _all(directory: Path) -> Iterator[State]:
    try:
        names = os.listdir(directory)
    except (FileNotFoundError, NotADirectoryError):
        return
    except OSError as error:
        raise CheckpointUnreadable(f"checkpoint directory '{directory}' can't be read: {error.strerror}") from error
    for name in names:
        match = _FILE_NAME.fullmatch(name)
        if match is None:
            continue
        step, term, since = int(match[1]), int(match[2]), None if match[3] is None else int(match[3])
        if name == name_of(step, term, since):
            yield State(term, step, directory / name, since)


def saved_at(directory: Path) -> float | None:
    """Return when the newest checkpoint of a directory was written, in unix seconds; None without a checkpoint."""
    try:
        return max((path.stat().st_mtime for path in list(by_step(directory).values())[-1:]), default=None)
    except (OSError, CheckpointError):  # the file has just been removed
        return None


def save(directory: Path, checkpoint: Checkpoint, keep: int, spare: int | None = None) -> Path:
    """Write a checkpoint, and remove all except the newest `keep` checkpoints and the checkpoint of step `spare`.

    Checkpoints that do not lead to this one, because training went back to an earlier state, are removed too. Raises
    CheckpointNotWritten.
    """
    path = directory / checkpoint.name
    try:
        remove_leftovers(directory, "step-*.safetensors")
        write(path, checkpoint)
        remove_abandoned(directory, checkpoint, checkpoint.term)
        keep_newest(directory, keep, spare, checkpoint.term)
    except OSError as error:
        raise CheckpointNotWritten(f"checkpoint directory '{directory}' can't be written: {error.strerror}") from error
    return path


def as_full_state(path: Path, checkpoint: Checkpoint) -> FullState:
    """Return a reference to a written checkpoint, for snapshots that build on it. Raises CheckpointNotWritten."""
    try:
        return FullState(step=checkpoint.step, term=checkpoint.term, checksum=checksum_of(path))
    except OSError as error:
        raise CheckpointNotWritten(f"checkpoint '{path}' can't be read: {error.strerror}") from error


def keep_newest(directory: Path, keep: int, spare: int | None = None, term: int | None = None) -> None:
    """Remove all checkpoints but the newest `keep`, the one of step `spare`, and the full states on which these build.

    `term`: the term number of the calling leader; files of newer leaders are kept. None if no leader is left.
    """
    present = [state for state in states(directory) if term is None or state.term <= term]
    kept = [*present[-keep:], *(state for state in present if state.step == spare)]
    needed = {state.path for state in kept} | {
        directory / name_of(one.since, one.term) for one in kept if one.since is not None
    }
    for state in present:
        if state.path not in needed:
            remove(state.path)


def remove_abandoned(directory: Path, checkpoint: Checkpoint, term: int) -> None:
    """Remove states that did not lead to `checkpoint`, so that no leader resumes them.

    `term`: the term number of the calling leader; files of newer leaders are kept.
    """
    way = {one.term: one.step for one in checkpoint.meta.leaders} | {checkpoint.term: checkpoint.step}
    for state in _all(directory):
        if state.term <= term and state.step > way.get(state.term, -1):
            remove(state.path)


def remove_all(directory: Path, term: int) -> None:
    """Remove a directory's checkpoints, and the directory if nothing is left in it.

    `term`: the term number of the calling leader; files of newer leaders are kept.
    """
    remove_leftovers(directory, "step-*.safetensors")
    for state in _all(directory):
        if state.term <= term:
            remove(state.path)
    with contextlib.suppress(OSError):  # the directory is not empty
        directory.rmdir()


def write(path: Path, checkpoint: Checkpoint) -> None:
    """Write a checkpoint so that readers never see an incomplete file. Raises CheckpointNotWritten."""
    try:
        path.parent.mkdir(exist_ok=True)
        with create_beside(path) as file:
            _write_into(file, checkpoint)
    except OSError as error:
        raise CheckpointNotWritten(f"checkpoint '{path}' can't be written: {error.strerror or error}") from error


def to_bytes(checkpoint: Checkpoint) -> bytes:
    file = io.BytesIO()
    _write_into(file, checkpoint)
    return file.getvalue()


def _write_into(file: IO[bytes], checkpoint: Checkpoint) -> None:
    contents: dict[str, np.ndarray | Pieces] = {**checkpoint.arrays, **checkpoint.pieces}
    header = CheckpointHeader(step=checkpoint.step, meta=checkpoint.meta, since=checkpoint.since, arrays=list(contents))
    write_tensors(file, header, contents)


def load(path: Path) -> Checkpoint:
    """Read a checkpoint as memory-mapped arrays, and check the CRC-32 of every array.

    Raises:
      CheckpointGone: the file does not exist.
      CheckpointUnreadable: the system refused to read the file.
      CheckpointError: the file is cut short, damaged, or no checkpoint, or the full state on which it builds can't be used.
    """
    try:
        header, arrays = open_tensors(path, CheckpointHeader)
        found = {name: _array(arrays, name) for name in header.arrays}
        checkpoint = Checkpoint(header.step, found, header.meta, since=header.since)
        if _FILE_NAME.fullmatch(path.name) and path.name != checkpoint.name:
            raise Malformed(f"its content is that of {checkpoint.name}")
        return checkpoint if header.since is None else _on_full_state(path, checkpoint, header.since)
    except FileNotFoundError as error:
        raise CheckpointGone(f"checkpoint '{path}' does not exist") from error
    except OSError as error:
        raise CheckpointUnreadable(f"checkpoint '{path}' can't be read ({error.strerror or error})") from error
    except Malformed as error:
        raise CheckpointError(f"checkpoint '{path}' is damaged or cut short ({error})") from error


def _on_full_state(path: Path, found: Checkpoint, since: FullState) -> Checkpoint:
    """Combine a snapshot of changed rows with the full state on which it builds. Raises the same errors as `load`."""
    full_path = path.parent / name_of(since.step, since.term)
    try:
        full = load(full_path)
    except CheckpointUnreadable:
        raise
    except CheckpointError as error:
        raise CheckpointError(
            f"snapshot '{path}' can't be used without the full state that it builds on: {error}"
        ) from error
    if checksum_of(full_path) != since.checksum:
        raise Malformed(f"'{full_path}' is not the full state on which this snapshot builds")
    ranges = _array(found.arrays, CHANGED)
    changed = {
        name: ChangedVector(_array(full.arrays, name), ranges, values)
        for name, values in found.arrays.items()
        if form_of(name).has_number_per_weight
    }
    others = {name: array for name, array in found.arrays.items() if name not in changed and name != CHANGED}
    return replace(found, arrays=others, changed=changed)


def _array(arrays: Mapping[str, np.ndarray], name: str) -> np.ndarray:
    if name not in arrays:
        raise Malformed(f"it has no array '{name}'")
    form_of(name).check(name, arrays[name])
    return arrays[name]


def newest_first(directories: Iterable[Path]) -> list[Path]:
    """Return the checkpoints in all directories, the newest first."""
    return [state.path for state in reversed(states(*directories))]


def load_newest_good(
    directories: Iterable[Path], notify: Notify, check: Callable[[Checkpoint], None] = lambda found: None
) -> Checkpoint | None:
    """Return the newest checkpoint that can be read; None if there is none. Damaged checkpoints are reported by `notify`.

    `check` raises CheckpointError for a checkpoint that can't be used. Such a checkpoint is reported and skipped too.
    Raises CheckpointUnreadable if the system refuses to read a checkpoint.
    """
    directories, passed_over = list(directories), set()
    # List the files again every time, because the writer may have written a new checkpoint and removed all others.
    while candidates := [path for path in newest_first(directories) if path not in passed_over]:
        try:
            check(checkpoint := load(candidates[0]))
            return checkpoint
        except CheckpointGone:
            pass
        except CheckpointUnreadable:
            raise
        except CheckpointError as error:
            notify(f"passed over: {error}")
        passed_over.add(candidates[0])
    return None


def load_to_resume(
    directories: Sequence[Path],
    notify: Notify,
    check: Callable[[Checkpoint], None],
    sleep: Callable[[float], None] = time.sleep,
) -> Checkpoint | None:
    """Return the newest checkpoint that can be read, like `load_newest_good`, but try again if reading is refused.

    No older state is used instead, because the newer states would then be removed. Raises StatesUnreadable if the system
    still refuses after the last attempt.
    """
    for wait_s in (*READ_AGAIN_AFTER_S, None):
        try:
            return load_newest_good(directories, notify, check)
        except CheckpointUnreadable as error:
            if wait_s is None:
                raise StatesUnreadable(
                    f"{error}; tried {len(READ_AGAIN_AFTER_S) + 1} times. All files are unchanged: check the disk and "
                    "the limit of open files, then continue with --resume"
                ) from error
            notify(f"{error}; trying to read it again in {wait_s:g} s")
            sleep(wait_s)
    return None


def mark_ended(
    directory: Path, *, last_step: int, outcome: TrainingOutcome, is_continued: bool = False, term: int = 0
) -> None:
    """Write the mark that training has ended (`EndedMark`), for readers of the directory."""
    mark = EndedMark(last_step=last_step, outcome=outcome, is_continued=is_continued, term=term)
    write_json(directory / ENDED, mark.model_dump())


def ended(directory: Path) -> EndedMark | None:
    """Return the mark that training has ended; None without it. Raises CheckpointError if the mark can't be read."""
    try:
        mark = read_json(directory / ENDED, EndedMark)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except UserError as error:
        raise CheckpointError(str(error)) from error
    newer = any(state.term > mark.term for state in _all(directory))  # then a superseded leader wrote the mark
    return None if newer else mark


def clear_ended(directory: Path) -> None:
    """Remove the mark that training has ended. Call this before an evaluator follows a training that continues."""
    remove(directory / ENDED)
