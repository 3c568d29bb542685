"""Read and write numbers and text strictly, and describe content that can't be accepted."""

from __future__ import annotations

import json
import math
import re
import reprlib
import unicodedata
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from ps_cluster.errors import did_you_mean

if TYPE_CHECKING:
    from pydantic import ValidationError


def one_line_text(value: object) -> str:
    """Return a value as text: a string as it is, and any other value as JSON on one line, which is also valid YAML."""
    return value if isinstance(value, str) else json.dumps(value)


def join_names(names: Sequence[str]) -> str:
    """Join names with commas, and the last two with "and"."""
    return f"{', '.join(names[:-1])} and {names[-1]}" if len(names) > 1 else names[0]


class Malformed(ValueError):
    """Raised for content that is damaged, too large or of a wrong type.

    The message does not name the file: the caller puts the file's name before it.
    """


# Read numbers in plain notation only: ASCII digits, a sign, a point, an exponent.
#
# Python also takes `1_000`, full-width digits and `infinity`, and YAML 1.1 reads `010` as 8 and `1:30` as 90.

MOST_DIGITS = 400  # of one number; Python's own limit is 4,300

_WHOLE = re.compile(r"[-+]?(0|[1-9][0-9]*)")
_DECIMAL = re.compile(r"[-+]?((0|[1-9][0-9]*)(\.[0-9]*)?|\.[0-9]+)([eE][-+]?[0-9]+)?")


def is_integer(text: str) -> bool:
    return _WHOLE.fullmatch(text) is not None


def is_decimal(text: str) -> bool:
    return _DECIMAL.fullmatch(text) is not None


def parse_integer(text: str) -> int:
    """Return the integer in `text`. Raises Malformed if it is not one, or has too many digits."""
    if not is_integer(text):
        raise Malformed("is not a whole number in plain digits")
    _check_length(text)
    return int(text)


def parse_decimal(text: str) -> float:
    """Return the finite number in `text`. Raises Malformed if it is not one, is too large, or has too many digits."""
    if not is_decimal(text):
        raise Malformed("is not a finite number in plain digits")
    _check_length(text)
    number = float(text)
    if not math.isfinite(number):
        raise Malformed("is too large a number")
    return number


def _check_length(digits: str) -> None:
    # Python needs quadratic time for more digits.
    if len(digits) > MOST_DIGITS:
        raise Malformed(f"has a number with {len(digits):,} digits, more than {MOST_DIGITS}")


# Make untrusted text safe to print as one line.

MOST_CHARACTERS = 1900
_UNSAFE = ("Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp")


def one_line(text: str, most: int = MOST_CHARACTERS) -> str:
    """Return `text` on one line of at most `most` characters, without control characters or terminal escapes.

    Escapes, control characters and marks that change the direction of writing become `?`. Long text loses its middle.
    """
    clean = "".join(" " if character.isspace() else _printable(character) for character in text)
    line = " ".join(clean.split())
    if len(line) <= most:
        return line
    half = (most - 5) // 2
    return f"{line[:half]} ... {line[-half:]}"


def reason(error: BaseException, most: int = MOST_CHARACTERS) -> str:
    """Return the message of an error, on one line.

    This is the system's message if the error has one, else the text of the error, or its class if it has no text.
    """
    of_system = error.strerror if isinstance(error, OSError) else None
    return one_line(of_system or str(error) or type(error).__name__, most)


def printable(text: str) -> str:
    """Return `text` with `?` for every control character, including line breaks; other characters stay."""
    return text if text.isascii() and text.isprintable() else "".join(map(_printable, text))


_NUMBER = re.compile(r"[+-][0-9]+(\.[0-9]+)?", re.ASCII)


def csv_cell(value: object) -> object:
    """Return a value for a CSV file. Text is made printable, and safe from spreadsheets that would run it as a formula.

    Text that begins like a formula gets an apostrophe in front, which tells spreadsheets that it is text (OWASP, "CSV
    Injection"). A number with a sign, such as "-1", stays as it is.
    """
    if not isinstance(value, str):
        return value
    text = printable(value)
    is_formula = text.startswith(("=", "+", "-", "@")) and not _NUMBER.fullmatch(text)
    return f"'{text}" if is_formula else text


_ADDRESS = re.compile(r"[a-z][a-z0-9+.-]+:/")


def refuse_address(path: str) -> None:
    """Raise Malformed if `path` is the address of a remote store, such as gs://bucket/runs.

    The system would take such an address for the path of a local folder.
    """
    if _ADDRESS.match(path):
        raise Malformed(
            "is the address of a remote store, but only folders of this machine are read and written: mount it (e.g. "
            "gcsfuse, s3fs), or copy the files"
        )


def _printable(character: str) -> str:
    return "?" if unicodedata.category(character) in _UNSAFE else character


# Write numbers, for programs and for people.


def finite(value: float) -> float | None:
    """Return `value`, or None if it is NaN or infinity, which JSON does not have."""
    return float(value) if math.isfinite(value) else None


def with_noun(number: float, singular: str, plural: str = "") -> str:
    """Return a number with its noun: "1 epoch", "2.5 epochs", "1,000 updates"."""
    text = f"{number:,}" if isinstance(number, int) else f"{number:g}"
    return f"{text} {singular if number == 1 else plural or f'{singular}s'}"


LARGE, VERY_LARGE = 1e4, 1e12


def number_text(value: float) -> str:
    """Return a number with four significant digits, but write a large one in full: "22,460" instead of "2.246e+04"."""
    return f"{value:,.0f}" if LARGE <= abs(value) < VERY_LARGE else f"{value:.4g}"


# Report in one line what a model found wrong with its input.

MOST_ERRORS = 10_000  # the most errors that are looked at; each takes 1 KB

_short = reprlib.Repr()
_short.maxlevel, _short.maxstring, _short.maxother = 2, 80, 80


def first_error(error: ValidationError, origin: str, known: str = "", names: Iterable[str] = ()) -> str:
    """Return the first problem, on one line that names the source of the input (`origin`), the field and the value.

    `names`: all known keys. The message about an unknown key names the known key that is most similar. `known`: the
    page that lists all keys, for the same message.
    """
    if error.error_count() > MOST_ERRORS:
        return f"{origin}: does not hold what is expected: {error.error_count():,} values are wrong"
    first = error.errors(include_url=False)[0]
    field = ".".join(str(part) for part in first["loc"])
    more = f" (and {error.error_count() - 1} more)" if error.error_count() > 1 else ""
    if first["type"] == "extra_forbidden":
        hints = [did_you_mean(field, names).strip(), f"{known} lists all keys" if known else ""]
        hint_text = " ".join(hint for hint in hints if hint)
        return f"{origin}: unknown key '{field}'{f'; {hint_text}' if hint_text else ''}{more}"
    if first["type"] == "missing":
        return f"{origin}: '{field}' is missing{more}"
    reason = first["msg"].removeprefix("Value error, ")
    if first["type"] in ("model_type", "dict_type"):
        reason = "a mapping of names to values is needed"
    elif not field:  # settings that don't fit together: the reason names each
        return f"{origin}: {reason}"
    if first["type"] == "literal_error" and isinstance(first["input"], str):
        known_values = re.findall("'([^']*)'", first["ctx"]["expected"])
        reason = f"{did_you_mean(first['input'], known_values)}{reason}"
    where = f"{origin}: {field}" if field else origin
    return f"{where}: got {one_line(_short.repr(first['input']), 300)}: {reason}{more}"
