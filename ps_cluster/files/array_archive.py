"""Write a zip of numpy arrays, and read one from an untrusted source.

Its members are uncompressed, and each is mapped without a copy. One of them, the header, is JSON.
"""

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
from typing import IO, BinaryIO, NamedTuple, TypeVar

import numpy as np
from pydantic import BaseModel, ValidationError

from ps_cluster.files.json_files import parse_json
from ps_cluster.files.malformed import Malformed
from ps_cluster.files.opening import open_regular
from ps_cluster.files.plain_text import one_line
from ps_cluster.files.validation import first_error

MOST_BYTES = 2**32  # a larger zip has another format
MOST_MEMBERS = 1000
MOST_DIRECTORY_BYTES = 2**20
MOST_HEADER_BYTES = 2**24
DTYPES = tuple(map(np.dtype, ("bool", "int32", "int64", "uint8", "float32", "float64")))

_HEADER = "header"  # the member that is JSON
_MTIME = (1980, 1, 1, 0, 0, 0)  # a fixed time, the earliest in zip: equal content makes equal files
_CHUNK_BYTES = 2**20
_LOCATOR_BYTES = 20  # refers to the directory of a zip64, before the end record
_END = struct.Struct("<4s4H2LH")  # signature, disks, members here and in all, size and place of the directory, comment
_LOCAL = struct.Struct("<26x2H")  # ends with the lengths of a member's name and of its extra field
_ARRAY_HEADER_BYTES = 10_000

Model = TypeVar("Model", bound=BaseModel)


class ArrayHeader(NamedTuple):
    """The header of an array as `numpy.save` writes it. `column_order`: whether the first axis varies fastest."""

    shape: tuple[int, ...]
    column_order: bool
    dtype: np.dtype
    length: int  # in bytes


def read_header(beginning: bytes) -> ArrayHeader:
    """Return the header with which `beginning` begins. Raises Malformed if it begins with none."""
    file = io.BytesIO(beginning)
    try:
        version = np.lib.format.read_magic(file)
        read = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}[version]
        return ArrayHeader(*read(file), file.tell())
    except (ValueError, KeyError, TypeError, EOFError, RecursionError, MemoryError, SyntaxError) as error:
        raise Malformed("no header of an array") from error


@dataclass(frozen=True)
class Member:
    """An uncompressed member whose CRC-32 is right."""

    name: str
    content: memoryview

    def read(self, most_bytes: int) -> bytes:
        """Return a copy. Raises Malformed if it has more than `most_bytes` bytes."""
        if len(self.content) > most_bytes:
            raise Malformed(f"has more than {most_bytes:,} bytes")
        return bytes(self.content)

    def array(self) -> np.ndarray:
        """Return a read-only view of the array. Raises Malformed if the member is not an array of one of DTYPES."""
        try:
            header = read_header(bytes(self.content[:_ARRAY_HEADER_BYTES]))
        except Malformed as error:
            raise Malformed(f"{self.name}: {error}") from error
        shape, column_order, dtype = header.shape, header.column_order, header.dtype
        if dtype not in DTYPES or column_order:
            raise Malformed(f"{self.name}: an array of {str(dtype):.60}, which it never is")
        content = self.content[header.length :]
        if min(shape, default=1) < 0 or math.prod(shape) * dtype.itemsize != len(content):
            raise Malformed(f"{self.name}: {len(content):,} bytes are not {dtype} {str(list(shape)):.60}")
        return np.ndarray(shape, dtype, content)


def write_members(file: IO[bytes], header: BaseModel, arrays: Mapping[str, np.ndarray]) -> None:
    """Write a header and arrays into an empty file, for `open_members`."""
    with zipfile.ZipFile(file, "w", zipfile.ZIP_STORED) as archive:
        archive.writestr(zipfile.ZipInfo(_HEADER, _MTIME), header.model_dump_json())
        for name, array in arrays.items():
            with archive.open(zipfile.ZipInfo(f"{name}.npy", _MTIME), "w", force_zip64=True) as member:
                np.lib.format.write_array(member, np.asarray(array), allow_pickle=False)


def header_of(members: Mapping[str, Member], model: type[Model]) -> Model:
    """Return the header. Raises Malformed if there is none, or if it does not fit `model`."""
    if _HEADER not in members:
        raise Malformed("it has no header")
    try:
        return model.model_validate(parse_json(members[_HEADER].read(MOST_HEADER_BYTES)))
    except ValidationError as error:
        raise Malformed(first_error(error, _HEADER)) from error
    except Malformed as error:
        raise Malformed(f"its header {error}") from error


def array_of(members: Mapping[str, Member], name: str) -> np.ndarray:
    """Return a read-only view of an array. Raises Malformed if there is none of this name."""
    if (member := f"{name}.npy") not in members:
        raise Malformed(f"it has no array '{name}'")
    return members[member].array()


def open_members(path: Path) -> Mapping[str, Member]:
    """Return the members of an archive by name. They use no memory but the system's cache of the file.

    Raises:
      OSError: the system refused.
      Malformed: not such an archive, damaged, larger than 4 GiB, or with a compressed member.
    """
    with open_regular(path) as file:
        _check_end(file)
        infos = _checked(file)
        content = memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
    return {info.filename: Member(info.filename, _content_of(info, content)) for info in infos}


def _check_end(file: BinaryIO) -> None:
    """Limit how much zipfile will read at once, before it reads."""
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
        if error.errno == errno.EINVAL:  # an offset before the beginning
            raise Malformed("it names a place that is not there") from error
        raise
    except (zipfile.BadZipFile, EOFError, NotImplementedError, RuntimeError, ValueError, struct.error) as error:
        if isinstance(error.__context__, OSError):  # zipfile turned it into "not a zip file"
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
