"""The base class of checks, and what one finds."""

from __future__ import annotations

import os
import platform
import re
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from enum import StrEnum
from importlib import metadata
from pathlib import Path

from packaging.markers import Marker

from ps_cluster.config import RunConfig, build_config
from ps_cluster.data import sources
from ps_cluster.files.values import Malformed
from ps_cluster.files.writing import check_folder
from ps_cluster.installation import IMPORT_FOLDER, PROGRAM, how_to_install
from ps_cluster.launch import topology
from ps_cluster.system import environment, machine
from ps_cluster.system.isolation import NAMESPACE_ARGV, network_for
from ps_cluster.system.machine import Allowance, Room, allowance, room


class Status(StrEnum):
    """The ways in which a check can end. After a warning training works, but is slower, less safe or not as expected."""

    OK = "ok"
    WARN = "warn"
    FAIL = "fail"


@dataclass(frozen=True)
class Finding:
    """The answer of a check. `todo`: what to do about it; empty where all is well."""

    status: Status
    says: str
    todo: str = ""


class Check:
    """A question about this machine or installation. Subclass it and write `look`.

    Attributes:
      name: what is examined, in one or two words.
      limit_s: seconds after which it counts as failed.
    """

    name = ""
    limit_s = 10.0

    def look(self) -> Finding:
        """Return the answer. An exception counts as a failure."""
        raise NotImplementedError


def ok(says: str) -> Finding:
    """Return a finding that needs nothing."""
    return Finding(Status.OK, says)


def warn(says: str, todo: str) -> Finding:
    """Return a finding with which training works in part."""
    return Finding(Status.WARN, says, todo)


def fail(says: str, todo: str) -> Finding:
    """Return a finding with which training does not work."""
    return Finding(Status.FAIL, says, todo)


# Checks of the machine: processor, memory, limits of the control group, disk.

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
    needed = topology.needed_bytes(config)
    assert needed is not None  # these networks were measured
    return needed


# Checks of what is installed: Python, TensorFlow, versions against the lock, data.

FIRST_PYTHON, LAST_PYTHON = (3, 11), (3, 13)  # as in pyproject.toml
_LOCK = IMPORT_FOLDER / "requirements.txt"
_PINNED = re.compile(r"([A-Za-z0-9._-]+)==([^\s;\\]+)\s*(?:;\s*([^\\]+))?")
_MOST_NAMED = 5
_IMPORT = "import tensorflow; print(tensorflow.__version__)"


class PythonVersion(Check):
    """The version of Python."""

    name = "python"

    def __init__(self, version: tuple[int, ...] = sys.version_info[:3]):
        self._version = version

    def look(self) -> Finding:
        told = ".".join(map(str, self._version))
        first, last = (".".join(map(str, version)) for version in (FIRST_PYTHON, LAST_PYTHON))
        if FIRST_PYTHON <= self._version[:2] <= LAST_PYTHON:
            return ok(f"{told}, {sys.executable}")
        return fail(f"{told}: {first} to {last} is supported", how_to_install(f"python{last}"))


class TensorFlowImport(Check):
    """Import TensorFlow in a process of its own."""

    name = "tensorflow"
    limit_s = 130.0

    def __init__(self, argv: tuple[str, ...] = (sys.executable, "-P", "-c", _IMPORT), timeout_s: float = 120.0):
        self._argv = argv
        self._timeout_s = timeout_s

    def look(self) -> Finding:
        env = environment.for_tensorflow(os.environ)
        try:
            ended = subprocess.run(
                self._argv, capture_output=True, text=True, errors="replace", timeout=self._timeout_s, env=env
            )
        except subprocess.TimeoutExpired:
            return fail(f"not imported within {self._timeout_s:g} s", "see whether the machine is overloaded")
        last = (ended.stdout if ended.returncode == 0 else ended.stderr).strip().splitlines()[-1:]
        told = " ".join(last) or f"exit code {ended.returncode}"
        return ok(told) if ended.returncode == 0 else fail(told, how_to_install())


