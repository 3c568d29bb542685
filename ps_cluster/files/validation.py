"""Report in one line what a model found wrong with its input."""

from __future__ import annotations

import re
import reprlib
from collections.abc import Iterable

from pydantic import ValidationError

from ps_cluster.errors import did_you_mean
from ps_cluster.files.plain_text import one_line

MOST_ERRORS = 10_000  # most errors looked at; each takes 1 KB

_short = reprlib.Repr()
_short.maxlevel, _short.maxstring, _short.maxother = 2, 80, 80


def first_error(error: ValidationError, origin: str, known: str = "", names: Iterable[str] = ()) -> str:
    """Return the first problem, on one line that names the field and the value.

    Args:
      origin: where the input is from.
      known: the page that lists all keys, or "".
      names: all keys, for the one that is nearest to an unknown one.
    """
    if error.error_count() > MOST_ERRORS:
        return f"{origin}: holds something else: {error.error_count():,} values are wrong"
    first = error.errors(include_url=False)[0]
    field = ".".join(str(part) for part in first["loc"])
    more = f" (and {error.error_count() - 1} more)" if error.error_count() > 1 else ""
    if first["type"] == "extra_forbidden":
        hints = [did_you_mean(field, names).strip(), f"{known} lists all that there are" if known else ""]
        told = " ".join(hint for hint in hints if hint)
        return f"{origin}: unknown key '{field}'{f'; {told}' if told else ''}{more}"
    if first["type"] == "missing":
        return f"{origin}: '{field}' is missing{more}"
    reason = first["msg"].removeprefix("Value error, ")
    if first["type"] in ("model_type", "dict_type"):
        reason = "names with values are needed"
    elif not field:  # settings that don't fit together: the reason names each
        return f"{origin}: {reason}"
    if first["type"] == "literal_error" and isinstance(first["input"], str):
        known_values = re.findall("'([^']*)'", first["ctx"]["expected"])
        reason = f"{did_you_mean(first['input'], known_values)}{reason}"
    where = f"{origin}: {field}" if field else origin
    return f"{where}: got {one_line(_short.repr(first['input']), 300)}: {reason}{more}"
