"""Read pickles of plain data and numpy arrays without running any code in them.

Even numpy's own `dtype.__setstate__` trusts its input: a crafted pickle turns raw bytes into pointers to objects. So if
a pickle names a class or function of numpy, this module uses a harmless stand-in of its own instead.
"""

from __future__ import annotations

import io
import pickle
import pickletools
import re
from typing import Any

import numpy as np

from ps_cluster.files.values import Malformed

MOST_OPERATIONS = 500_000  # a batch of CIFAR-10 has 30,108, and the training file of CIFAR-100 has about 250,000
MOST_TUPLES = 1000  # a batch has 5; hashing deeply nested tuples would overflow the stack

_WHOLE_NUMBERS = re.compile(r"[iu][1248]")


class PickledArray:
    """An array as a pickle describes it. Only `to_numpy` checks the description."""

    _state: tuple[Any, ...] | None = None

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        self._state = state

    def to_numpy(self) -> np.ndarray:
        """Return the array, read-only. It may have any shape.

        Raises ValueError if its values are not integers, or its bytes don't fit the shape.
        """
        if self._state is None:
            raise ValueError("an array without content")
        try:
            _, shape, dtype, column_order, content = self._state
            values: np.ndarray = np.frombuffer(content, _PickledDtype.to_numpy(dtype))
            return values.reshape(shape, order="F" if column_order else "C")
        except (TypeError, AttributeError, MemoryError) as error:
            raise ValueError(f"malformed array ({error})") from error


class _PickledDtype:
    _byte_order = "|"

    def __init__(self, code: str | bytes, *_: object) -> None:
        self._code = code.decode("ascii") if isinstance(code, bytes) else code

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        order = state[1]
        self._byte_order = order.decode("ascii") if isinstance(order, bytes) else order

    def to_numpy(self) -> np.dtype:
        if not _WHOLE_NUMBERS.fullmatch(self._code) or self._byte_order not in ("<", ">", "=", "|"):
            raise ValueError(f"an array of type {self._code!r} can't be read: only whole numbers can")
        return np.dtype(self._byte_order + self._code)


def _reconstruct(*_: object) -> PickledArray:
    return PickledArray()


_STAND_INS = {
    ("numpy", "ndarray"): PickledArray,
    ("numpy", "dtype"): _PickledDtype,
    ("numpy.core.multiarray", "_reconstruct"): _reconstruct,  # written by numpy 1
    ("numpy._core.multiarray", "_reconstruct"): _reconstruct,  # written by numpy 2
}


class _Refused(pickle.UnpicklingError):
    """Raised if a pickle is not damaged, but asks for more than plain data."""


class _PlainUnpickler(pickle.Unpickler):
    def __init__(self, content: bytes):
        super().__init__(io.BytesIO(content), encoding="bytes")
        self._bytes_left = len(content)

    def _encode(self, text: str, encoding: str) -> bytes:
        """Return the bytes for which `text` stands. Python 3 pickles bytes as text if Python 2 has to read the pickle.

        A pickle can use one text many times. Raises Malformed once the bytes from all calls together exceed the
        length of the pickle.
        """
        if encoding != "latin1":
            raise ValueError(f"bytes are read only in the encoding latin1, not in {encoding!r}")
        self._bytes_left -= len(text)
        if self._bytes_left < 0:
            raise Malformed("its pickle is shorter than the bytes that it unpacks to")
        return text.encode("latin1")

    def find_class(self, module: str, name: str) -> object:
        if (module, name) == ("_codecs", "encode"):
            return self._encode
        if (module, name) not in _STAND_INS:
            raise _Refused(f"its pickle imports {module}.{name}, which plain data does not need")
        return _STAND_INS[module, name]


def load_plain(content: bytes) -> object:
    """Unpickle containers, numbers, text and bytes; arrays become `PickledArray`, and Python 2's text becomes bytes.

    Raises UnpicklingError if `content` is no pickle, is damaged, or asks for anything else.
    """
    try:
        _check_operations(content)
        return _PlainUnpickler(content).load()
    except _Refused:
        raise
    except Exception as error:  # a damaged pickle can raise almost any exception
        raise pickle.UnpicklingError(f"damaged pickle, {type(error).__name__}: {error}") from error


def _check_operations(content: bytes) -> None:
    """Raise ValueError if an operation of a pickle exceeds a limit, or is incomplete.

    The limits apply to numbers for which the unpickler allocates memory without a check: lengths, and indices of its memo.
    """
    tuples = 0
    for number, (operation, argument, _) in enumerate(pickletools.genops(content)):
        if number >= MOST_OPERATIONS:
            raise Malformed(f"it has more than {MOST_OPERATIONS:,} operations")
        if operation.name in ("PUT", "BINPUT", "LONG_BINPUT") and not 0 <= (argument or 0) < MOST_OPERATIONS:
            raise Malformed("it uses an index of the memo that is too large for plain data")
        if operation.name == "FRAME" and (argument or 0) > len(content):
            raise Malformed("it has a frame that is longer than the whole pickle")
        if operation.name.startswith(("TUPLE", "FROZENSET")):
            tuples += 1
            if tuples > MOST_TUPLES:
                raise Malformed(f"it has more than {MOST_TUPLES:,} tuples")
