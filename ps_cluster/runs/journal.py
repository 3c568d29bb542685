"""Store the rows of a shard's ledger on disk, in the order in which the shard accepted them. No TensorFlow.

Each leader appends to a new file. The files of earlier leaders are never changed: they are neither cut nor copied. A
checkpoint records how many rows of each leader's file are valid (`CountedWork`).

The checksum of a row is computed from the checksum of the row before it and the bytes of the row. The first row of a
file continues the checksum of the previous leader's file. So a row or a file that is changed, left out or moved is
noticed.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Iterator, Sequence
from itertools import accumulate
from pathlib import Path
from typing import Annotated, NamedTuple
from zlib import crc32

import numpy as np
from pydantic import Field, model_validator

from ps_cluster.errors import RunFailed
from ps_cluster.files.reading import open_regular
from ps_cluster.files.values import Malformed
from ps_cluster.files.writing import open_to_write
from ps_cluster.runs.ledger import NO_ROWS, ROW, check_values
from ps_cluster.runs.rows import Count, Row, Text
from ps_cluster.runs.run_dir import RunDir

RECORD = np.dtype([("row", ROW), ("crc", "<u4")])
"""A record in the file: a row, and the CRC-32 of all rows up to and including it."""
CHUNK_ROWS = 2**13
# Rows stay in memory until fdatasync has confirmed them. It is called at every snapshot, and after this many bytes.
SYNC_BYTES = 2**24
# If the disk has refused this many bytes of rows, the leader ends, so that a full disk does not fill the memory.
MOST_BYTES_IN_MEMORY = 2**28


class JournalDamaged(RunFailed):
    """Raised if a journal has damaged or missing rows."""


class JournalNotWritten(RunFailed):
    """Raised if a journal can't be written, because the disk is full or refuses to write."""


class JournalGivenUp(RunFailed):
    """Raised if the disk has refused so many rows that they take too much memory."""


class CountedWork(Row):
    """The valid part of one leader's work: everything up to a certain state, which is a checkpoint or a snapshot.

    The state is the leader's newest one or, if another leader has followed, the state from which that leader continued.
    The rows that the leader wrote after this state are ignored.

    Attributes:
      term: the leader's number (runs/leaders.py); 0 for a leader that has not claimed the run directory.
      step: the number of updates in the state.
      rows, checksums: for each of the leader's journals, the number of rows up to the state, and the checksum in the last of
        these rows. A journal without rows has the checksum with which it began.
      rules: the digest of the settings that determined the rows' values (`learning_rate.ledger_settings_digest`); empty
        if not known.
      problem: a problem that the rows do not show, but that the proof (the check of the ledger after training) has to
        report; empty if there is none.
      workers: the number of workers at the start of the whole training; 0 if not known.
    """

    term: Count = 0
    step: Count
    workers: Count = 0
    rows: list[Count]
    checksums: list[Count]
    rules: Annotated[str, Field(max_length=10_000)] = ""
    problem: Text = ""

    @model_validator(mode="after")
    def _is_of_some_shards(self) -> CountedWork:
        if not self.rows or len(self.rows) != len(self.checksums):
            raise ValueError(
                f"'rows' and 'checksums' need one number for each shard: got {len(self.rows)} and "
                f"{len(self.checksums)} numbers"
            )
        return self


class JournalPart(NamedTuple):
    """The valid part of a leader's journal file: its first `rows` rows.

    `checksum`: the checksum in the last of these rows. If the part has no rows, it is the checksum of the previous
    leader's part, or 0 for the first leader.
    """

    path: Path
    rows: int
    checksum: int


History = Sequence[JournalPart]  # all rows of one shard, over all leaders


