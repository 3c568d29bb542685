"""The ledger as CSV: metrics/updates.csv and metrics/applies.csv, out of the journals. No TensorFlow."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from itertools import zip_longest
from pathlib import Path
from typing import TextIO

import numpy as np

from ps_cluster.files.writing import create_beside, remove_leftovers
from ps_cluster.training import journal
from ps_cluster.training.audit import OnRows, Rounds
from ps_cluster.training.ledger import NO_ROWS, ROW, Joiner
from ps_cluster.training.step_set import StepSet

APPLY_COLUMNS = ("step", "version", "staleness", "worker", "pid", "entered_time", "applied_time")
APPLY_ROW = np.dtype([(name, np.float64) for name in ("ps", *APPLY_COLUMNS)])
"""A line of metrics/applies.csv."""
_WHOLE = {"ps", "step", "version", "staleness", "worker", "pid", "examples", "correct"}


def write_updates(
    path: Path, journals: Sequence[Path], rounds: Rounds, window: int, on_rows: OnRows = lambda rows: None
) -> None:
    """Write a line for each step that every slice has applied, in the order of steps: the fields of ROW.

    Args:
      journals: of the slices. window: how far apart steps may be that were under way at a time (`config.ledger_window`).
      on_rows: called now and then with the number of rows read since it was called last.
    Raises:
      JournalDamaged: a row's checksum is wrong.
      OSError: the disk refuses. In both cases the file stays as it was.
    """
    with _csv(path, ROW) as file:
        for rows, read in _in_step_order(journals, rounds, window):
            _write_lines(file, rows)
            on_rows(read)


def write_applies(path: Path, journals: Sequence[Path], on_rows: OnRows = lambda rows: None) -> None:
    """Write a line for each step that each slice has accepted, in that order: the fields of APPLY_ROW. Likewise."""
    with _csv(path, APPLY_ROW) as file:
        for index, source in enumerate(journals):
            for rows in journal.read(source):
                lines = np.empty(len(rows), APPLY_ROW)
                lines["ps"] = index
                for name in APPLY_COLUMNS:
                    lines[name] = rows[name]
                _write_lines(file, lines)
                on_rows(len(lines))


def read_csv(path: Path, row: np.dtype = ROW) -> np.ndarray:
    """Return what `write_updates` or, with APPLY_ROW, `write_applies` has written: a structured array [lines] of `row`.

    Raises:
      OSError: there is no such file.
      ValueError: it has other columns.
    """
    with path.open(encoding="utf-8") as file:
        header = file.readline().rstrip("\n")
        if tuple(header.split(",")) != row.names:
            raise ValueError(f"{path.name} has other columns: {header}")
        begin = file.tell()
        if not file.read(1):
            return np.empty(0, row)
        file.seek(begin)
        return np.loadtxt(file, row, delimiter=",", ndmin=1)


def _in_step_order(journals: Sequence[Path], rounds: Rounds, window: int) -> Iterator[tuple[np.ndarray, int]]:
    """Joined rows, and from how many of the journals: without those that lower steps may still precede, or may not, once
    they are a whole window higher: those steps were lost."""
    joiner, steps, held, gradients = Joiner(len(journals)), StepSet(), NO_ROWS, 0
    for chunks in zip_longest(*map(journal.read, journals), fillvalue=NO_ROWS):
        rows = joiner.add(list(chunks))
        steps.add(rows["step"].astype(np.int64))
        gradients += len(rows)
        if rounds.steps_per_update > 1:
            steps.close_below(gradients // rounds.gradients_per_update * rounds.steps_per_update)
        steps.close_below(steps.end - window)
        held = np.concatenate([held, rows])
        held = held[np.argsort(held["step"], kind="stable")]
        ready = int(np.searchsorted(held["step"], steps.first_missing))
        yield held[:ready], sum(map(len, chunks))
        held = held[ready:]
    yield held, 0


@contextlib.contextmanager
def _csv(path: Path, row: np.dtype) -> Iterator[TextIO]:
    """A file beside `path`, with the header; it becomes `path` where the block ends well."""
    remove_leftovers(path.parent, path.name)  # as large as the ledger
    with create_beside(path, encoding="utf-8") as file:
        file.write(",".join(row.names) + "\n")
        yield file


def _write_lines(file: TextIO, rows: np.ndarray) -> None:
    formats = ("%d" if name in _WHOLE else "%.6f" if name.endswith("_time") else "%.9g" for name in rows.dtype.names)
    line = ",".join(formats) + "\n"
    file.writelines(line % row for row in rows.tolist())
