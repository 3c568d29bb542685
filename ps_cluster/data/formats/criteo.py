"""Read the data format `criteo`: clicks as in Criteo's data for Kaggle (2014) and in its terabyte of click logs."""

from __future__ import annotations

import math
import os
from pathlib import Path

from pydantic import Field

from ps_cluster.config.datasets import Contents, DataSettings
from ps_cluster.data.formats import PathFormat
from ps_cluster.data.line_files import arrays_of_lines, lines_of
from ps_cluster.data.sets.clicks import COLUMNS, NUMBERS, click_spec
from ps_cluster.files.values import Malformed

_GOLDEN = 0x9E3779B97F4A7C15  # 2^64 / the golden ratio: multiplicative hashing (Knuth, TAOCP 3, 6.4)
MISSING = 0  # the key of an empty column; hashed keys count from 1


class CriteoSettings(DataSettings):
    """Settings of a data set of clicks in Criteo's format."""

    rows: int = Field(
        default=100_000,
        ge=2,
        le=100_000_000,
        description="Number of keys that the values of each column are hashed to.",
    )
    held_out: float = Field(
        default=0.1, gt=0, lt=1, description="Share of the lines, taken from the end, that is held out to test on."
    )


def key_of(value: bytes, rows: int) -> int:
    """Hash a hexadecimal value to a key from 1 to rows - 1, or an empty value to 0. All machines give the same key."""
    return 1 + (int(value, 16) * _GOLDEN % 2**64 >> 32) % (rows - 1) if value else MISSING


def number_of(value: bytes) -> float:
    """Return log(1 + x) for an integer x, given as text. A negative or missing x counts as 0 (Naumov et al. 2019)."""
    return math.log1p(max(int(value), 0)) if value else 0.0


class Criteo(PathFormat[CriteoSettings]):
    """Click logs in Criteo's format: lines of a label, 13 integers and 26 hexadecimal values, separated by tabs.

    The first line is not a heading.

    The published lines are in chronological order, so the last ones are held out to test on.
    """

    name = "criteo"
    looks_for = (
        "clicks as Criteo publishes them: a label, 13 numbers and 26 values per line, separated by tabs (.gz too)"
    )
    Settings = CriteoSettings
    recipe = {"model": {"name": "dlrm"}}

    def recognises(self, path: Path) -> bool:
        if not os.path.isfile(path):
            return False
        try:
            _parsed(next(lines_of(path), b""), rows=2)
        except (OSError, Malformed, ValueError):
            return False
        return True

    def read(self, source: Path | None, settings: CriteoSettings) -> Contents:
        spec = click_spec(settings.rows)
        in_a_line = {"target": spec.target, **{name: spec.inputs[name] for name in ("numbers", "categories")}}
        arrays = arrays_of_lines(self.path, in_a_line, lambda line: _parsed(line, settings.rows))
        lines = len(arrays["target"])
        tested = max(1, round(settings.held_out * lines))
        if tested == lines:
            raise Malformed("it has only one line: none can be held out to test on")
        train, test = (
            {name: rows[part] for name, rows in arrays.items()} for part in (slice(-tested), slice(-tested, None))
        )
        note = (
            f"held out the last {tested:,} of {lines:,} lines for testing, because the lines are in chronological order"
        )
        return Contents(spec, {"train": train, "test": test}, notes=(note,))


def _parsed(line: bytes, rows: int) -> tuple[int, list[float], list[int]]:
    """Return the label, numbers and keys of a line. Raises ValueError, with a short reason, for a bad line."""
    label, *values = line.split(b"\t")
    if len(values) != NUMBERS + COLUMNS:
        raise ValueError(f"it has {len(values) + 1} columns, not {1 + NUMBERS + COLUMNS}")
    if label not in (b"0", b"1"):
        raise ValueError(f"its label is '{label.decode(errors='backslashreplace')}', not 0 or 1")
    return int(label), [*map(number_of, values[:NUMBERS])], [key_of(value, rows) for value in values[NUMBERS:]]
