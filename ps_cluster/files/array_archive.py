"""Read a zip of numpy arrays that somebody else may have written: stored members alone, each mapped and not copied."""

from __future__ import annotations

import errno
import io
import math
import mmap
import struct
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import numpy as np

from ps_cluster.files.malformed import Malformed
from ps_cluster.files.opening import open_regular
from ps_cluster.files.plain_text import one_line

MOST_BYTES = 2**32  # a zip of more is written otherwise
MOST_MEMBERS = 1000
MOST_DIRECTORY_BYTES = 2**20
DTYPES = tuple(map(np.dtype, ("bool", "int32", "int64", "uint8", "float32", "float64")))

_CHUNK_BYTES = 2**20
_LOCATOR_BYTES = 20  # leads to a directory of zip64, in front of the end
_END = struct.Struct("<4s4H2LH")  # signature, disks, members here and in all, bytes and place of the directory, comment
_LOCAL = struct.Struct("<26x2H")  # up to the lengths of a member's name and of what is added to it
_ARRAY_HEADER_BYTES = 10_000


@dataclass(frozen=True)
class Member:
    """A stored member whose CRC-32 was found right."""

    name: str
    content: memoryview

    def read(self, most_bytes: int) -> bytes:
        """Return a copy. Raises Malformed where it has more bytes."""
        if len(self.content) > most_bytes:
            raise Malformed(f"has more than {most_bytes:,} bytes")
        return bytes(self.content)

    def array(self) -> np.ndarray:
        """Return a view of the array, read-only, of one of DTYPES. Raises Malformed where the member is not just that."""
        beginning = io.BytesIO(self.content[:_ARRAY_HEADER_BYTES])
        try:
            version = np.lib.format.read_magic(beginning)
            read = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}[version]
            shape, column_order, dtype = read(beginning)
        except (ValueError, KeyError, TypeError, EOFError, RecursionError, MemoryError, SyntaxError) as error:
            raise Malformed(f"{self.name}: no header of an array") from error
        if dtype not in DTYPES or column_order:
            raise Malformed(f"{self.name}: an array of {str(dtype):.60}, which it never is")
        content = self.content[beginning.tell() :]
        if min(shape, default=1) < 0 or math.prod(shape) * dtype.itemsize != len(content):
            raise Malformed(f"{self.name}: {len(content):,} bytes are not {dtype} {str(list(shape)):.60}")
        return np.ndarray(shape, dtype, content)


def open_members(path: Path) -> Mapping[str, Member]:
    """Return the members of an archive by name. All memory that they take is the system's own copy of the file.

    Raises:
      OSError: the system refused.
      Malformed: no such archive, damaged, with a member that is compressed, or larger than 4 GiB.
    """
    with open_regular(path) as file:
        _check_end(file)
        infos = _checked(file)
        content = memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
    return {info.filename: Member(info.filename, _content_of(info, content)) for info in infos}


def _check_end(file: BinaryIO) -> None:
    """Bound what zipfile will read at once, before it does."""
    size = file.seek(0, io.SEEK_END)
    file.seek(max(0, size - _END.size - _LOCATOR_BYTES))
    end = file.read()
    if size > MOST_BYTES:
        raise Malformed(f"has more than {MOST_BYTES:,} bytes")
    if len(end) < _END.size or not end[-_END.size :].startswith(b"PK\5\6"):
        raise Malformed("its end is not that of a zip file")
    *_, here, members, directory_bytes, _, comment = _END.unpack(end[-_END.size :])
    if here != members or comment or end.startswith(b"PK\6\7"):
        raise Malformed("it is a zip file of another kind")
    if members > MOST_MEMBERS or directory_bytes > MOST_DIRECTORY_BYTES:
        raise Malformed(f"it lists {members:,} members in {directory_bytes:,} bytes")


def _checked(file: BinaryIO) -> list[zipfile.ZipInfo]:
    try:
        with zipfile.ZipFile(file) as archive:
            infos = archive.infolist()
            if len({info.filename for info in infos}) < len(infos):
                raise Malformed("it has two members of one name")
            for info in infos:
                _check(archive, info)
    except OSError as error:
        if error.errno == errno.EINVAL:  # a place before the beginning
            raise Malformed("it names a place that is not there") from error
        raise
    except (zipfile.BadZipFile, EOFError, NotImplementedError, RuntimeError, ValueError, struct.error) as error:
        if isinstance(error.__context__, OSError):  # of which zipfile made that the file is no zip
            raise error.__context__ from error
        raise error if isinstance(error, Malformed) else Malformed(one_line(str(error)) or type(error).__name__)
    return infos


def _check(archive: zipfile.ZipFile, info: zipfile.ZipInfo) -> None:
    """Read a member through, so that zipfile compares its CRC-32."""
    if info.compress_type != zipfile.ZIP_STORED or info.file_size != info.compress_size:
        raise Malformed(f"its member {info.filename!r:.60} is compressed")
    with archive.open(info) as member:
        while member.read(_CHUNK_BYTES):
            pass


def _content_of(info: zipfile.ZipInfo, content: memoryview) -> memoryview:
    name_bytes, extra_bytes = _LOCAL.unpack_from(content, info.header_offset)
    begin = info.header_offset + _LOCAL.size + name_bytes + extra_bytes
    return content[begin : begin + info.file_size]