class Journal:
    """A new file to which a leader appends the ledger rows of a shard. Rows that the disk refuses are written later.

    After a failed fdatasync Linux marks the pages as clean although the disk does not have them, and the next fdatasync
    succeeds (Rebello et al. 2020, "Can Applications Recover from fsync Failures?", USENIX ATC, section 3). So all rows since
    the last successful fdatasync stay in memory, and are written again after a failure.

    Attributes:
      rows: the number of rows, including those that are not yet on the disk.
      checksum: the checksum of the last row. Before the first row, it is that of the previous leader's last row, or 0.
    """

    def __init__(self, path: Path, checksum: int = 0):
        """Create the file. Raises JournalNotWritten if the disk refuses, or the file exists."""
        self.path, self.rows, self.checksum = path, 0, checksum
        self._unwritten: deque[bytes] = deque()
        self._unconfirmed: deque[bytes] = deque()  # written since the last successful fdatasync
        self._written = self._confirmed = 0  # numbers of rows
        try:
            self._file = open_to_write(path, os.O_RDWR | os.O_CREAT | os.O_EXCL)
        except OSError as error:
            raise JournalNotWritten(f"'{path}' can't be written: {error.strerror}") from error

    @property
    def piece(self) -> JournalPart:
        return JournalPart(self.path, self.rows, self.checksum)

    def append(self, rows: np.ndarray) -> None:
        """Add `rows`, a structured array of dtype ROW, and write all rows that are not on the disk.

        Raises JournalNotWritten if the disk refuses. Nothing is lost, because the next call tries again. Raises
        JournalGivenUp if the disk has refused too many rows.
        """
        if len(rows):
            records = np.empty(len(rows), RECORD)
            records["row"], records["crc"] = rows, _checksums(rows, self.checksum)
            self._unwritten.append(records.tobytes())
            self.rows += len(rows)
            self.checksum = int(records["crc"][-1])
        waiting = (self.rows - self._confirmed) * RECORD.itemsize
        try:
            self._write()
            if waiting > SYNC_BYTES:
                self.flush()
        except JournalNotWritten as error:
            if waiting <= MOST_BYTES_IN_MEMORY:
                raise
            count = waiting // RECORD.itemsize
            raise JournalGivenUp(f"{error}: {count:,} rows wait in memory, and no more rows are accepted") from error

    def flush(self) -> None:
        """Wait until every row is on the disk. Raises JournalNotWritten if the disk refuses."""
        self._write()
        try:
            os.fdatasync(self._file)
        except OSError as error:
            self._unwritten.extendleft(reversed(self._unconfirmed))
            self._unconfirmed.clear()
            self._written = self._confirmed
            raise JournalNotWritten(f"'{self.path}' can't be written: {error.strerror}") from error
        self._unconfirmed.clear()
        self._confirmed = self._written

    def close(self) -> None:
        os.close(self._file)

    def _write(self) -> None:
        """Write all unwritten rows. After a failure the next call overwrites any rows that were written in part."""
        while self._unwritten:
            content = memoryview(self._unwritten[0])
            begin = offset = self._written * RECORD.itemsize
            try:
                while offset < begin + len(content):
                    offset += os.pwrite(self._file, content[offset - begin :], offset)
            except OSError as error:
                raise JournalNotWritten(f"'{self.path}' can't be written: {error.strerror}") from error
            self._written += len(content) // RECORD.itemsize
            self._unconfirmed.append(self._unwritten.popleft())


def counted_work(
    pieces: Sequence[JournalPart], *, term: int, step: int, workers: int = 0, rules: str = "", problem: str = ""
) -> CountedWork:
    """Return the part of a leader's work that ends with the state after `step` updates.

    `pieces`: for each shard, the rows that the leader had written up to then. Other arguments are fields of the result.
    """
    rows, checksums = [one.rows for one in pieces], [one.checksum for one in pieces]
    return CountedWork(
        term=term, step=step, workers=workers, rows=rows, checksums=checksums, rules=rules, problem=problem
    )


def history_of(run_dir: RunDir, leaders: Sequence[CountedWork], index: int) -> list[JournalPart]:
    """Return the parts of all journal files that hold the rows of shard `index`, from the first leader to the last.

    The number of shards may differ between leaders. If a leader did not have shard `index`, the rows of its shard 0 are
    used. They have the same steps, because the number of shards changes only at a state in which all shards have
    accepted the same steps (runs/resharding.py).
    """
    pieces = []
    for stretch in reversed(leaders):
        index = index if index < len(stretch.rows) else 0
        path = run_dir.journal(index, stretch.term)
        pieces.append(JournalPart(path, stretch.rows[index], stretch.checksums[index]))
    return pieces[::-1]


def check_lengths(history: History) -> None:
    """Raise JournalDamaged if a journal file has fewer rows than `history` expects in it. The rows are not read."""
    for path, rows, _ in history:
        if (present := count_rows(path)) < rows:
            raise JournalDamaged(f"'{path}' holds {present} rows, but {rows} were written")


