"""Read JSON into typed models: bounded, without duplicate keys or numbers that JSON does not have."""

from __future__ import annotations

import contextlib
import json
import os
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, BinaryIO, Generic, NoReturn, TypeVar

from pydantic import BaseModel, ValidationError

from ps_cluster.errors import UserError
from ps_cluster.files.untrusted import open_regular, read_bytes
from ps_cluster.files.values import Malformed, decimal, first_error, whole
from ps_cluster.files.writing import open_to_write

MOST_BYTES = 24 * 2**20
# Most commas, colons and brackets. A value of two bytes takes up to 100 in memory, and 400 more if it is an error.
# Enough for a month's summary with a score a minute.
MOST_PARTS = 600_000

Model = TypeVar("Model", bound=BaseModel)


def read_json(path: Path, model: type[Model], most_bytes: int = MOST_BYTES) -> Model:
    """Return the validated content of a JSON file.

    Raises:
      FileNotFoundError: there is no such file.
      UserError: it can't be read, or does not fit `model`; one line that names the file and the field.
    """
    try:
        return model.model_validate(parse_json(read_bytes(path, most_bytes)))
    except FileNotFoundError:
        raise
    except OSError as error:
        raise UserError(f"'{path}' can't be read: {error.strerror or error}") from error
    except ValidationError as error:
        raise UserError(first_error(error, f"'{path}'")) from error
    except Malformed as error:
        raise UserError(f"'{path}': {error}") from error


def parse_json(text: bytes | str) -> Any:
    """Return the value of a JSON text.

    Raises:
      Malformed: not JSON, too many values, too deep, a key twice in one object, NaN or infinity, or a number with too
        many digits.
    """
    try:
        text = text.decode("utf-8") if isinstance(text, bytes) else text
        if sum(text.count(mark) for mark in ",:[{") > MOST_PARTS:
            raise Malformed(f"holds more than {MOST_PARTS:,} values")
        return json.loads(
            text, object_pairs_hook=_object, parse_constant=_refuse_constant, parse_int=whole, parse_float=decimal
        )
    except Malformed:
        raise
    except RecursionError as error:
        raise Malformed("is nested too deep") from error
    except ValueError as error:
        raise Malformed(f"is not JSON ({error})") from error


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        key = next(key for key, times in Counter(key for key, _ in pairs).items() if times > 1)
        raise Malformed(f"has the key {key!r:.60} twice")
    return found


def _refuse_constant(name: str) -> NoReturn:
    raise Malformed(f"has {name}, which is no number of JSON")


# Files of rows, one JSON object a line, that grow while others read them. Lines that are no rows are skipped.

LOOK_BYTES = 2**22  # read at once, so the longest possible row; the row of 1,000 workers has 100,000 bytes
_END_BYTES = 2**16  # holds the last row of all but the largest clusters


def append_row(path: Path, row: BaseModel) -> None:
    """Append a JSON object as a line, in a single write. After a line cut short by a full disk it starts a new one."""
    with os.fdopen(open_to_write(path, os.O_RDWR | os.O_APPEND | os.O_CREAT), "a+b") as file:
        end = file.seek(0, os.SEEK_END)
        file.seek(max(0, end - 1))
        begin = b"\n" if file.read(1) not in (b"", b"\n") else b""
        file.write(begin + row.model_dump_json().encode() + b"\n")


def read_rows(path: Path, model: type[Model], notify: Callable[[str], None] = lambda line: None) -> Iterator[Model]:
    """Yield the complete rows of a file that may not exist yet. At the end, report the skipped lines."""
    tail, before = RowTail(path, model), -1
    while tail.offset > before:
        before = tail.offset
        yield from tail.new_rows()
    if tail.problem:
        more = f" (and {tail.passed_over - 1} more)" if tail.passed_over > 1 else ""
        notify(f"passed over in '{path}': {tail.problem}{more}")


def last_row(path: Path, model: type[Model]) -> Model | None:
    """Return the last complete row; None if there is none. Only the end of the file is read."""
    for up_to_last in (min(_END_BYTES, LOOK_BYTES), LOOK_BYTES):
        tail = RowTail(path, model)
        tail.skip(up_to_last)
        if rows := tail.new_rows():
            return rows[-1]
    return None


def some_rows(path: Path, model: type[Model], most: int) -> list[Model]:
    """Return the first row that begins in each of `most` equal parts of a file, and the last row.

    So a run of a day takes as long to look at as one of a minute. Lines that are no rows are left out; a file that may not
    be read has none.
    """
    parser = RowTail(path, model)
    try:
        with open_regular(path) as file:
            found = [row for line in _lines_of_parts(file, most) if (row := parser.row(line)) is not None]
    except (OSError, Malformed):
        return []
    last = last_row(path, model)
    return found if last is None or found and found[-1] == last else [*found, last]


def _lines_of_parts(file: BinaryIO, parts: int) -> Iterator[bytes]:
    """Yield the first complete line that begins in each part of a file; one that reaches over several counts once."""
    size, read_to = file.seek(0, os.SEEK_END), 0
    for part in range(parts):
        start, end = part * size // parts, (part + 1) * size // parts
        if read_to >= end:
            continue
        file.seek(max(start - 1, read_to))
        if read_to < start:
            file.readline(LOOK_BYTES)  # the rest of the line before
        line = file.readline(LOOK_BYTES)
        read_to = file.tell()
        if line.endswith(b"\n"):
            yield line


class RowTail(Generic[Model]):
    """Reads the rows appended since the last call.

    Attributes:
      offset: bytes read so far.
      passed_over: number of lines that were no rows, e.g. cut short by a full disk. problem: of the first of them.
    """

    def __init__(self, path: Path, model: type[Model]):
        self.offset = self.passed_over = 0
        self.problem: str | None = None
        self._path = path
        self._model = model
        self._within_a_line = False  # True: skip up to the next end of a line

    def skip(self, up_to_last: int = 0) -> None:
        """Skip the rows present now, except for those in the last `up_to_last` bytes."""
        with contextlib.suppress(OSError):
            self.offset = max(0, self._path.stat().st_size - up_to_last)
        self._within_a_line = self._read(self.offset - 1, 1) not in (b"", b"\n") if self.offset else False

    def new_rows(self) -> list[Model]:
        """Return the new rows within the next LOOK_BYTES bytes."""
        content = self._read(self.offset, LOOK_BYTES)
        lines, end, _ = content.rpartition(b"\n")
        if not end:
            self._leave_long_line(content)
            return []
        self.offset += len(lines) + 1
        first = 1 if self._within_a_line else 0
        self._within_a_line = False
        return [row for line in lines.split(b"\n")[first:] if (row := self.row(line)) is not None]

    def _leave_long_line(self, begin: bytes) -> None:
        if len(begin) < LOOK_BYTES:
            return  # the rest of the line is not written yet
        self.offset += len(begin)
        if not self._within_a_line:
            self._pass_over(f"a line of more than {LOOK_BYTES:,} bytes")
        self._within_a_line = True

    def _read(self, offset: int, most: int) -> bytes:
        try:
            with open_regular(self._path) as file:
                file.seek(offset)
                return file.read(most)
        except FileNotFoundError:
            return b""
        except (OSError, Malformed) as error:
            self._pass_over(f"it {error}" if isinstance(error, Malformed) else f"{error.strerror}")
            return b""

    def row(self, line: bytes) -> Model | None:
        """Return the row of a line; None, and note the problem, if it is none."""
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
