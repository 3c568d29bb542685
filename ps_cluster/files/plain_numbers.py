"""Read numbers in plain notation only: ASCII digits, a sign, a point, an exponent.

Python also takes `1_000`, full-width digits and `infinity`, and YAML 1.1 reads `010` as 8 and `1:30` as 90.
"""

from __future__ import annotations

import math
import re

from ps_cluster.files.malformed import Malformed

MOST_DIGITS = 400  # of one number; Python's own limit is 4,300

_WHOLE = re.compile(r"[-+]?(0|[1-9][0-9]*)")
_DECIMAL = re.compile(r"[-+]?((0|[1-9][0-9]*)(\.[0-9]*)?|\.[0-9]+)([eE][-+]?[0-9]+)?")


def is_whole(text: str) -> bool:
    """Return whether `text` is written as a whole number."""
    return _WHOLE.fullmatch(text) is not None


def is_decimal(text: str) -> bool:
    """Return whether `text` is written as a number."""
    return _DECIMAL.fullmatch(text) is not None


def whole(text: str) -> int:
    """Return the whole number in `text`. Raises Malformed if it is none or has too many digits."""
    if not is_whole(text):
        raise Malformed("is no whole number in plain digits")
    _check_length(text)
    return int(text)


def decimal(text: str) -> float:
    """Return the finite number in `text`. Raises Malformed if it is none, too large, or has too many digits."""
    if not is_decimal(text):
        raise Malformed("is no finite number in plain digits")
    _check_length(text)
    number = float(text)
    if not math.isfinite(number):
        raise Malformed("is too large a number")
    return number


def _check_length(digits: str) -> None:
    # Python needs quadratic time for more digits.
    if len(digits) > MOST_DIGITS:
        raise Malformed(f"has a number of {len(digits):,} digits")
