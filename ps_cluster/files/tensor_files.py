"""Write numpy arrays and a JSON header into one file, and read such a file from an untrusted source.

The format is safetensors (https://huggingface.co/docs/safetensors): a JSON table of names, dtypes, shapes and offsets,
then the arrays. The library `safetensors` checks that the arrays fill the rest of the file without gaps. This module
maps each array instead of copying it into memory.
"""

from __future__ import annotations

import json
import math
import mmap
import struct
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, BinaryIO
from zlib import crc32

import numpy as np
from pydantic import BaseModel, ValidationError
from safetensors import SafetensorError, safe_open

from ps_cluster.files.json_files import Model, parse_json
from ps_cluster.files.reading import open_regular
from ps_cluster.files.values import Malformed, first_error, one_line

MOST_TABLE_BYTES = 2**24  # the limit for the table at the beginning of the file, which contains the header
_DTYPES = {code: np.dtype(name) for code, name in {
    "BOOL": "bool", "U8": "uint8", "I32": "int32", "I64": "int64", "F32": "float32", "F64": "float64",
}.items()}  # fmt: skip
DTYPES = frozenset(_DTYPES.values())  # the dtypes that an array may have
_CODES = {dtype: code for code, dtype in _DTYPES.items()}
_HEADER, _CHECKSUMS = "header", "crc32"  # the keys of the two texts in the file's metadata
_LENGTH = struct.Struct("<Q")  # the length of the table, at the beginning of the file
_CHUNK_BYTES = 2**20
_LARGEST_CRC = 2**32 - 1


class Checksums(BaseModel):
    """CRC-32 of the header's text and of each array. An array's CRC covers its dtype and shape, then its values."""

    header: int
    arrays: dict[str, int]


@dataclass(frozen=True)
class Pieces:
    """An array that is read in pieces while it is written to a file, because it may be too large for the memory.

    `read` yields the array's values in order, in pieces of any length, each an array of `dtype`.
    """

    shape: tuple[int, ...]
    dtype: np.dtype
    read: Callable[[], Iterator[np.ndarray]]

    @classmethod
    def of(cls, array: np.ndarray) -> Pieces:
        """Return `Pieces` that consist of a single piece, the whole `array`."""
        return cls(array.shape, array.dtype, lambda: iter([np.ascontiguousarray(array)]))

    @property
    def nbytes(self) -> int:
        return math.prod(self.shape) * self.dtype.itemsize


