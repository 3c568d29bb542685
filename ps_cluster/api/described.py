"""Describe a function by bytes that are the same in every process that defines the same function."""

from __future__ import annotations

import io
import re
from collections import ChainMap
from types import CodeType
from typing import Any

import cloudpickle

_CLASS_ID = re.compile("[0-9a-f]{32}")  # a random name that cloudpickle gives to a class
_PLACES = ("__firstlineno__", "__static_attributes__")  # attributes of a class: its line number, and an unordered set


def described(function: Any) -> bytes:
    """Return bytes that depend on the code of a function and on the values that it uses, but not on its file or lines.

    Even for equal functions the bytes may differ if the function uses a set of strings, because the order of a set
    differs from process to process.
    """
    stream = io.BytesIO()
    _Describer(stream).dump(function)
    return stream.getvalue()


def _code(code: CodeType) -> tuple[Any, ...]:
    constants = tuple(sorted(map(repr, one)) if isinstance(one, frozenset) else one for one in code.co_consts)
    names = (code.co_name, code.co_names, code.co_varnames, code.co_freevars, code.co_cellvars)
    counts = (code.co_argcount, code.co_kwonlyargcount, code.co_flags)
    return tuple, ((code.co_code, code.co_exceptiontable, counts, names, constants),)


class _Describer(cloudpickle.Pickler):
    """A pickler like that of `cloudpickle.dumps`, which omits what differs between processes.

    The result is never unpickled.
    """

    dispatch_table = ChainMap({CodeType: _code}, cloudpickle.Pickler.dispatch_table)

    def reducer_override(self, value: Any) -> Any:
        reduced = super().reducer_override(value)
        if not isinstance(value, type) or not isinstance(reduced, tuple) or len(reduced) < 4:  # pickled without changes
            return reduced
        make, arguments, (attributes, slots), *rest = reduced
        known = tuple(one for one in arguments if not (isinstance(one, str) and _CLASS_ID.fullmatch(one)))
        kept = {name: one for name, one in attributes.items() if name not in _PLACES}
        return (make, known, (kept, slots), *rest)
