"""Read arrays in the IDX format of MNIST, gzipped or not (http://yann.lecun.com/exdb/mnist, "File formats")."""

from __future__ import annotations

import gzip
import io
import math
import struct
from pathlib import Path
from typing import BinaryIO

import numpy as np

from ps_cluster.files.opening import open_regular

_BYTES = 0x08  # the type code of uint8, the only one in these sets
_GZIP = b"\x1f\x8b"


def read_idx(path: Path, shape: tuple[int, ...]) -> np.ndarray:
    """Return the array, uint8, which must have this shape. Nothing beyond it is read.

    Raises:
      OSError: the system refused, or damaged compression.
      EOFError: cut short.
      ValueError: another format, type or shape.
    """
    with open_regular(path) as file:
        packed = file.read(2) == _GZIP
        file.seek(0)
        with gzip.open(file) if packed else io.BufferedReader(file) as stream:  # type: ignore[arg-type, type-var]
            return _read(stream, shape)  # type: ignore[arg-type]


def _read(stream: BinaryIO, shape: tuple[int, ...]) -> np.ndarray:
    header = struct.Struct(f">HBB{len(shape)}I")
    beginning = stream.read(header.size)
    if len(beginning) < header.size:
        raise EOFError("it is cut short")
    zero, code, dimensions, *found = header.unpack(beginning)
    if (zero, code, dimensions) != (0, _BYTES, len(shape)):
        raise ValueError(f"no IDX file of bytes in {len(shape)} dimensions")
    if tuple(found) != shape:
        raise ValueError(f"an array of {found} instead of {list(shape)}")
    size = math.prod(shape)
    content = stream.read(size + 1)
    if len(content) < size:
        raise EOFError("it is cut short")
    if len(content) > size:
        raise ValueError("it is longer than it says")
    return np.frombuffer(content, np.uint8).reshape(shape)
