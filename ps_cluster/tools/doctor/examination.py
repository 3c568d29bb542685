"""Carry out checks one after the other, each within its time."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ps_cluster.tools.doctor.check import (
    Check,
    ControlGroup,
    DataSet,
    Finding,
    FreeDisk,
    LockedVersions,
    Memory,
    Ports,
    Processor,
    PythonVersion,
    Status,
    TensorFlowImport,
    UserNamespaces,
    fail,
)
from ps_cluster.tools.doctor.trial_cluster import TrialCluster


@dataclass(frozen=True)
class Examined:
    """A check that was carried out."""

    name: str
    finding: Finding
    seconds: float

    def to_json(self) -> dict[str, Any]:
        """Return its entry in the output of --json."""
        return {
            "name": self.name,
            "status": self.finding.status.value,
            "says": self.finding.says,
            "todo": self.finding.todo,
            "seconds": round(self.seconds, 3),
        }


def all_checks(runs: Path, cache_dir: Path, data_dir: Path | None, *, cluster: bool) -> list[Check]:
    """Return all checks, quick ones first.

    Args:
      runs: the folder in which runs are written. cache_dir: that of packed data.
      data_dir: a folder in which archives are looked for, before the caches.
      cluster: whether a cluster is started.
    """
    quick: list[Check] = [
        PythonVersion(),
        LockedVersions(),
        Processor(),
        Memory(),
        ControlGroup(),
        FreeDisk((runs, cache_dir)),
        Ports(),
        UserNamespaces(),
        DataSet(cache_dir, data_dir),
        TensorFlowImport(),
    ]
    return [*quick, TrialCluster()] if cluster else quick


def examine(checks: Sequence[Check]) -> Iterator[Examined]:
    """Yield what each check has found."""
    for check in checks:
        began = time.monotonic()
        yield Examined(check.name, _bounded(check), time.monotonic() - began)


def worst(examined: Sequence[Examined]) -> Status:
    """Return the worst status of all checks."""
    order = list(Status)
    return max((one.finding.status for one in examined), key=order.index, default=Status.OK)


def as_json(examined: Sequence[Examined]) -> dict[str, Any]:
    """Return the output of --json."""
    return {"status": worst(examined).value, "checks": [one.to_json() for one in examined]}


def exit_code(examined: Sequence[Examined]) -> int:
    """Return 1 if a check has failed, else 0."""
    return int(worst(examined) is Status.FAIL)


def _bounded(check: Check) -> Finding:
    """Return what a check finds, or a failure where it raises or takes too long. A thread that hangs is left behind."""
    found: list[Finding] = []

    def look() -> None:
        try:
            found.append(check.look())
        except Exception as error:  # nothing that one check meets may keep the others from their turn
            found.append(fail(f"{type(error).__name__}: {error}", "look into what the message names"))

    thread = threading.Thread(target=look, daemon=True)
    thread.start()
    thread.join(check.limit_s)
    late = fail(f"no answer within {check.limit_s:g} s", "see whether the machine is overloaded or a disk hangs")
    return found[0] if found else late
