"""Find the TensorFlow part that a kind names: imported when it is needed, by a process that has TensorFlow."""

from __future__ import annotations

import importlib
from typing import Any

from ps_cluster.catalogue import doors


def find(place: str | Any) -> Any:
    """Return what "package.module:name" or "path/to/file.py:name" leads to; anything but text is returned as it is."""
    if not isinstance(place, str):
        return place
    if reference := doors.parse(place):
        return doors.load(reference)
    module, _, name = place.partition(":")
    return getattr(importlib.import_module(module), name)
