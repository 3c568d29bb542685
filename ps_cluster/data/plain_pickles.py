"""Read pickles of plain data and numpy arrays without running any code in them.

Even numpy's own `dtype.__setstate__` trusts its input: a crafted pickle turns raw bytes into pointers to objects. So
the names that a pickled array refers to are mapped to the harmless stand-ins below, never to numpy.
"""

from __future__ import annotations

import io
import pickle
import pickletools
import re
from typing import Any, Literal

import numpy as np

from ps_cluster.files.values import Malformed

MOST_OPERATIONS = 500_000  # a batch of CIFAR-10 has 30,108, the training images of CIFAR-100 some 250,000
MOST_TUPLES = 1000  # a batch has 5; hashing deeply nested tuples would overflow the stack

_WHOLE_NUMBERS = re.compile(r"[<>=|][iu][1248]")


class PickledArray:
    """An array as a pickle describes it. Only `to_numpy` checks the description."""

    _state: tuple[Any, ...] | None = None

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        self._state = state

    def to_numpy(self) -> np.ndarray:
        """Return the array of whole numbers, read-only. Raises ValueError for another type, or too few bytes."""
        try:
            _, shape, dtype, column_order, content = self._state or ()
            order: Literal["F", "C"] = "F" if column_order else "C"
            array: np.ndarray = np.frombuffer(content, _PickledDtype.to_numpy(dtype)).reshape(shape, order=order)
            return array
        except (TypeError, AttributeError, MemoryError) as error:
            raise ValueError(f"malformed array ({error})") from error


class _PickledDtype:
    _byte_order: str | bytes = "|"

    def __init__(self, code: str | bytes, *_: object) -> None:
        self._code = code

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        self._byte_order = state[1]

    def to_numpy(self) -> np.dtype:
        order, code = (
            part.decode("ascii") if isinstance(part, bytes) else part for part in (self._byte_order, self._code)
        )
        if not _WHOLE_NUMBERS.fullmatch(order + code):
            raise ValueError(f"an array of type {code!r} is not read: it needs whole numbers")
        return np.dtype(order + code)


def _reconstruct(*_: object) -> PickledArray:
    return PickledArray()


def _encode(text: str, encoding: str) -> bytes:
    """Return the bytes that Python 3 has written as text for Python 2."""
    if encoding != "latin1":
        raise ValueError(f"bytes in the encoding {encoding!r} are not read, only in latin1")
    return text.encode("latin1")


_STAND_INS = {
    ("numpy", "ndarray"): PickledArray,
    ("numpy", "dtype"): _PickledDtype,
    ("numpy.core.multiarray", "_reconstruct"): _reconstruct,  # written by numpy 1
    ("numpy._core.multiarray", "_reconstruct"): _reconstruct,  # written by numpy 2
    ("_codecs", "encode"): _encode,
}


class _Refused(pickle.UnpicklingError):
    """The pickle is not damaged, but it asks for more than plain data."""


class _PlainUnpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> object:
        if (module, name) not in _STAND_INS:
            raise _Refused(f"its pickle asks for {module}.{name}, which data does not need")
        return _STAND_INS[module, name]


def load_plain(content: bytes) -> object:
    """Unpickle containers, numbers, text and bytes; arrays become `PickledArray`, and Python 2's text becomes bytes.

    A pickle can ask for much more memory than it has itself, so call this within `bounded_memory`. Raises
    pickle.UnpicklingError if `content` is no pickle, is damaged, or asks for anything else.
    """
    try:
        _check_operations(content)
        return _PlainUnpickler(io.BytesIO(content), encoding="bytes").load()
    except _Refused:
        raise
    except Exception as error:  # a damaged pickle can raise almost any exception
        raise pickle.UnpicklingError(f"damaged pickle, {type(error).__name__}: {error}") from error


def _check_operations(content: bytes) -> None:
    """Raise ValueError if the pickle has too many operations or tuples, or an operation is incomplete."""
    tuples = 0
    for number, (operation, _, _) in enumerate(pickletools.genops(content), 1):
        tuples += operation.name.startswith(("TUPLE", "FROZENSET"))
        if number > MOST_OPERATIONS or tuples > MOST_TUPLES:
            raise Malformed(f"it has more than {MOST_OPERATIONS:,} operations, or {MOST_TUPLES:,} tuples")
