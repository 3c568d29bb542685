"""Describe the machine that a run runs on."""

from __future__ import annotations

import os
import platform
import subprocess
from pathlib import Path

import psutil

from ps_cluster.installation import tensorflow_version
from ps_cluster.runs.machine_rows import MachineRow
from ps_cluster.system.limits import Allowance, allowance

_BFLOAT16_FLAGS = ("avx512_bf16", "amx_bf16")
UNKNOWN = "an unknown processor"
CPUINFO = Path("/proc/cpuinfo")
_CODE = Path(__file__).resolve().parents[2]


def fastest_precision(cpuinfo: Path = CPUINFO) -> str:
    """Return "bfloat16" if the processor has instructions for it, else "float32" (also if that is unknown)."""
    return "bfloat16" if set(_BFLOAT16_FLAGS) & flags_of(cpuinfo) else "float32"


def describe(cpuinfo: Path = CPUINFO, allowed: Allowance | None = None) -> MachineRow:
    """Return the machine's entry in summary.json, with only the cores and the memory that this process may use."""
    flags, allowed = flags_of(cpuinfo), allowed or allowance()
    memory, limit = psutil.virtual_memory().total, allowed.memory_bytes
    return MachineRow(
        processor=_first(cpuinfo, "model name") or platform.machine(),
        cores=allowed.threads,
        cpu_limit=allowed.cpus,
        memory_gb=round(min(memory, limit or memory) / 1e9, 1),
        memory_limit_gb=round(limit / 1e9, 1) if limit else None,
        avx512_bf16="avx512_bf16" in flags,
        amx_bf16="amx_bf16" in flags,
        tensorflow=tensorflow_version(),
        commit=commit_of(_CODE),
    )


def processor_of(machine: MachineRow | None) -> str:
    """Return the processor's name and its bfloat16 instructions, which another processor of the same name may lack."""
    if machine is None or machine.processor is None:
        return UNKNOWN
    has = zip(_BFLOAT16_FLAGS, (machine.avx512_bf16, machine.amx_bf16), strict=True)
    flags = ", ".join(flag for flag, is_there in has if is_there)
    return f"{machine.processor} ({flags})" if flags else machine.processor


def commit_of(code: Path) -> str | None:
    """Return the commit of a folder of code, e.g. "392b7299c0de"; None if git can't tell.

    The result ends with "-dirty" if a file differs from that commit. Changes to records of measurements are ignored,
    because a study adds to its record between two trainings.
    """
    if not (code / ".git").exists():  # else git would answer for a repository around the code
        return None
    commit = _git(code, "rev-parse", "--short=12", "HEAD")
    changed = _git(code, "diff", "--name-only", "HEAD", "--", ".", ":(exclude)benchmarks/records")
    if not commit or changed is None:
        return None
    return f"{commit}-dirty" if changed else commit


def _git(code: Path, *words: str) -> str | None:
    """Return what a git command prints, or None if it fails."""
    command, without_locks = ["git", "-C", str(code), *words], os.environ | {"GIT_OPTIONAL_LOCKS": "0"}
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=10, env=without_locks)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() if done.returncode == 0 else None


def flags_of(cpuinfo: Path) -> set[str]:
    """Return the names of the processor's instructions, as Linux names them; empty if unknown."""
    return set(_first(cpuinfo, "flags").split())


def _first(cpuinfo: Path, name: str) -> str:
    """Return the first value under `name` (that of the first core), or an empty string."""
    try:
        lines = cpuinfo.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return ""
    parts = (line.partition(":") for line in lines)
    return next((value.strip() for key, _, value in parts if key.strip() == name), "")
