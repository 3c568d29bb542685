"""Train by the command `run`, in a process of its own, as a user would."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from ps_cluster.errors import RunFailed
from ps_cluster.installation import IMPORT_FOLDER
from ps_cluster.runs.run_dir import RunDir


def train(
    root: Path,
    settings: Mapping[str, Any],
    *,
    checkout: Path = IMPORT_FOLDER,
    exit_codes: Collection[int] = (0,),
) -> None:
    """Train with the code of a checkout, and wait for the end of the run.

    Args:
      root: the run directory, which the run creates.
      settings: by their dotted keys. All other settings are those of the network's recipe.
      exit_codes: the exit codes with which the run may end.
    Raises:
      RunFailed: the run ended with another exit code, or without a summary.
    """
    words = [
        word for key, value in settings.items() for word in ("--set", f"{key}={'null' if value is None else value}")
    ]
    argv = [sys.executable, "cli.py", "run", "--run-dir", str(root), *words]
    ended = subprocess.run(argv, cwd=checkout, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    if ended.returncode not in exit_codes or not RunDir(root).summary.exists():
        raise RunFailed(f"exit code {ended.returncode} in '{checkout}': {' '.join(argv)}\n{ended.stdout[-2000:]}")
