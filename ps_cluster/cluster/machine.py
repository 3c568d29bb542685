"""The machine that a run is on: what it has, and what its processor computes fast in."""

from __future__ import annotations

import contextlib
import platform
from collections.abc import Mapping
from importlib import metadata
from pathlib import Path
from typing import Any

import psutil

from ps_cluster.cluster.control_group import Allowance, allowance

_BFLOAT16_FLAGS = ("avx512_bf16", "amx_bf16")
UNKNOWN = "an unknown processor"
_CPUINFO = Path("/proc/cpuinfo")


def fastest_precision(cpuinfo: Path = _CPUINFO) -> str:
    """ "bfloat16" where the processor has instructions for it, else "float32" (also where it can't be told)."""
    return "bfloat16" if set(_BFLOAT16_FLAGS) & _flags(cpuinfo) else "float32"


def describe(cpuinfo: Path = _CPUINFO, allowed: Allowance | None = None) -> dict[str, Any]:
    """What summary.json says of this machine; nothing in it names the machine or its user.

    `cores` and `memory_gib` are what this process may use; `cpu_limit` (processor seconds a second) and `memory_limit_gib`
    are those of its control group, None where it has none; `tensorflow` is None where it is not installed.
    """
    flags, allowed = _flags(cpuinfo), allowed or allowance()
    memory, limit = psutil.virtual_memory().total, allowed.memory_bytes
    return {
        "processor": _first(cpuinfo, "model name") or platform.machine(),
        "cores": allowed.threads,
        "cpu_limit": allowed.cpus,
        "memory_gib": round(min(memory, limit or memory) / 2**30, 1),
        "memory_limit_gib": round(limit / 2**30, 1) if limit else None,
        **{flag: flag in flags for flag in _BFLOAT16_FLAGS},
        "tensorflow": _tensorflow_version(),
    }


def processor_of(machine: Mapping[str, Any] | None) -> str:
    """Return the processor of what `describe` returned, with those instructions that make it a faster one of its name."""
    if not machine or "processor" not in machine:
        return UNKNOWN
    flags = ", ".join(flag for flag in _BFLOAT16_FLAGS if machine.get(flag))
    return f"{machine['processor']} ({flags})" if flags else machine["processor"]


def _flags(cpuinfo: Path) -> set[str]:
    return set(_first(cpuinfo, "flags").split())


def _first(cpuinfo: Path, name: str) -> str:
    """What is said of the first core under `name`, or an empty string."""
    try:
        lines = cpuinfo.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return ""
    parts = (line.partition(":") for line in lines)
    return next((value.strip() for key, _, value in parts if key.strip() == name), "")


def _tensorflow_version() -> str | None:
    """Of the package that is installed: importing it takes seconds."""
    for package in ("tensorflow-cpu", "tensorflow"):
        with contextlib.suppress(metadata.PackageNotFoundError):
            return metadata.version(package)
    return None
