"""Convert lanes for TensorBoard's profile plugin."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.machinery import SourceFileLoader
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any

from ps_cluster.reporting.lanes import Lane

# The plugin shows the host's threads, and planes named like devices. Only those can be folded one by one.
PLANE_PREFIX = "/device:CUSTOM:"


def xspace(found: Sequence[Lane], start: float) -> bytes:
    """Return an XSpace with a plane for each lane and a line for each row. Times count from `start` (unix seconds)."""
    space = messages().XSpace()
    for index, lane in enumerate(found):
        _fill(space.planes.add(id=index, name=PLANE_PREFIX + lane.name), lane, start)
    serialized: bytes = space.SerializeToString()
    return serialized


def _fill(plane: Any, lane: Lane, start: float) -> None:
    events, stats = _Names(plane.event_metadata), _Names(plane.stat_metadata)
    for index, row in enumerate(lane.rows, 1):
        line = plane.lines.add(id=index, display_id=index, name=lane.name)
        for span in row:
            event = line.events.add(
                metadata_id=events.id(span.name),
                offset_ps=round(1e12 * (span.begins - start)),
                duration_ps=round(1e12 * (span.ends - span.begins)),
            )
            for name, value in span.about.items():
                event.stats.add(metadata_id=stats.id(name), int64_value=value)


class _Names:
    """A plane's table of names, numbered from 1. Events and their stats refer to these numbers."""

    def __init__(self, table: Any):
        self._table = table
        self._ids: dict[str, int] = {}

    def id(self, name: str) -> int:
        if name not in self._ids:
            self._ids[name] = number = len(self._ids) + 1
            self._table[number].id, self._table[number].name = number, name
        return self._ids[name]


def messages() -> ModuleType:
    """Return TensorFlow's module of messages without importing the rest of TensorFlow."""
    tensorflow = find_spec("tensorflow")
    if tensorflow is None or tensorflow.origin is None:
        raise ModuleNotFoundError("TensorFlow is not installed")
    file = Path(tensorflow.origin).parent / "tsl" / "profiler" / "protobuf" / "xplane_pb2.py"
    module = ModuleType("xplane_pb2")
    SourceFileLoader(module.__name__, str(file)).exec_module(module)
    return module