def write_tensors(file: IO[bytes], header: BaseModel, arrays: Mapping[str, np.ndarray | Pieces]) -> None:
    """Write a header and arrays into an empty, seekable file, which `open_tensors` can open.

    Each array is written piece by piece while it is read. The checksums belong in the table at the beginning of the
    file, but are known only at the end, so the table is written last. The library `safetensors` is not used for this:
    it could only write to a path, or make a second copy of all arrays in memory. Raises ValueError if an array has a
    dtype that these files never contain, or if its pieces have more or fewer bytes in total than the array.
    """
    contents = {name: array if isinstance(array, Pieces) else Pieces.of(array) for name, array in arrays.items()}
    text, table, checksums, begin = header.model_dump_json(), {}, {}, 0
    by_item_size = sorted(contents.items(), key=lambda item: -item[1].dtype.itemsize)  # so that each array is aligned
    for name, array in by_item_size:
        if array.dtype not in _CODES:
            raise ValueError(f"'{name}' is {array.dtype}, which these files never contain")
        place = [begin, begin := begin + array.nbytes]
        table[name] = {"dtype": _CODES[array.dtype], "shape": array.shape, "data_offsets": place}
        checksums[name] = _LARGEST_CRC

    def beginning() -> bytes:
        sums = Checksums(header=crc32(text.encode()), arrays=checksums)
        words = {_HEADER: text, _CHECKSUMS: sums.model_dump_json()}
        return json.dumps({"__metadata__": words, **table}, separators=(",", ":")).encode()

    table_bytes = -(-len(beginning()) // 8) * 8  # no checksum has more digits than the largest one
    file.write(bytes(_LENGTH.size + table_bytes))
    for name in table:
        checksums[name] = _write_pieces(file, name, contents[name])
    file.seek(0)
    file.write(_LENGTH.pack(table_bytes) + beginning().ljust(table_bytes))


def _write_pieces(file: IO[bytes], name: str, array: Pieces) -> int:
    checksum, written = _seed(array.dtype, array.shape), 0
    for piece in array.read():
        content = piece.reshape(-1).view(np.uint8).data
        checksum = crc32(content, checksum)
        written += file.write(content)
    if written != array.nbytes:
        raise ValueError(f"'{name}' has {array.nbytes:,} bytes, but its pieces have {written:,}")
    return checksum


def open_tensors(path: Path, model: type[Model]) -> tuple[Model, Mapping[str, np.ndarray]]:
    """Return the header, as `model`, and read-only views of the arrays by name, in their order in the file.

    The views use no memory except the system's page cache. Each byte is read once, for its checksum. Raises OSError,
    or Malformed if the file has another format, is cut short or damaged, or its header does not fit `model`.
    """
    with open_regular(path) as file:
        table_bytes = _check_beginning(file)
        try:
            with safe_open(f"/dev/fd/{file.fileno()}", "np") as opened:
                words = opened.metadata() or {}
                slices = {name: opened.get_slice(name) for name in opened.offset_keys()}
                shapes = {name: tuple(one.get_shape()) for name, one in slices.items()}
                codes = {name: str(one.get_dtype()) for name, one in slices.items()}
        except SafetensorError as error:
            raise Malformed(one_line(str(error), 200)) from error
        checksums = _parsed(words, _CHECKSUMS, Checksums)
        if crc32(words.get(_HEADER, "").encode()) != checksums.header:
            raise Malformed("the checksum (CRC-32) of its header is wrong")
        header = _parsed(words, _HEADER, model)
        content = memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
        arrays, begin = {}, _LENGTH.size + table_bytes
        for name, shape in shapes.items():
            if (dtype := _DTYPES.get(codes[name])) is None:
                raise Malformed(f"{name!r:.60} is {codes[name]}, which these files never contain")
            end = begin + math.prod(shape) * dtype.itemsize
            _check_array(file, name, begin, end, _seed(dtype, shape), checksums)
            arrays[name] = np.ndarray(shape, dtype, content[begin:end])
            begin = end
    return header, arrays


def checksum_of(path: Path) -> int:
    """Return a CRC-32 that identifies the whole content of a file that `open_tensors` can open.

    It is the CRC-32 of the table at the beginning of the file, which contains the checksums of the header and arrays.
    """
    with open_regular(path) as file:
        return crc32(file.read(_LENGTH.unpack(file.read(_LENGTH.size))[0]))


def _check_beginning(file: BinaryIO) -> int:
    """Return the length in bytes of the table at the beginning of the file.

    Raises Malformed if the table is incomplete, or too large to be read.
    """
    beginning = file.read(_LENGTH.size)
    if len(beginning) < _LENGTH.size:
        raise Malformed("it has no table of its arrays")
    (table_bytes,) = _LENGTH.unpack(beginning)
    if table_bytes > MOST_TABLE_BYTES:
        raise Malformed(f"its table would have {table_bytes:,} bytes, more than {MOST_TABLE_BYTES:,}")
    if len(file.read(table_bytes)) < table_bytes:
        raise Malformed("its table is cut short")
    return int(table_bytes)


def _parsed(words: Mapping[str, str], name: str, model: type[Model]) -> Model:
    if name not in words:
        raise Malformed(f"it has no {name}")
    try:
        return model.model_validate(parse_json(words[name]))
    except ValidationError as error:
        raise Malformed(first_error(error, name)) from error
    except Malformed as error:
        raise Malformed(f"its {name} {error}") from error


def _check_array(file: BinaryIO, name: str, begin: int, end: int, checksum: int, checksums: Checksums) -> None:
    """Check the checksum of an array by reading the file instead of mapped memory.

    If the disk fails, reading raises an error, but an access to mapped memory would kill the process.
    """
    file.seek(begin)
    while begin < end and (chunk := file.read(min(_CHUNK_BYTES, end - begin))):
        checksum = crc32(chunk, checksum)
        begin += len(chunk)
    if checksum != checksums.arrays.get(name):
        raise Malformed(f"the checksum (CRC-32) of {name!r:.60} is wrong")


def _seed(dtype: np.dtype, shape: tuple[int, ...]) -> int:
    return crc32(json.dumps([dtype.name, shape]).encode())
