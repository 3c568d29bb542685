"""Import the TensorFlow part that a catalogue object names, when a process that has TensorFlow needs it."""

from __future__ import annotations

import importlib
from typing import Any

from ps_cluster.catalogue import doors


def find(place: str | Any) -> Any:
    """Return the object at "package.module:name" or "path/to/file.py:name"; return anything but text as it is."""
    if not isinstance(place, str):
        return place
    if reference := doors.parse(place):
        return doors.load(reference)
    module, _, name = place.partition(":")
    return getattr(importlib.import_module(module), name)
