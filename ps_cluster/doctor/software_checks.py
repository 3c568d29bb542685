"""Checks of what is installed: Python, TensorFlow, versions against the lock, data."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from importlib import metadata
from pathlib import Path

from packaging.markers import Marker

from ps_cluster.data import inventory
from ps_cluster.doctor.check import Check, Finding, fail, ok, warn
from ps_cluster.installation import IMPORT_FOLDER, PROGRAM, how_to_install
from ps_cluster.processes import environment

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
        entries = inventory.entries(self._cache_dir, self._data_dir)
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