class LockedVersions(Check):
    """Compare the installed packages with the lock, with which the project is tested."""

    name = "versions"

    def __init__(self, lock: Path = _LOCK, version_of: Callable[[str], str] = metadata.version):
        self._lock = lock
        self._version_of = version_of

    def look(self) -> Finding:
        if not self._lock.is_file():
            return ok("installed as a package: there is no lock to hold it against")
        pinned = list(_pinned(self._lock.read_text(encoding="utf-8")))
        others = [told for name, version in pinned if (told := self._other(name, version))]
        if not others:
            return ok(f"all {len(pinned)} packages are those of {self._lock.name}")
        more = f", and {len(others) - _MOST_NAMED} more" if len(others) > _MOST_NAMED else ""
        return warn(
            f"{len(others)} of {len(pinned)} packages are not those of {self._lock.name}: "
            f"{', '.join(others[:_MOST_NAMED])}{more}",
            f"python -m pip install --require-hashes --no-deps -r {self._lock.name}",
        )

    def _other(self, name: str, version: str) -> str:
        """Return what is installed in place of a pinned package; "" if it is that one."""
        try:
            found = self._version_of(name)
        except metadata.PackageNotFoundError:
            return f"{name} {version} is missing"
        return "" if found == version else f"{name} {found} in place of {version}"


class DataSet(Check):
    """Look for CIFAR-10 on this machine."""

    name = "data"

    def __init__(self, cache_dir: Path, data_dir: Path | None):
        self._cache_dir = cache_dir
        self._data_dir = data_dir

    def look(self) -> Finding:
        entries = sources.entries(self._cache_dir, self._data_dir)
        entry = next(entry for entry in entries if entry.name == "cifar10")
        damaged = [copy.directory.name for copy in entry.copies if copy.dataset is None]
        if sound := [copy for copy in entry.copies if copy.dataset is not None]:
            return ok(f"{entry.title} is packed in {sound[0].directory}")
        if entry.archives:
            return ok(f"{entry.title} is here: {entry.archives[0]}")
        if damaged:
            return warn(f"the packed copy {damaged[0]} is damaged", f"{PROGRAM} data rm {damaged[0]}")
        return warn(
            f"{entry.title} is not here: a run downloads it, or else trains on the generated set and says so",
            f"{PROGRAM} data fetch cifar10, or give it by --data-dir",
        )


def _pinned(text: str) -> Iterator[tuple[str, str]]:
    """Yield the name and version of each package that a lock has for this machine."""
    for line in text.splitlines():
        match = _PINNED.match(line)
        if match and (match[3] is None or Marker(match[3].strip()).evaluate()):
            yield match[1], match[2]


# Checks of what the system allows: ports of this machine, and a network of its own for a run.

PORTS = 13  # of a run with the most workers and parameter servers, and its chief
_TIMEOUT_S = 5.0


class Ports(Check):
    """Check that programs of this machine can listen on ports and reach each other."""

    name = "ports"

    def __init__(self, host: str = "127.0.0.1", count: int = PORTS):
        self._host = host
        self._count = count

    def look(self) -> Finding:
        try:
            with ExitStack() as stack:
                for _ in range(self._count):
                    server = stack.enter_context(socket.create_server((self._host, 0)))
                    stack.enter_context(socket.create_connection(server.getsockname()[:2], timeout=_TIMEOUT_S))
        except OSError as error:
            reason = error.strerror or error
            return fail(f"no connection to {self._host}: {reason}", "allow local connections, and more open files")
        return ok(f"{self._count} ports of {self._host} can be opened and reached")


class UserNamespaces(Check):
    """Check that a run gets a network of its own, in which nobody else reaches its ports."""

    name = "isolation"
    limit_s = 40.0  # that of `network_for` is 30

    def __init__(self, namespace_argv: tuple[str, ...] = NAMESPACE_ARGV):
        self._argv = namespace_argv

    def look(self) -> Finding:
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            with network_for("auto", folder, folder, lambda line: None, self._argv) as network:
                if network.isolated:
                    return ok("a run gets a network of its own")
                return warn(
                    network.notice or "no private network",
                    "allow user namespaces (sysctl user.max_user_namespaces; on Ubuntu also "
                    "kernel.apparmor_restrict_unprivileged_userns=0), or use a machine that you share with nobody",
                )
