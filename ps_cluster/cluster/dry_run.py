"""Tell what a run would do and start nothing: its configuration with the origin of each value, its tasks, its memory."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

from ps_cluster.catalogue.task_types import Task
from ps_cluster.cluster import memory
from ps_cluster.cluster.topology import ClusterTopology
from ps_cluster.config import Resolved, RunConfig
from ps_cluster.files.yaml_files import parse_yaml
from ps_cluster.processes.control_group import Room
from ps_cluster.processes.machine import fastest_precision

_ORIGINS_FROM = 45  # column
_PLAIN = re.compile(r"[A-Za-z_][\w.-]*")


def lines(resolved: Resolved, room: Room) -> Iterator[str]:
    """Yield a file for --config, whose comments say where each value comes from and what the run would take.

    Raises:
      UserError: there are more tasks than are useful on one machine.
    """
    config = resolved.config
    config.check_fits_one_machine()
    yield from _settings(config.model_dump(mode="json"), resolved)
    yield f"# tasks: {', '.join(map(str, tasks_of(config)))}"
    if config.model.precision == "auto":
        yield f"# precision: {fastest_precision()} on this machine"
    yield f"# memory expected: {_memory(config)}; {room}"
    if told := memory.warning(config, room):
        yield f"# {told}"
    yield "# nothing was started"


def tasks_of(config: RunConfig) -> tuple[Task, ...]:
    """Return the tasks that a run has."""
    counts = config.cluster.workers, config.cluster.parameter_servers
    topology = ClusterTopology.local(
        config.mode_kind.tasks, *counts, evaluator=config.cluster.evaluator, pick_port=lambda: 1
    )
    return topology.tasks


def _settings(tree: Mapping[str, Any], resolved: Resolved, prefix: str = "") -> Iterator[str]:
    indent = "  " * prefix.count(".")
    for name, value in tree.items():
        if isinstance(value, dict) and value:
            yield f"{indent}{_text(name)}:"
            yield from _settings(value, resolved, f"{prefix}{name}.")
        else:
            line = f"{indent}{_text(name)}: {_text(value)}"
            yield f"{line:<{_ORIGINS_FROM}} # {resolved.origin(prefix + name)}"


def _text(value: Any) -> str:
    """Return a value as YAML on one line: JSON is YAML too, and text that looks like nothing else needs no quotes."""
    if isinstance(value, str) and _PLAIN.fullmatch(value) and parse_yaml(value) == value:
        return value
    return json.dumps(value, ensure_ascii=False)


def _memory(config: RunConfig) -> str:
    needed = memory.needed_bytes(config)
    if needed is None:
        return f"unknown: network {config.model.name} was not measured, so the run estimates it once it has built it"
    return f"{needed / 1e9:.1f} GB"
