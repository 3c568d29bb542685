"""Make untrusted text safe to print as one line."""

from __future__ import annotations

import unicodedata

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


def printable(text: str) -> str:
    """Return `text` with `?` for every control character, including line breaks; other characters stay."""
    return text if text.isascii() and text.isprintable() else "".join(map(_printable, text))


def cell(value: object) -> object:
    """Return a value for a CSV file: text is printable, and no formula that a spreadsheet would compute.

    A sign that begins a formula gets an apostrophe before it, as spreadsheets write text (OWASP, "CSV Injection").
    """
    if not isinstance(value, str):
        return value
    text = printable(value)
    return f"'{text}" if text.startswith(("=", "+", "-", "@")) else text


def _printable(character: str) -> str:
    return "?" if unicodedata.category(character) in _UNSAFE else character
