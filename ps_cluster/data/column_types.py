"""Give the columns of several tables the same types, those of the first; refuse what is something else there."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ps_cluster.files.malformed import Malformed
from ps_cluster.files.plain_text import one_line

Types = Mapping[str, Any]
"""Name of a column → type of pyarrow."""


def wide(kind: Any) -> Any:
    """Return the type that also holds what other rows of such a column may have: whole numbers may get a fraction."""
    import pyarrow

    return pyarrow.float64() if pyarrow.types.is_integer(kind) else kind


def types_like(wanted: Types, own: Types, what: str) -> dict[str, Any]:
    """Return the types of a table's columns: as `wanted`, where it names them.

    Raises:
      Malformed: a column can't get the type that is wanted. The message names it, and `what`.
    """
    found = {name: wanted.get(name, _plain(kind)) for name, kind in own.items()}
    for name, kind in own.items():
        if not _is_like(kind, found[name]):
            raise Malformed(
                f"the column '{name}' of {what} is {kind}, and the table before has {found[name]}: save both as one type"
            )
    return found


def as_types(types: Types, batch: Any, what: str) -> Any:
    """Return the columns that `types` names of a record batch, in these types. Raises Malformed where a value has none."""
    import pyarrow

    columns = []
    for name, kind in types.items():
        column = batch.column(name)
        try:
            columns.append(column if column.type == kind else column.cast(wide(kind)))
        except pyarrow.ArrowException as error:
            told = one_line(str(error), 200)
            raise Malformed(f"the column '{name}' of {what} can't be read as {kind}: {told}") from error
    return pyarrow.RecordBatch.from_arrays(columns, list(types))


def _plain(kind: Any) -> Any:
    """Return the type of the values: text is one type, and so is a column in which all are missing."""
    import pyarrow
    from pyarrow import types

    if types.is_dictionary(kind):
        return _plain(kind.value_type)
    texts = (types.is_null, types.is_large_string, types.is_string_view)
    return pyarrow.string() if any(test(kind) for test in texts) else kind


def _is_like(own: Any, wanted: Any) -> bool:
    """Return whether values mean the same as another type: numbers in one table may not be dates in the other."""
    from pyarrow import types

    if _plain(own) == wanted or types.is_null(own) or types.is_string(wanted):  # any code is a name
        return True
    return any(
        any(test(own) for test in alike) and any(test(wanted) for test in alike)
        for alike in ((types.is_integer, types.is_floating, types.is_decimal), (types.is_temporal,))
    )
