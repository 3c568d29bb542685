"""List the device of each operation of a step, from metrics/placement.csv."""

from __future__ import annotations

import csv
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

# Operations that compute nothing: they hold or pass on a value, or control what runs.
_PLUMBING = frozenset(
    ("Const", "Identity", "Merge", "NoOp", "Switch", "_Arg", "_DeviceArg", "_Recv", "_Retval", "_Send")
)


def placement_lines(file: Path) -> Iterator[str]:
    """Yield a line for each operation that computes, then the number of operations on each device.

    The last line has the number of operations that are not listed, because they only hold or pass on values.
    """
    with file.open(encoding="utf-8", newline="") as rows:
        operations = list(csv.DictReader(rows))
    for row in operations:
        row["device"] = row["device"].replace("/replica:0", "").replace("/device:", " ")
        if row["type"] not in _PLUMBING:
            yield f"{row['device']}  {row['type']}  {row['operation']}"
    for device, count in Counter(row["device"] for row in operations).items():
        yield f"{device}: {count} operations"
    passing = sum(row["type"] in _PLUMBING for row in operations)
    yield f"{passing} of all {len(operations)} operations only hold or pass on values, and are not listed: see {file}"
