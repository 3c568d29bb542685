"""Train on a complete local cluster, with the settings in a run directory. This is an arm of `bench`.

    python -m ps_cluster.tools.bench.cluster_arm RUN_DIR [MODULE ARGUMENTS]

With MODULE, each task of the cluster runs `python -m MODULE ARGUMENTS`; without it, each task runs this project's own
module. The last line of the output is `arms.Measured`.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from ps_cluster.config import load_config
from ps_cluster.data.packed import load_pointed
from ps_cluster.files.json_files import read_json
from ps_cluster.launch.launcher import run_local
from ps_cluster.launch.stages import RunLimits
from ps_cluster.launch.task import TASK_ARGV
from ps_cluster.report.progress import make_view
from ps_cluster.runs.result_rows import Summary
from ps_cluster.runs.run_dir import RunDir
from ps_cluster.tools.bench.arms import ARM_TIMEOUT_S, Measured


def run_cluster(root: Path, task_module: Sequence[str]) -> float | None:
    """Train on a local cluster with the settings in the run directory `root`.

    Return the examples per second; None if the run was too short. If the cluster fails, end this process with the
    cluster's exit code.

    `task_module`: the module that runs one task, followed by its first arguments; empty for the project's own module.
    """
    run_dir = RunDir.open(root)
    argv = (sys.executable, "-m", *task_module) if task_module else TASK_ARGV
    # The launcher sees no updates of a module that is not the project's own.
    limits = RunLimits(standstill_s=ARM_TIMEOUT_S) if task_module else RunLimits()
    config, dataset = load_config(run_dir.config), load_pointed(run_dir.dataset)
    if code := run_local(config, run_dir, dataset, resume=False, view=make_view(), task_argv=argv, limits=limits):
        sys.exit(code)
    return read_json(run_dir.summary, Summary).examples_per_second


if __name__ == "__main__":
    print(Measured(examples_per_second=run_cluster(Path(sys.argv[1]), sys.argv[2:])).model_dump_json())