def count_rows(path: Path) -> int:
    """Return the number of complete rows in a journal file, without an incomplete last row; 0 if there is no file."""
    try:
        return path.stat().st_size // RECORD.itemsize
    except FileNotFoundError:
        return 0


def read(history: History, chunk_rows: int = CHUNK_ROWS) -> Iterator[np.ndarray]:
    """Yield the rows of a shard, up to `chunk_rows` at a time, as structured arrays of dtype ROW.

    Raises JournalDamaged if a row is missing, or has a wrong checksum or an impossible value. All rows before this row are
    yielded first.
    """
    checksum = 0
    for piece in history:
        if piece.rows:
            for rows, checksum_so_far in _read_piece(piece, checksum, chunk_rows):
                yield rows
                checksum = checksum_so_far
        if checksum != piece.checksum:
            raise JournalDamaged(
                f"'{piece.path}' is not the journal that the checkpoint names: the checksum after row {piece.rows} is wrong"
            )


def _read_piece(piece: JournalPart, checksum: int, chunk_rows: int) -> Iterator[tuple[np.ndarray, int]]:
    """Yield pairs: the next rows of a journal file, and the checksum in the last of them.

    `checksum`: the checksum of the last row before `piece`; 0 if there is none.
    """
    check_lengths([piece])
    done = 0
    try:
        file = open_regular(piece.path)
    except Malformed as error:
        raise JournalDamaged(f"'{piece.path}' {error}") from error
    with file:
        while done < piece.rows:
            content = file.read(min(chunk_rows, piece.rows - done) * RECORD.itemsize)
            records = _whole_records(content)
            sound = _checksums(records["row"], checksum) == records["crc"]
            good = len(sound) if sound.all() else int(np.argmin(sound))
            try:
                check_values(records["row"][:good])
            except Malformed as error:
                raise JournalDamaged(f"'{piece.path}' {error}, in a row after row {done}") from error
            if good:
                checksum = int(records["crc"][good - 1])
                yield records["row"][:good], checksum
            if good < len(sound) or not len(records):
                raise JournalDamaged(f"row {done + good} of '{piece.path}' is damaged: its checksum is wrong")
            done += len(records)


def _whole_records(content: bytes) -> np.ndarray:
    """Return the complete records in the content of a file, whose last record may be incomplete."""
    return np.frombuffer(content[: len(content) // RECORD.itemsize * RECORD.itemsize], RECORD)


class JournalTail:
    """A reader of the ledger rows of one shard while a run writes them. It does not check their checksums.

    `waiting`: the rows that were read but not yet taken (`take`), a structured array [k] of dtype ROW.
    """

    def __init__(self, run_dir: RunDir, index: int):
        self._run_dir, self._index = run_dir, index
        self._name, self._read = "", 0  # the newest leader's file, and how many of its rows were read
        self.waiting = NO_ROWS

    def poll(self) -> None:
        """Read the new rows. When a newer leader's file appears, the waiting rows of the earlier leader are dropped."""
        for path in sorted(self._run_dir.journals.glob(f"shard-{self._index}-term-*.bin")):
            if path.name < self._name:
                continue
            if path.name > self._name:
                self._name, self._read, self.waiting = path.name, 0, NO_ROWS
            with open_regular(path) as file:
                file.seek(self._read * RECORD.itemsize)
                records = _whole_records(file.read())
            self._read += len(records)
            self.waiting = np.concatenate([self.waiting, records["row"]])

    def take(self, count: int) -> np.ndarray:
        rows, self.waiting = self.waiting[:count], self.waiting[count:]
        return rows


def _checksums(rows: np.ndarray, before: int) -> np.ndarray:
    """Return the CRC-32 of all bytes up to the end of each row, uint32 [k].

    `before`: the CRC-32 of all bytes before these rows.
    """
    content = memoryview(np.ascontiguousarray(rows).tobytes())
    begins = range(0, len(content), ROW.itemsize)
    sums = accumulate(begins, lambda sum, begin: crc32(content[begin : begin + ROW.itemsize], sum), initial=before)
    return np.fromiter(sums, np.uint32, len(rows) + 1)[1:]
