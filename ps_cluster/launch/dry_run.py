"""Describe a run without starting it: its configuration with the origin of each value, its tasks, and its memory."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

from ps_cluster.config import Resolved
from ps_cluster.config.setting_types import AUTO
from ps_cluster.files.yaml_files import parse_yaml
from ps_cluster.launch import memory
from ps_cluster.launch.topology import ClusterTopology
from ps_cluster.system.limits import FreeMemory
from ps_cluster.system.machine import fastest_precision

_ORIGINS_FROM = 45  # column
_PLAIN = re.compile(r"[A-Za-z_][\w.-]*")


def lines(resolved: Resolved, free: FreeMemory) -> Iterator[str]:
    """Yield the lines of a YAML file that the option --config accepts.

    Its comments say where each value comes from, which tasks would start, and how much memory they need.

    Raises UserError if there are more tasks than are useful on one machine.
    """
    config = resolved.config
    config.check_fits_one_machine()
    kind, cluster = config.chosen_mode, config.cluster
    counts = cluster.workers, cluster.parameter_servers
    topology = ClusterTopology.local(kind.cluster.types, *counts, evaluator=cluster.evaluator, pick_port=lambda: 1)
    yield from _settings(config.model_dump(mode="json"), resolved)
    yield f"# tasks: {', '.join(map(str, topology.tasks))}"
    if config.model.precision == AUTO:
        yield f"# precision: {fastest_precision()} on this machine"
    needed, network = memory.needed_bytes(config), config.model.name
    not_known = f"not known for network {network}; the run makes an estimate when it builds the network"
    yield f"# memory expected: {not_known if needed is None else f'{needed / 1e9:.1f} GB'}; {free}"
    if warning := memory.warning(config, free):
        yield f"# {warning}"
    yield "# nothing was started"


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
    """Return a value as YAML on one line.

    A simple text is written without quotes if YAML reads it back unchanged. All other values are written as JSON.
    """
    if isinstance(value, str) and _PLAIN.fullmatch(value) and parse_yaml(value) == value:
        return value
    return json.dumps(value, ensure_ascii=False)
