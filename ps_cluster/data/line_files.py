"""Read large files of lines, such as logs of clicks, into arrays on disk."""

from __future__ import annotations

import gzip
import tempfile
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import BinaryIO

import numpy as np

from ps_cluster.config.objectives import ArrayField
from ps_cluster.data.cache import default_cache_dir
from ps_cluster.data.packing import cannot_write
from ps_cluster.files.reading import open_regular
from ps_cluster.files.values import Malformed, one_line

_MOST_BYTES = 4096  # at most this many bytes of a line are read at once
_LINES_AT_ONCE = 2**16


def is_compressed(file: Path) -> bool:
    """Return whether a file is compressed by gzip, according to its name."""
    return file.name.lower().endswith(".gz")


@contextmanager
def open_maybe_gzip(file: Path) -> Iterator[BinaryIO | gzip.GzipFile]:
    """Open a file, and decompress it if its name ends in .gz. Raises Malformed if its compression is damaged."""
    try:
        with open_regular(file) as packed, gzip.open(packed) if is_compressed(file) else packed as content:
            yield content
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise Malformed(f"'{file.name}' is no gzip file, or it is damaged ({one_line(str(error), 200)})") from error


def lines_of(file: Path) -> Iterator[bytes]:
    """Yield the lines of a file, without their line ends. A line of more than 4,096 bytes is yielded in pieces."""
    with open_maybe_gzip(file) as content:
        while line := content.readline(_MOST_BYTES):
            yield line.rstrip(b"\r\n")


def arrays_of_lines(
    file: Path, fields: Mapping[str, ArrayField], parse: Callable[[bytes], Sequence[object]], *, heading: bool = False
) -> dict[str, np.ndarray]:
    """Parse the lines of a file, and return an array [lines, ...] for each field, by the name of the field.

    The arrays are memory-mapped temporary files. Each file is deleted when its array is no longer used. These files are
    in the cache folder, because logs of clicks take gigabytes, and /tmp may be in memory.

    `parse` gets a line, and returns the value of each field in the order of `fields`. For a bad line it raises
    ValueError with a short reason. `heading`: whether the first line names the columns.

    Raises Malformed if a line is bad (with the line's number), or if there are no lines. Raises UserError if the cache
    can't be written.
    """
    cache = default_cache_dir()
    with _writing(cache):
        cache.mkdir(parents=True, exist_ok=True)
        files = {name: tempfile.TemporaryFile(dir=cache) for name in fields}  # noqa: SIM115  # mapped arrays outlive this
    parsed, count = _parsed(file, parse, heading), 0
    while rows := list(islice(parsed, _LINES_AT_ONCE)):
        count += len(rows)
        with _writing(cache):
            for (name, field), values in zip(fields.items(), zip(*rows, strict=True), strict=True):
                files[name].write(np.array(values, field.dtype).tobytes())
    if not count:
        raise Malformed(f"'{file.name}' has no lines of data")
    with _writing(cache):  # writes the bytes that are still in buffers
        for one in files.values():
            one.flush()
    return {
        name: np.memmap(files[name], field.dtype, "r", shape=(count, *field.shape)) for name, field in fields.items()
    }


@contextmanager
def _writing(folder: Path) -> Iterator[None]:
    """Raise UserError if a file in `folder` can't be written, e.g. because the disk is full."""
    try:
        yield
    except OSError as error:
        raise cannot_write(folder, error) from error


def _parsed(file: Path, parse: Callable[[bytes], Sequence[object]], heading: bool) -> Iterator[Sequence[object]]:
    for number, line in enumerate(lines_of(file), 1):
        if heading and number == 1:
            continue
        try:
            yield parse(line)
        except ValueError as error:
            reason = one_line(str(error), 200)
            raise Malformed(f"line {number:,} of '{file.name}' can't be read: {reason}") from error
