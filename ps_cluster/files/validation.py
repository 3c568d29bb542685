"""Report in one line what a model found wrong with its input."""

from __future__ import annotations

import reprlib

from pydantic import ValidationError

from ps_cluster.files.plain_text import one_line

MOST_ERRORS = 10_000  # most errors looked at; each takes 1 KB

_short = reprlib.Repr()
_short.maxlevel, _short.maxstring, _short.maxother = 2, 80, 80


def first_error(error: ValidationError, origin: str, known: str = "") -> str:
    """Return the first problem, on one line that names the field and the value.

    Args:
      origin: where the input is from.
      known: the file that lists all keys, or "".
    """
    if error.error_count() > MOST_ERRORS:
        return f"{origin}: holds something else: {error.error_count():,} values are wrong"
    first = error.errors(include_url=False)[0]
    field = ".".join(str(part) for part in first["loc"])
    more = f" (and {error.error_count() - 1} more)" if error.error_count() > 1 else ""
    if first["type"] == "extra_forbidden":
        return f"{origin}: unknown key '{field}'{f'; {known} lists all that there are' if known else ''}{more}"
    if first["type"] == "missing":
        return f"{origin}: '{field}' is missing{more}"
    reason = first["msg"].removeprefix("Value error, ")
    if first["type"] in ("model_type", "dict_type"):
        reason = "names with values are needed"
    elif not field:  # settings that don't fit together: the reason names each
        return f"{origin}: {reason}"
    where = f"{origin}: {field}" if field else origin
    return f"{where}: got {one_line(_short.repr(first['input']), 300)}: {reason}{more}"
