"""Checks of the machine: processor, memory, limits of the control group, disk."""

from __future__ import annotations

import platform
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path

from ps_cluster.cluster import memory
from ps_cluster.config import RunConfig, build_config
from ps_cluster.doctor.check import Check, Finding, fail, ok, warn
from ps_cluster.files.malformed import Malformed
from ps_cluster.files.places import check_folder
from ps_cluster.processes import machine
from ps_cluster.processes.control_group import Allowance, Room, allowance, room

GB = 10**9
# A default run writes 0.2 GB; each packed copy of CIFAR-10 has 0.2 GB.
ENOUGH_DISK_BYTES, LEAST_DISK_BYTES = GB, GB // 10
SMALLEST = {"model.name": "tutorial_cnn", "cluster.workers": 1, "cluster.evaluator": False}


class Processor(Check):
    """The processor, what of it may be used, and the precision that it gives."""

    name = "processor"

    def __init__(self, cpuinfo: Path = machine.CPUINFO, allowed: Allowance | None = None):
        self._cpuinfo = cpuinfo
        self._allowed = allowed or allowance()

    def look(self) -> Finding:
        found = machine.describe(self._cpuinfo, self._allowed)
        precision = machine.fastest_precision(self._cpuinfo)
        why = "" if precision == "bfloat16" else ", as it has no instructions for bfloat16"
        told = f"{machine.processor_of(found)}, {found['cores']} at a time: precision auto is {precision}{why}"
        flags = machine.flags_of(self._cpuinfo)
        if platform.machine() == "x86_64" and flags and "avx" not in flags:
            return fail(f"{told}; it has no AVX", "use another machine: TensorFlow's packages need AVX")
        if found["cores"] < 2:
            return warn(told, "give it a second core: on one, workers take turns")
        return ok(told)


class Memory(Check):
    """Check that the memory is enough for the default run."""

    name = "memory"

    def __init__(self, space: Room | None = None):
        self._room = space or room()

    def look(self) -> Finding:
        default, smallest = build_config(), build_config(None, SMALLEST)
        told = f"{self._room}, the default run takes about {_needed(default) / GB:.1f} GB"
        if _needed(smallest) > self._room.memory_bytes:
            return fail(told, f"free some: the smallest run takes about {_needed(smallest) / GB:.1f} GB")
        if _needed(default) > self._room.memory_bytes:
            return warn(told, "use fewer --workers, a smaller --batch-size, --model tutorial_cnn or --no-evaluator")
        return ok(told)


class ControlGroup(Check):
    """The limits of the control group, as a container has them."""

    name = "limits"

    def __init__(self, allowed: Allowance | None = None):
        self._allowed = allowed or allowance()

    def look(self) -> Finding:
        cpus, limit = self._allowed.cpus, self._allowed.memory_bytes
        parts = [
            f"{cpus:g} processor seconds a second" if cpus else "no limit on processors",
            f"{limit / GB:.1f} GB of memory" if limit else "no limit on memory",
        ]
        told = f"control group: {', '.join(parts)}"
        if self._allowed.quota_decides:
            return warn(told, f"give the container more processors: of {self._allowed.processors} it may use a part")
        return ok(told)


class FreeDisk(Check):
    """Check that runs and packed data can be written."""

    name = "disk"

    def __init__(
        self, folders: Sequence[Path], free_bytes: Callable[[Path], int] = lambda path: shutil.disk_usage(path).free
    ):
        self._folders = folders
        self._free_bytes = free_bytes

    def look(self) -> Finding:
        told = []
        for folder in self._folders:
            try:
                check_folder(folder)
            except Malformed as error:
                return fail(f"'{folder}' {error}", "work in a folder of your own; PS_CLUSTER_CACHE moves the cache")
            place = next(path for path in (folder.absolute(), *folder.absolute().parents) if path.exists())
            told.append((self._free_bytes(place), folder))
        free, folder = min(told)
        says = f"{free / GB:.1f} GB are free for {folder}"
        if free < LEAST_DISK_BYTES:
            return fail(says, "free some: a run and its data take several 100 MB")
        if free < ENOUGH_DISK_BYTES:
            return warn(says, "free some, or remove old runs and packed data (data rm)")
        return ok(says)


def _needed(config: RunConfig) -> int:
    needed = memory.needed_bytes(config)
    assert needed is not None  # these networks were measured
    return needed
