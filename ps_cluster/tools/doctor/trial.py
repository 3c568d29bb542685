"""Train a small network on a real cluster, to check whether this machine can do that."""

from __future__ import annotations

import atexit
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import numpy as np

from ps_cluster.config.user_settings import without_variables
from ps_cluster.files.json_files import read_json
from ps_cluster.installation import environment_with_package
from ps_cluster.process_variables import CALLER_PID
from ps_cluster.runs.result_rows import Summary
from ps_cluster.runs.run_dir import RunDir
from ps_cluster.tools.doctor.finding import Finding, fail, ok

TRIAL_S = 120.0  # on two cores it takes 10 to 20 s
STEPS, WORKERS, BATCH_SIZE = 40, 2, 32
_RUN = (sys.executable, "-m", "ps_cluster")


def trial_cluster(program: Sequence[str] = _RUN, timeout_s: float = TRIAL_S) -> Finding:
    """Train with two workers, a parameter server and an evaluator. If the training fails, its folder is kept."""
    folder = Path(tempfile.mkdtemp(prefix="ps_cluster_doctor-"))
    removal = partial(shutil.rmtree, folder, ignore_errors=True)
    atexit.register(removal)  # also after Ctrl-C
    if problem := _trained(program, timeout_s, folder):
        atexit.unregister(removal)
        return fail(problem, f"read {folder}/output.txt and the logs in {folder}/run/logs, then remove the folder")
    summary = read_json(RunDir(folder / "run").summary, Summary)
    removal()
    updates = summary.updates
    return ok(
        f"{updates.applied} of {updates.scheduled} updates by {len(summary.workers)} workers were applied, each once, in "
        f"{summary.wall_seconds:.0f} s"
    )


def _trained(program: Sequence[str], timeout_s: float, folder: Path) -> str:
    """Train a network, with all files in `folder`. Return what went wrong; "" if the training succeeded."""
    # The pixels are random, because this checks whether the cluster trains, not what it learns.
    draw = np.random.default_rng(0)
    images, labels = draw.integers(0, 256, (320, 32, 32, 3), np.uint8), np.arange(320) % 10
    np.savez(
        folder / "images.npz", x_train=images[:256], y_train=labels[:256], x_test=images[256:], y_test=labels[256:]
    )
    size = ("--workers", WORKERS, "--ps", 1, "--steps", STEPS, "--batch-size", BATCH_SIZE)
    what = ("--dataset", folder / "images.npz", "--model", "mlp", "--run-dir", folder / "run")
    own = {CALLER_PID: str(os.getpid()), "PS_CLUSTER_CACHE": str(folder / "cache")}  # the run ends with this process
    with (folder / "output.txt").open("wb") as output:
        try:
            ended = subprocess.run(  # after the timeout it is killed, and its tasks end with it
                [*program, "run", *map(str, (*size, *what))],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env=environment_with_package(without_variables(os.environ)) | own,
                timeout=timeout_s,
            )
        except subprocess.TimeoutExpired:
            return f"the training did not end within {timeout_s:g} s"
    lines = (folder / "output.txt").read_text(encoding="utf-8", errors="replace").strip().splitlines()
    return "" if ended.returncode == 0 else f"exit code {ended.returncode}: {lines[-1] if lines else 'no output'}"
