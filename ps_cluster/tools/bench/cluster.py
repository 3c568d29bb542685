"""Measure examples per second of a whole local cluster, with this project's tasks or another module's.

    python -m ps_cluster.tools.bench.cluster RUN_DIR [MODULE ARGUMENTS]

Prints {"examples_per_second": …} as its last line.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path

from ps_cluster.config import load_config
from ps_cluster.data.packed import load_pointed
from ps_cluster.launch.launcher import run_local
from ps_cluster.launch.local_cluster import TASK_ARGV
from ps_cluster.launch.silence import Limits
from ps_cluster.report.progress import ProgressView, make_view
from ps_cluster.runs.run_dir import RunDir
from ps_cluster.tools.bench.throughput import ARM_TIMEOUT_S


def run(root: Path, body: Sequence[str], view: ProgressView) -> RunDir:
    """Run the cluster of `root` to its end; exit if it fails.

    Args:
      body: module that runs one task and its first arguments; empty for the project's own.
    """
    run_dir = RunDir.open(root)
    dataset = load_pointed(run_dir.dataset)
    argv = (sys.executable, "-m", *body) if body else TASK_ARGV
    # The launcher sees no updates of a module that is not the project's own.
    limits = Limits(standstill_s=ARM_TIMEOUT_S) if body else Limits()
    config = load_config(run_dir.config)
    code = run_local(config, run_dir, dataset, resume=False, view=view, task_argv=argv, limits=limits)
    if code:
        sys.exit(code)
    return run_dir


if __name__ == "__main__":
    summary = json.loads(run(Path(sys.argv[1]), sys.argv[2:], make_view()).summary.read_text())
    print(json.dumps({"examples_per_second": summary["examples_per_second"]}))
