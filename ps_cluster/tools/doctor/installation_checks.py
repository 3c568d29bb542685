"""Check the installation: Python, its packages, TensorFlow, the environment, and whether this machine has CIFAR-10."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from collections.abc import Callable, Mapping
from importlib import metadata
from pathlib import Path

from packaging.requirements import Requirement

from ps_cluster.data import inventory
from ps_cluster.installation import IMPORT_FOLDER, PROGRAM, how_to_install
from ps_cluster.system import environment
from ps_cluster.system.failure_lines import last_error_line
from ps_cluster.tools.doctor.finding import Finding, fail, ok, warn

FIRST_PYTHON, LAST_PYTHON = (3, 11), (3, 13)  # as in pyproject.toml
_LOCK = IMPORT_FOLDER / "requirements.txt"
_MOST_NAMED = 5
_IMPORT = "import tensorflow; print(tensorflow.__version__)"


def python_version(version: tuple[int, ...] = sys.version_info[:3]) -> Finding:
    """Check the version of Python."""
    answer = ".".join(map(str, version))
    first, last = (".".join(map(str, one)) for one in (FIRST_PYTHON, LAST_PYTHON))
    if FIRST_PYTHON <= version[:2] <= LAST_PYTHON:
        return ok(f"{answer}, {sys.executable}")
    return fail(f"{answer}, but only Python {first} to {last} is supported", how_to_install(f"python{last}"))


def ignored_settings(given: Mapping[str, str] | None = None) -> Finding:
    """Look for settings in environment variables or keras.json that tasks ignore, e.g. another Keras backend."""
    if lines := list(environment.not_used(os.environ if given is None else given)):
        return warn("; ".join(lines), "do nothing, unless you rely on these settings: tasks ignore them")
    return ok("no settings are ignored")


def tensorflow_import(
    argv: tuple[str, ...] = (sys.executable, "-P", "-c", _IMPORT), timeout_s: float = 120.0
) -> Finding:
    """Import TensorFlow in a separate process."""
    env = environment.for_tensorflow(os.environ)
    try:
        ended = subprocess.run(argv, capture_output=True, text=True, errors="replace", timeout=timeout_s, env=env)
    except subprocess.TimeoutExpired:
        return fail(f"not imported within {timeout_s:g} s", "see whether the machine is overloaded")
    if ended.returncode:
        return fail(last_error_line(ended), how_to_install())
    return ok(" ".join(ended.stdout.strip().splitlines()[-1:]) or "exit code 0")


def locked_versions(lock: Path = _LOCK, version_of: Callable[[str], str] = metadata.version) -> Finding:
    """Compare the installed packages with the versions in requirements.txt, with which the project is tested."""
    if not lock.is_file():
        return ok(
            "installed as a package, so there is no file of locked versions (requirements.txt) to compare the installed "
            "packages with"
        )
    count, others = 0, []
    for line in lock.read_text(encoding="utf-8").splitlines():
        if not line[:1].isalnum():
            continue  # a comment, or a hash of the package in a line above
        pinned = Requirement(line.rstrip(" \\"))
        if pinned.marker and not pinned.marker.evaluate():
            continue  # it is for other machines
        count += 1
        name, wanted = pinned.name, str(pinned.specifier).removeprefix("==")
        # The package tensorflow is tensorflow-cpu with CUDA, for GPUs.
        found = _installed(name, version_of) or (
            _installed("tensorflow", version_of) if name == "tensorflow-cpu" else None
        )
        if found is None:
            others.append(f"{name} {wanted} is missing")
        elif found != wanted:
            others.append(f"{name} {found} instead of {wanted}")
    if not others:
        return ok(f"all {count} packages have the versions in {lock.name}")
    more = f", and {len(others) - _MOST_NAMED} more" if len(others) > _MOST_NAMED else ""
    return warn(
        f"{len(others)} of {count} packages differ from {lock.name}: {', '.join(others[:_MOST_NAMED])}{more}",
        f"python -m pip install --require-hashes --no-deps -r {lock.name}",
    )


def _installed(package: str, version_of: Callable[[str], str]) -> str | None:
    try:
        return version_of(package)
    except metadata.PackageNotFoundError:
        return None


def data_set(cache_dir: Path, data_dir: Path | None) -> Finding:
    """Look for CIFAR-10 on this machine."""
    entry = next(entry for entry in inventory.entries(cache_dir, data_dir) if entry.name == "cifar10")
    damaged = [copy.directory.name for copy in entry.copies if copy.dataset is None]
    if sound := [copy for copy in entry.copies if copy.dataset is not None]:
        return ok(f"{entry.title} is packed in {sound[0].directory}")
    if entry.archives:
        return ok(f"{entry.title} is here: {entry.archives[0]}")
    if damaged:
        return warn(f"the packed copy {damaged[0]} is damaged", f"{PROGRAM} data rm {shlex.quote(damaged[0])}")
    return warn(
        f"{entry.title} is not on this machine: the default run downloads it or, if that fails, uses generated data",
        f"{PROGRAM} data fetch cifar10, or name the folder of its archive with --data-dir",
    )
