"""Open users' .npy and .npz files. Arrays are memory-mapped where possible. Code in a file is never run."""

from __future__ import annotations

import io
import os
import struct
import zipfile
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import IO, BinaryIO, Literal, NamedTuple

import numpy as np

from ps_cluster.files.reading import most_memory, open_regular
from ps_cluster.files.values import Malformed, one_line

MOST_MEMBERS = 1000
_PIECE_BYTES = 2**20
_HEADER_BYTES = 10_000
_LOCAL = struct.Struct("<26x2H")  # a member's local header, which ends with the lengths of its name and extra field


class ArrayLayout(NamedTuple):
    """The dtype, shape and position of an array in a file."""

    dtype: np.dtype
    shape: tuple[int, ...]
    order: Literal["C", "F"]
    begin: int  # the offset of its values in the file, in bytes


def layout_of(path: Path, name: str) -> ArrayLayout | None:
    """Return the layout of the array `name` in an .npz file or a folder of .npy files; None if it can't be read.

    In the layout of an array in an .npz file, `begin` is an offset in the .npy file that the archive contains.
    """
    try:
        if path.is_dir():
            with open_regular(path / f"{name}.npy") as file:
                return _read_layout(name, file)
        with open_regular(path) as file, zipfile.ZipFile(file) as archive, archive.open(f"{name}.npy") as member:
            return _read_layout(name, member)
    except (OSError, KeyError, ValueError, zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError):
        return None


def open_npz(path: Path) -> Mapping[str, np.ndarray]:
    """Return the arrays of an .npz file by name. They are memory maps, but compressed arrays are read into memory.

    Raises Malformed if the file is damaged, is not an .npz file, holds Python objects, or has too many arrays, or if
    its compressed arrays would take too much memory.
    """
    try:
        with open_regular(path) as file, zipfile.ZipFile(file) as archive:
            infos = archive.infolist()
            compressed = sum(info.file_size for info in infos if info.compress_type != zipfile.ZIP_STORED)
            if len(infos) > MOST_MEMBERS:
                raise Malformed(f"it has more than {MOST_MEMBERS:,} members")
            if compressed > (most := most_memory(path.stat().st_size)):
                raise Malformed(
                    f"its compressed arrays take {compressed / 1e9:.1f} GB of memory, more than the "
                    f"{most / 1e9:.1f} GB allowed for a file of its size: save them with numpy.savez, or as .npy files"
                )
            return {info.filename.removesuffix(".npy"): _member(path, file, archive, info) for info in infos}
    except (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, RuntimeError, struct.error) as error:
        raise Malformed(f"it is not an .npz file, or is damaged ({one_line(str(error), 200)})") from error


def open_npy(path: Path) -> np.ndarray:
    """Return the array of an .npy file as a memory map.

    Raises Malformed if the file is damaged, is not an .npy file, or holds Python objects.
    """
    with open_regular(path) as file:
        return _mapped(path, path.name, _read_layout(path.name, file), os.fstat(file.fileno()).st_size)


def _member(path: Path, file: BinaryIO, archive: zipfile.ZipFile, info: zipfile.ZipInfo) -> np.ndarray:
    name = info.filename
    if info.compress_type == zipfile.ZIP_STORED and not info.flag_bits & 1:
        file.seek(info.header_offset)
        name_bytes, extra_bytes = _LOCAL.unpack(file.read(_LOCAL.size))
        begin = info.header_offset + _LOCAL.size + name_bytes + extra_bytes
        file.seek(begin)
        return _mapped(path, name, _read_layout(name, file), begin + info.file_size)
    with archive.open(info) as member:
        found = _read_layout(name, member)
        content = bytearray()
        while piece := member.read(_PIECE_BYTES):  # a single read would hold the array in memory twice
            content += piece
    _check_size(name, found, len(content))
    return np.ndarray(found.shape, found.dtype, content, order=found.order)


def _mapped(path: Path, name: str, layout: ArrayLayout, end: int) -> np.ndarray:
    """Memory-map an array in a file. `end`: the offset in the file at which the array's values end, in bytes."""
    _check_size(name, layout, end - layout.begin)
    if 0 in layout.shape:
        return np.empty(layout.shape, layout.dtype)
    return np.memmap(path, layout.dtype, "r", layout.begin, layout.shape, layout.order)


def _check_size(name: str, layout: ArrayLayout, size: int) -> None:
    needed = layout.dtype.itemsize * int(np.prod(layout.shape, dtype=object))
    if needed > size:
        raise Malformed(f"{name} ends after {max(0, size):,} of {needed:,} bytes")


def _read_layout(name: str, file: IO[bytes]) -> ArrayLayout:
    """Read an array's header, and leave the file positioned at its first value. Raises Malformed for Python objects."""
    start, beginning = file.tell(), io.BytesIO(file.read(_HEADER_BYTES))
    try:
        version = np.lib.format.read_magic(beginning)
        read = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}[version]
        shape, column_order, dtype = read(beginning)
    except (ValueError, KeyError, TypeError, EOFError, RecursionError, MemoryError, SyntaxError) as error:
        raise Malformed(f"{name} is not an array that numpy.save has written") from error
    if dtype.hasobject:
        raise Malformed(f"{name} holds Python objects, which could run code: save plain arrays of numbers")
    if min(shape, default=0) < 0:
        raise Malformed(f"{name} has the impossible shape {list(shape)}")
    file.seek(begin := start + beginning.tell())
    return ArrayLayout(dtype, shape, "F" if column_order else "C", begin)
