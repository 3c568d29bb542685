"""Find this package's files, in a checkout of the project or installed by pip, and what is installed beside it."""

from __future__ import annotations

import contextlib
import os
import shlex
import shutil
import sys
from collections.abc import Iterable, Mapping
from importlib import metadata, util
from pathlib import Path

_PACKAGE = Path(__file__).resolve().parent
_INSTALLED_CONFIGS = _PACKAGE / "configs"  # the build puts them there; a checkout has them at its top
_INSTALLED = _INSTALLED_CONFIGS.is_dir()

IMPORT_FOLDER = _PACKAGE.parent  # the checkout, or site-packages
CONFIG_FOLDER = _INSTALLED_CONFIGS if _INSTALLED else IMPORT_FOLDER / "configs"

_NAME = "ps-cluster"  # of the command that installing brings


def program(typed: str, folder: Path, python: str = sys.executable) -> str:
    """Return the command to name in hints: as it was typed, if it can be told, else one that works in `folder`.

    Args:
      typed: the first of the program's arguments, sys.argv[0].
      python: the interpreter, beside which the command is if it is installed.
    """
    script = Path(python).parent / _NAME
    on_path = shutil.which(_NAME)
    is_on_path = on_path is not None and script.is_file() and os.path.samefile(on_path, script)
    installed = _NAME if is_on_path else shlex.quote(str(script))
    if os.path.realpath(typed) == str(IMPORT_FOLDER / "cli.py"):
        return f"python {shlex.quote(typed)}"
    if os.path.basename(typed) != _NAME and os.path.samefile(folder, IMPORT_FOLDER) and not _INSTALLED:
        return "python cli.py"
    return installed if script.is_file() else f"{shlex.quote(python)} -m ps_cluster"


def _current_folder() -> Path:
    try:
        return Path.cwd()
    except FileNotFoundError:  # it was removed
        return Path("/")


PROGRAM = program(sys.argv[0] if sys.argv else "", _current_folder())  # the command that users type


def how_to_install(python: str = "") -> str:
    """Return what a user does to install this package again. `python`: with which one, e.g. "python3.13"."""
    if _INSTALLED:
        return f"install this package again{python and f', with {python}'}"
    return f"make clean install{python and f' PYTHON={python}'}"


def how_to_install_cuda() -> str:
    """Return what a user does to compute on GPUs: the package that is pinned has no CUDA."""
    return (
        f"pip uninstall --yes tensorflow-cpu; pip install 'tensorflow[and-cuda]=={tensorflow_version()}' "
        "(docs/operations.md#gpus)"
    )


def finding_this_package(given: Mapping[str, str]) -> dict[str, str]:
    """Return `given` plus what lets another Python process find this package, in whatever folder it starts.

    It imports nothing from that folder: children start in run directories, which may come from elsewhere. So the places
    of the user's PYTHONPATH become absolute, as this process sees them.
    """
    places = filter(None, given.get("PYTHONPATH", "").split(os.pathsep))
    path = os.pathsep.join([str(IMPORT_FOLDER), *map(os.path.abspath, places)])
    return {**given, "PYTHONPATH": path, "PYTHONSAFEPATH": "1"}


def to_install(extra: str) -> str:
    """Return the command that adds the packages of an extra to the Python that runs this.

    It names those packages, not this one: under its name a registry may have something else.
    """
    return to_add(_of_checkout(extra) if (IMPORT_FOLDER / "pyproject.toml").is_file() else _of_installed(extra))


def to_add(requirements: Iterable[str]) -> str:
    """Return the command that adds packages to the Python that runs this. `uv tool install` leaves it without pip."""
    pip = (sys.executable, "-m", "pip", "install")
    return shlex.join(
        [*(pip if util.find_spec("pip") else ("uv", "pip", "install", "--python", sys.executable)), *requirements]
    )


def _of_checkout(extra: str) -> list[str]:
    import tomllib

    project = tomllib.loads((IMPORT_FOLDER / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    requirements: list[str] = project["optional-dependencies"][extra]
    return requirements


def _of_installed(extra: str) -> list[str]:
    from packaging.requirements import Requirement

    every = map(Requirement, metadata.requires("ps-cluster") or ())
    return [
        f"{one.name}{one.specifier}"
        for one in every
        if one.marker and one.marker.evaluate({"extra": extra}) and not one.marker.evaluate({"extra": ""})
    ]


def tensorflow_version() -> str | None:
    """Return the version of the installed TensorFlow, without importing it, which takes seconds."""
    for package in ("tensorflow-cpu", "tensorflow"):
        with contextlib.suppress(metadata.PackageNotFoundError):
            return metadata.version(package)
    return None
