"""A slice's ledger on disk: its rows in the order in which they were accepted, each with a checksum. No TensorFlow.

Rows never change once they are written, so the file is only appended to. The parameter servers hold only the newest
rows. A run that is resumed from a snapshot cuts its journals to the rows that the snapshot counts.
"""

from __future__ import annotations

import contextlib
import os
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO
from zlib import crc32

import numpy as np

from ps_cluster.errors import RunFailed
from ps_cluster.files.malformed import Malformed
from ps_cluster.files.opening import open_regular
from ps_cluster.files.writing import create_beside, open_to_write
from ps_cluster.run.ledger import NO_ROWS, ROW, check_values

RECORD = np.dtype([("row", ROW), ("crc", "<u4")])
"""A row in the file: the row, and the CRC-32 of its bytes."""
CHUNK_ROWS = 2**13
_COPY_BYTES = 2**24


class JournalDamaged(RunFailed):
    """The journal has damaged or missing rows."""


class JournalNotWritten(RunFailed):
    """The journal could not be written: the disk is full or refuses."""


class Journal:
    """Appends rows to one file. Rows that the disk refuses are kept and written later.

    Attributes:
      rows: how many there are, including those not yet on the disk.
    """

    def __init__(self, path: Path, rows: int = 0):
        """Open the journal for writing, or create it, and cut it to its first `rows`.

        Raises:
          JournalDamaged: it has fewer rows.
          JournalNotWritten: the disk refuses.
        """
        self._path = path
        self._unwritten: deque[bytes] = deque()
        check(path, rows)
        try:
            _cut(path, rows)
            self._file = open_to_write(path, os.O_RDWR | os.O_CREAT)
        except OSError as error:
            raise JournalNotWritten(f"'{path}' can't be written: {error.strerror}") from error
        self.rows = self._written = rows

    def append(self, rows: np.ndarray) -> None:
        """Add `rows`, a structured array of ROW, and write all that are not on the disk.

        Raises:
          JournalNotWritten: the disk refuses; nothing is lost, the next call tries again.
        """
        if len(rows):
            self._unwritten.append(_records(rows).tobytes())
            self.rows += len(rows)
        self._write()

    def flush(self) -> None:
        """Wait until every row is on the disk. Raises JournalNotWritten where it refuses."""
        self._write()
        try:
            os.fdatasync(self._file)
        except OSError as error:
            raise JournalNotWritten(f"'{self._path}' can't be written: {error.strerror}") from error

    def close(self) -> None:
        os.close(self._file)

    def _write(self) -> None:
        """Write all unwritten rows. After a failure the next call overwrites what a full disk took of the first piece."""
        while self._unwritten:
            content = memoryview(self._unwritten[0])
            begin = offset = self._written * RECORD.itemsize
            try:
                while offset < begin + len(content):
                    offset += os.pwrite(self._file, content[offset - begin :], offset)
            except OSError as error:
                raise JournalNotWritten(f"'{self._path}' can't be written: {error.strerror}") from error
            self._written += len(content) // RECORD.itemsize
            self._unwritten.popleft()


def _cut(path: Path, rows: int) -> None:
    """Cut a journal to its first `rows`, in a new file: an earlier leader that still lives goes on writing the old one."""
    if path.exists():
        left = rows * RECORD.itemsize
        with open_regular(path) as old, create_beside(path) as new:
            while left and (content := old.read(min(left, _COPY_BYTES))):
                new.write(content)
                left -= len(content)


def check(path: Path, rows: int) -> None:
    """Raise JournalDamaged where a journal has fewer rows."""
    if (present := count_rows(path)) < rows:
        raise JournalDamaged(f"'{path}' holds {present} rows, but {rows} were written")


def count_rows(path: Path) -> int:
    """Return how many whole rows a journal has; 0 without a file. A last row that was cut short does not count."""
    try:
        return path.stat().st_size // RECORD.itemsize
    except FileNotFoundError:
        return 0


def read(path: Path, chunk_rows: int = CHUNK_ROWS) -> Iterator[np.ndarray]:
    """Yield the rows of a journal, up to `chunk_rows` at a time, as structured arrays of ROW; none where there is none.

    Raises:
      JournalDamaged: a row has a wrong checksum or an impossible value. The chunks before it were yielded.
    """
    done = 0
    with contextlib.suppress(FileNotFoundError), _opened(path) as file:
        while content := file.read(chunk_rows * RECORD.itemsize):
            records = np.frombuffer(content[: len(content) // RECORD.itemsize * RECORD.itemsize], RECORD)
            sound = _checksums(records["row"]) == records["crc"]
            good = len(sound) if sound.all() else int(np.argmin(sound))
            _check_values(path, done, records["row"][:good])
            yield records["row"][:good] if good else NO_ROWS
            if good < len(sound):
                raise JournalDamaged(f"row {done + good} of '{path}' is damaged: its checksum is wrong")
            done += len(records)


def _opened(path: Path) -> BinaryIO:
    try:
        return open_regular(path)
    except Malformed as error:
        raise JournalDamaged(f"'{path}' {error}") from error


def _check_values(path: Path, done: int, rows: np.ndarray) -> None:
    try:
        check_values(rows)
    except Malformed as error:
        raise JournalDamaged(f"'{path}' {error}, behind row {done}") from error


def _records(rows: np.ndarray) -> np.ndarray:
    records = np.empty(len(rows), RECORD)
    records["row"], records["crc"] = rows, _checksums(rows)
    return records


def _checksums(rows: np.ndarray) -> np.ndarray:
    """Return the CRC-32 of each row's bytes, uint32 [k]."""
    content = memoryview(np.ascontiguousarray(rows).tobytes())
    return np.array([crc32(content[i : i + ROW.itemsize]) for i in range(0, len(content), ROW.itemsize)], np.uint32)
