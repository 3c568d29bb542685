"""What each run was: its settings against the defaults, the command that makes it again, and the machine."""

from __future__ import annotations

import json
import os
import platform
import shlex
import sys
from collections.abc import Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

from ps_cluster.comparison.groups import Group, flat_settings
from ps_cluster.comparison.records import Record
from ps_cluster.config import build_config

_PACKAGES = ("tensorflow-cpu", "tensorflow", "keras", "numpy", "matplotlib")
_PLACES = ("data.data_dir",)  # of this machine: another has the data elsewhere


def common_settings(groups: Sequence[Group]) -> dict[str, str]:
    """What all runs have set otherwise than the defaults, as `section.key` → value in YAML's flow style."""
    changed = [_changed(record) for group in groups for record in group.records]
    return {key: value for key, value in changed[0].items() if all(other.get(key) == value for other in changed)}


def group_settings(group: Group, common: Mapping[str, str]) -> str:
    """What this group has set besides, as options of the command line; the seed is named beside it."""
    changed = _changed(group.first)
    return _options({key: value for key, value in changed.items() if key not in common and key != "training.seed"})


def command(record: Record) -> str:
    """A command that trains the same run again."""
    return f"python cli.py run {_options(_changed(record))}".rstrip()


def machines(groups: Sequence[Group]) -> list[dict[str, str]]:
    """The machines that the runs have written down; where none has, the one that this report is written on."""
    noted = [record.machine for group in groups for record in group.records if record.machine]
    found = [{str(name): _flow(value) for name, value in machine.items()} for machine in noted]
    return list({json.dumps(machine, sort_keys=True): machine for machine in found}.values()) or [_this_machine()]


def _this_machine() -> dict[str, str]:
    return {
        "written down by": "the report, on the machine that it was made on: the runs noted none",
        "processor": _processor(),
        "cores": str(len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()),
        "system": platform.platform(),
        "python": platform.python_version(),
        **_versions(),
    }


def _processor() -> str:
    file = Path("/proc/cpuinfo")
    lines = file.read_text(encoding="utf-8").splitlines() if sys.platform == "linux" and file.is_file() else []
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.processor() or platform.machine())


def _versions() -> dict[str, str]:
    found = {}
    for package in _PACKAGES:
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    return found


def _changed(record: Record) -> dict[str, str]:
    defaults = flat_settings(build_config(None, {"model.name": record.config.model.name}))
    settings = flat_settings(record.config)
    return {
        key: _flow(value)
        for key, value in settings.items()
        if key not in _PLACES and (value != defaults[key] or key == "model.name")
    }


def _flow(value: Any) -> str:
    """JSON is YAML; plain words stay without quotes."""
    return value if isinstance(value, str) else json.dumps(value)


def _options(settings: Mapping[str, str]) -> str:
    return " ".join(f"--set {shlex.quote(f'{key}={value}')}" for key, value in settings.items())
