"""Train by the command `run` in a separate process, as a user would."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ps_cluster.errors import RunFailed
from ps_cluster.installation import IMPORT_FOLDER
from ps_cluster.runs.result_rows import BROKEN
from ps_cluster.runs.run_dir import RunDir
from ps_cluster.runs.scores import outcome_of


def train(
    root: Path,
    settings: Mapping[str, Any],
    *,
    config: Path | None = None,
    checkout: Path = IMPORT_FOLDER,
    may_diverge: bool = False,
) -> None:
    """Train with the code of a checkout, and wait for the end of the run.

    Args:
      root: the run directory, which the run creates.
      settings: settings by their dotted keys. All other settings are those of `config`, or of the network's recipe.
      config: a file with settings.
      checkout: the folder of the checkout.
      may_diverge: whether to accept a run that diverged. Otherwise it counts as failed.

    Raises:
      RunFailed: the run failed.
    """
    words = [
        word for key, value in settings.items() for word in ("--set", f"{key}={'null' if value is None else value}")
    ]
    from_file = ("--config", str(config)) if config else ()
    argv = [sys.executable, "cli.py", "run", "--run-dir", str(root), *from_file, *words]
    ended = subprocess.run(argv, cwd=checkout, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    is_complete = ended.returncode == 0 and RunDir(root).summary.exists()
    if not is_complete and not (may_diverge and outcome_of(root) in BROKEN):
        raise RunFailed(f"exit code {ended.returncode} in '{checkout}': {' '.join(argv)}\n{ended.stdout[-2000:]}")
