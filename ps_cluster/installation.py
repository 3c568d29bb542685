"""Find this package's files, in a checkout of the project or installed by pip, and the version of TensorFlow."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping
from importlib import metadata
from pathlib import Path

_PACKAGE = Path(__file__).resolve().parent
_INSTALLED_CONFIGS = _PACKAGE / "configs"  # the build puts them there; a checkout has them at its top
_INSTALLED = _INSTALLED_CONFIGS.is_dir()

IMPORT_FOLDER = _PACKAGE.parent  # the checkout, or site-packages
CONFIG_FOLDER = _INSTALLED_CONFIGS if _INSTALLED else IMPORT_FOLDER / "configs"
PROGRAM = "ps-cluster" if _INSTALLED else "python cli.py"  # the command that users type


def how_to_install(python: str = "") -> str:
    """Return what a user does to install this package again. `python`: with which one, e.g. "python3.13"."""
    if _INSTALLED:
        return f"install ps-cluster again{python and f', with {python}'}"
    return f"make clean install{python and f' PYTHON={python}'}"


def finding_this_package(given: Mapping[str, str]) -> dict[str, str]:
    """Return `given` with a PYTHONPATH that lets another Python process find this package from any folder."""
    return {**given, "PYTHONPATH": os.pathsep.join(filter(None, [str(IMPORT_FOLDER), given.get("PYTHONPATH")]))}


def tensorflow_version() -> str | None:
    """Return the version of the installed TensorFlow, without importing it, which takes seconds."""
    for package in ("tensorflow-cpu", "tensorflow"):
        with contextlib.suppress(metadata.PackageNotFoundError):
            return metadata.version(package)
    return None
