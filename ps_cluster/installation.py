"""Find this package's files, in a checkout or an installation by pip, and return commands that install packages."""

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
_INSTALLED_CONFIGS = _PACKAGE / "configs"  # where the build puts them; in a checkout they are in its top folder
_INSTALLED = _INSTALLED_CONFIGS.is_dir()

IMPORT_FOLDER = _PACKAGE.parent  # the checkout, or site-packages
CONFIG_FOLDER = _INSTALLED_CONFIGS if _INSTALLED else IMPORT_FOLDER / "configs"

_COMMAND = "ps-cluster"  # the command that an installation of this package provides


def program(typed: str, folder: Path, python: str = sys.executable) -> str:
    """Return the command that starts this program, for use in hints, e.g. "ps-cluster" or "python cli.py".

    It is the command that the user typed, if that is known. Otherwise it is a command that works in `folder`.

    Args:
      typed: `sys.argv[0]`.
      python: the path of the interpreter. If the command `ps-cluster` is installed, it is in the same folder.
    """
    script = Path(python).parent / _COMMAND
    on_path = shutil.which(_COMMAND)
    is_on_path = on_path is not None and script.is_file() and os.path.samefile(on_path, script)
    installed = _COMMAND if is_on_path else shlex.quote(str(script))
    if os.path.realpath(typed) == str(IMPORT_FOLDER / "cli.py"):
        return f"python {shlex.quote(typed)}"
    if os.path.basename(typed) != _COMMAND and os.path.samefile(folder, IMPORT_FOLDER) and not _INSTALLED:
        return "python cli.py"
    return installed if script.is_file() else f"{shlex.quote(python)} -m ps_cluster"


def _current_folder() -> Path:
    try:
        return Path.cwd()
    except FileNotFoundError:  # it was removed
        return Path("/")


PROGRAM = program(sys.argv[0] if sys.argv else "", _current_folder())  # the command that users type


def how_to_install(python: str = "") -> str:
    """Return, in words, how to install this package again. `python`: the Python to use, e.g. "python3.13"."""
    if _INSTALLED:
        return f"install this package again{python and f', with {python}'}"
    return f"make clean install{python and f' PYTHON={python}'}"


def how_to_install_cuda() -> str:
    """Return the commands that install TensorFlow with CUDA. The pinned package is built without CUDA."""
    return (
        f"pip uninstall --yes tensorflow-cpu; pip install 'tensorflow[and-cuda]=={tensorflow_version()}' "
        "(docs/clusters.md#gpus)"
    )


def environment_with_package(given: Mapping[str, str]) -> dict[str, str]:
    """Return the environment `given`, changed so that a Python process finds this package from any working directory.

    In the changed environment, a process imports nothing from its working directory. Tasks start in run directories,
    which may come from another user. So relative folders in the user's PYTHONPATH are made absolute here.
    """
    folders = filter(None, given.get("PYTHONPATH", "").split(os.pathsep))
    path = os.pathsep.join([str(IMPORT_FOLDER), *map(os.path.abspath, folders)])
    return {**given, "PYTHONPATH": path, "PYTHONSAFEPATH": "1"}


def install_command(extra: str) -> str:
    """Return the command that installs the packages of an extra into the Python that runs this process.

    `extra`: the name of a group of this package's optional dependencies. The command names each package
    of the group instead of "ps-cluster[extra]", because a package registry may have another package named ps-cluster.
    """
    if (IMPORT_FOLDER / "pyproject.toml").is_file():
        import tomllib

        project = tomllib.loads((IMPORT_FOLDER / "pyproject.toml").read_text(encoding="utf-8"))["project"]
        return pip_command(project["optional-dependencies"][extra])
    from packaging.requirements import Requirement

    requirements = map(Requirement, metadata.requires("ps-cluster") or ())
    return pip_command(
        f"{one.name}{one.specifier}"
        for one in requirements
        if one.marker and one.marker.evaluate({"extra": extra}) and not one.marker.evaluate({"extra": ""})
    )


def pip_command(requirements: Iterable[str]) -> str:
    """Return the command that installs packages into the Python of this process: by pip, or by uv if pip is missing."""
    pip = (sys.executable, "-m", "pip", "install")
    return shlex.join(
        [*(pip if util.find_spec("pip") else ("uv", "pip", "install", "--python", sys.executable)), *requirements]
    )


def tensorflow_version() -> str | None:
    """Return the version of the installed TensorFlow without importing it, because the import takes seconds."""
    for package in ("tensorflow-cpu", "tensorflow"):
        with contextlib.suppress(metadata.PackageNotFoundError):
            return metadata.version(package)
    return None
