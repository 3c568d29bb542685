"""Run a cluster on this machine whose tasks are started by a program of the tests instead of the package's own."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path

from ps_cluster.config import build_config
from ps_cluster.launch.config_completion import complete_config, resolve_data
from ps_cluster.launch.gpu_choice import with_gpus_found
from ps_cluster.launch.launcher import run_local
from ps_cluster.report.progress import make_view
from ps_cluster.runs.run_dir import RunDir
from ps_cluster.system.gpus import usable_gpus

SETTINGS = {
    "data.dataset": "synthetic", "model.name": "mlp", "model.precision": "float32", "training.batch_size_per_worker": 8,
}  # fmt: skip


def task_argv(program: str, *arguments: str) -> tuple[str, ...]:
    """Return how the command of a task begins. `program`: the name of a module in this folder."""
    return sys.executable, "-m", f"tests.helpers.{program}", *arguments


def launch(root: Path, argv: tuple[str, ...], settings: Mapping[str, object]) -> int:
    """Train with `settings` and SETTINGS, with tasks whose commands begin with `argv`. Return the exit code."""
    view, run_dir = make_view(), RunDir.create(root)
    config = build_config(overrides=SETTINGS | settings)
    dataset = resolve_data(config.data, notify=view.notice)
    config = with_gpus_found(complete_config(config, dataset), usable_gpus(os.environ), view.notice)
    return run_local(config, run_dir, dataset, resume=False, view=view, task_argv=argv)
