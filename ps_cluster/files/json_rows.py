"""Append rows to a file, one JSON object per line, and read them while the file grows.

Lines that are not rows are skipped.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Generic

from pydantic import BaseModel, ValidationError

from ps_cluster.files.json_files import Model, parse_json
from ps_cluster.files.reading import open_regular
from ps_cluster.files.values import Malformed, first_error
from ps_cluster.files.writing import open_to_write
from ps_cluster.notices import Notify, ignore

# The number of bytes that are read at once. No row may be longer. A row about 1,000 workers has 100,000 bytes.
READ_BYTES = 2**22
_END_BYTES = 2**16  # enough for the last row of all but the largest clusters


def append_row(path: Path, row: BaseModel) -> None:
    """Append a JSON object as a line, in one write. If a full disk has cut the last line short, start a new line."""
    with os.fdopen(open_to_write(path, os.O_RDWR | os.O_APPEND | os.O_CREAT), "a+b") as file:
        end = file.seek(0, os.SEEK_END)
        file.seek(max(0, end - 1))
        begin = b"\n" if file.read(1) not in (b"", b"\n") else b""
        file.write(begin + row.model_dump_json().encode() + b"\n")


def read_rows(path: Path, model: type[Model], notify: Notify = ignore) -> Iterator[Model]:
    """Yield the complete rows of a file that may not exist yet. At the end, call `notify` if lines were skipped."""
    tail, before = RowTail(path, model), -1
    while tail.offset > before:
        before = tail.offset
        yield from tail.new_rows()
    if tail.problem:
        more = f" (and {tail.passed_over - 1} more)" if tail.passed_over > 1 else ""
        notify(f"a part of '{path}' is skipped: {tail.problem}{more}")


def last_row(path: Path, model: type[Model]) -> Model | None:
    """Return the last complete row; None if there is none. Only the end of the file is read."""
    for up_to_last in (min(_END_BYTES, READ_BYTES), READ_BYTES):
        tail = RowTail(path, model)
        tail.skip(up_to_last)
        for line in reversed(tail.new_lines()):
            if (row := tail.row(line)) is not None:
                return row
    return None


def some_rows(path: Path, model: type[Model], most: int) -> list[Model]:
    """Return at most `most` rows, evenly spaced over the lines of a file, plus the last row if it is not one of them.

    Only the chosen rows are parsed. Since parsing takes most of the time, a file with the rows of a day takes about as
    long as a file with those of a minute. Lines that are not rows are skipped. If the file can't be read, return [].
    """
    parser = RowTail(path, model)
    try:
        with open_regular(path) as file:
            every = -(-sum(1 for _ in iter(lambda: file.readline(READ_BYTES), b"")) // most) or 1
            file.seek(0)
            lines = enumerate(iter(lambda: file.readline(READ_BYTES), b""))
            chosen = [line for number, line in lines if number % every == 0 and line.endswith(b"\n")]
    except (OSError, Malformed):
        return []
    found = [row for line in chosen if (row := parser.row(line)) is not None]
    last = last_row(path, model)
    return found if last is None or (found and found[-1] == last) else [*found, last]


class RowTail(Generic[Model]):
    """Reads a growing file of rows: each call of `new_rows` returns rows that were appended since the call before.

    Attributes:
      passed_over: the number of lines that were not rows, e.g. because a full disk cut them short, plus the number of
        failed attempts to read the file. A line of more than READ_BYTES counts several times.
      problem: a description of the first problem; None if there was none.
    """

    def __init__(self, path: Path, model: type[Model]):
        self.offset = self.passed_over = 0
        self.problem: str | None = None
        self._path = path
        self._model = model

    def skip(self, up_to_last: int = 0) -> None:
        """Skip the present content except its last `up_to_last` bytes.

        If these bytes begin in the middle of a line, the rest of this line does not count as a row.
        """
        with contextlib.suppress(OSError):
            self.offset = max(0, self._path.stat().st_size - up_to_last)

    def new_rows(self) -> list[Model]:
        """Return the new rows within the next READ_BYTES bytes."""
        return [row for line in self.new_lines() if (row := self.row(line)) is not None]

    def new_lines(self) -> list[bytes]:
        """Return the new complete lines within the next READ_BYTES bytes. `row` parses such a line."""
        content = self._next_bytes()
        lines, end, _ = content.rpartition(b"\n")
        if end:
            self.offset += len(lines) + 1
            return lines.split(b"\n")
        if len(content) == READ_BYTES:  # else the rest of the line is not written yet
            self.offset += len(content)
            self._pass_over(f"a line of more than {READ_BYTES:,} bytes")
        return []

    def _next_bytes(self) -> bytes:
        try:
            with open_regular(self._path) as file:
                file.seek(self.offset)
                return file.read(READ_BYTES)
        except FileNotFoundError:
            return b""
        except (OSError, Malformed) as error:
            self._pass_over(f"it {error}" if isinstance(error, Malformed) else f"{error.strerror}")
            return b""

    def row(self, line: bytes) -> Model | None:
        """Return the row of a line. If the line is not a row, count it in `passed_over` and return None."""
        try:
            return self._model.model_validate(parse_json(line))
        except Malformed as error:
            self._pass_over(f"a row {error}")
        except ValidationError as error:
            self._pass_over(first_error(error, "a row"))
        return None

    def _pass_over(self, problem: str) -> None:
        self.passed_over += 1
        self.problem = self.problem or problem
