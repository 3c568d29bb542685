"""Write the ledger's rows as CSV files (metrics/updates.csv and metrics/applies.csv), and read them. No TensorFlow."""

from __future__ import annotations

import contextlib
import io
from collections.abc import Iterator, Sequence
from itertools import islice, zip_longest
from pathlib import Path
from typing import IO

import numpy as np

from ps_cluster.errors import UserError
from ps_cluster.files.reading import open_regular
from ps_cluster.files.values import Malformed, one_line
from ps_cluster.files.writing import create_text_beside, remove_leftovers
from ps_cluster.runs import journal
from ps_cluster.runs.ledger import NO_ROWS, ROW, WHOLE, ShardJoiner, check_values, names_of
from ps_cluster.runs.proof import OnRows, RoundShape
from ps_cluster.runs.step_set import StepSet

APPLY_COLUMNS = ("step", "version", "staleness", "worker", "pid", "entered_time", "applied_time")
APPLY_ROW = np.dtype([(name, np.float64) for name in ("ps", *APPLY_COLUMNS)])
"""A line of metrics/applies.csv."""
_LONGEST_LINE = 1000  # characters; a real line has about 250


def write_updates(
    path: Path,
    journals: Sequence[journal.History],
    rounds: RoundShape,
    window: int,
    on_rows: OnRows = lambda rows: None,
) -> None:
    """Write a line (fields of ROW) for each step that every shard has applied, in the order of steps.

    The old file stays if JournalDamaged or OSError is raised.

    Args:
      journals: for each shard, the files with the rows of its ledger.
      window: the largest distance between steps that are under way at the same time (`config.ledger_window`).
      on_rows: called from time to time with the number of rows read since the last call.
    """
    with _csv(path, ROW) as file:
        for rows, read in _in_step_order(journals, rounds, window):
            _write_lines(file, rows)
            on_rows(read)


def write_applies(path: Path, journals: Sequence[journal.History], on_rows: OnRows = lambda rows: None) -> None:
    """Write a line (fields of APPLY_ROW) for each accepted step of each shard, in the order of acceptance."""
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
    """Read a file that `write_updates` or (with APPLY_ROW) `write_applies` wrote, as a structured array of `row`.

    Raises UserError if the file can't be read, or has other columns or impossible values.
    """
    try:
        with io.TextIOWrapper(open_regular(path), "ascii") as file:
            header = file.readline(_LONGEST_LINE).rstrip("\n")
            if tuple(header.split(",")) != names_of(row):
                raise Malformed(f"has other columns: {header:.200}")
            lines = iter(lambda: file.readline(_LONGEST_LINE), "")
            parts = []
            while some := list(islice(lines, journal.CHUNK_ROWS)):
                parts.append(_parsed(some, row))
    except OSError as error:
        raise UserError(f"'{path}' can't be read: {error.strerror or error}") from error
    except ValueError as error:
        raise UserError(f"'{path}': {one_line(str(error), 300)}") from error
    return np.concatenate(parts) if parts else np.empty(0, row)


def _parsed(lines: Sequence[str], row: np.dtype) -> np.ndarray:
    """Parse lines to rows. Raises ValueError for a line that is not a row."""
    if not all(line.endswith("\n") and line != "\n" for line in lines):
        raise Malformed("has a line that is empty, cut short or too long")
    rows = np.loadtxt(lines, row, delimiter=",", ndmin=1, comments=None)
    check_values(rows)
    return rows


def _in_step_order(
    journals: Sequence[journal.History], rounds: RoundShape, window: int
) -> Iterator[tuple[np.ndarray, int]]:
    """Yield pairs, in the order of steps: joined rows, and the number of journal rows that were read for them.

    A row is held back while a row of a lower step may still come. A step that is `window` or more below the newest step
    counts as lost.
    """
    joiner, steps, held = ShardJoiner(len(journals)), StepSet(), NO_ROWS
    for chunks in zip_longest(*map(journal.read, journals), fillvalue=NO_ROWS):
        rows = joiner.add(list(chunks))
        steps.add(rows["step"].astype(np.int64))
        if rounds.steps_per_update > 1:  # all rows of a round come after those of the previous round
            steps.close_below((steps.end - 1) // rounds.steps_per_update * rounds.steps_per_update)
        steps.close_below(steps.end - window)
        held = np.concatenate([held, rows])
        held = held[np.argsort(held["step"], kind="stable")]
        ready = int(np.searchsorted(held["step"], steps.first_missing))
        yield held[:ready], sum(map(len, chunks))
        held = held[ready:]
    yield held, 0


@contextlib.contextmanager
def _csv(path: Path, row: np.dtype) -> Iterator[IO[str]]:
    """Yield a temporary file with the header. It is renamed to `path` if the block ends without an error."""
    remove_leftovers(path.parent, path.name)  # leftover files are as large as the ledger
    with create_text_beside(path) as file:
        file.write(",".join(names_of(row)) + "\n")
        yield file


def _write_lines(file: IO[str], rows: np.ndarray) -> None:
    formats = ("%d" if name in WHOLE else "%.6f" if name.endswith("_time") else "%.9g" for name in names_of(rows.dtype))
    line = ",".join(formats) + "\n"
    file.writelines(line % row for row in rows.tolist())
