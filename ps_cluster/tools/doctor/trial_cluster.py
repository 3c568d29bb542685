"""Train a small network on a real cluster for a few seconds."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import weakref
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from ps_cluster.config.layers import without_variables
from ps_cluster.files.json_files import read_json
from ps_cluster.installation import finding_this_package
from ps_cluster.runs.result_rows import Summary
from ps_cluster.runs.run_dir import RunDir
from ps_cluster.system.environment import CALLER_PID
from ps_cluster.tools.doctor.check import Check, Finding, fail, ok

PROGRAM = (sys.executable, "-m", "ps_cluster")
TIMEOUT_S = 120.0  # on two cores it takes 10 to 20
STEPS, WORKERS, BATCH_SIZE = 40, 2, 32
_GRACE_S = 30.0  # from Ctrl-C to SIGKILL


class TrialCluster(Check):
    """Train with two workers, a parameter server and an evaluator. If it fails, its folder stays."""

    name = "cluster"
    limit_s = TIMEOUT_S + _GRACE_S + 30

    def __init__(self, program: Sequence[str] = PROGRAM, timeout_s: float = TIMEOUT_S):
        self._program = program
        self._timeout_s = timeout_s

    def look(self) -> Finding:
        folder = Path(tempfile.mkdtemp(prefix="ps_cluster_doctor-"))
        removal = weakref.finalize(self, shutil.rmtree, folder, ignore_errors=True)  # also after Ctrl-C
        problem = self._trained(folder)
        if problem:
            removal.detach()
            return fail(problem, f"read {folder}/output.txt and the logs in {folder}/run/logs, then remove the folder")
        summary = read_json(RunDir(folder / "run").summary, Summary)
        removal()
        updates = summary.updates
        return ok(
            f"{updates.applied} of {updates.scheduled} updates of {len(summary.workers)} workers, each applied once, in "
            f"{summary.wall_seconds:.0f} s"
        )

    def _trained(self, folder: Path) -> str:
        """Train in a folder. Return what went wrong, or ""."""
        _write_images(folder / "images.npz")
        with (folder / "output.txt").open("wb") as output:
            process = subprocess.Popen(
                [*self._program, *_options(folder)],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env=_environment(folder),
            )
            try:
                code = process.wait(self._timeout_s)
            except subprocess.TimeoutExpired:
                _end(process)
                return f"not trained within {self._timeout_s:g} s"
        lines = (folder / "output.txt").read_text(encoding="utf-8", errors="replace").strip().splitlines()
        return "" if code == 0 else f"exit code {code}: {lines[-1] if lines else 'no output'}"


def _options(folder: Path) -> list[str]:
    size = ("--workers", WORKERS, "--ps", 1, "--steps", STEPS, "--batch-size", BATCH_SIZE)
    what = ("--dataset", folder / "images.npz", "--model", "tutorial_cnn", "--run-dir", folder / "run")
    return ["run", *map(str, (*size, *what))]


def _environment(folder: Path) -> dict[str, str]:
    """Return an environment in which the run ends with this process, and writes nothing outside of `folder`."""
    own = {CALLER_PID: str(os.getpid()), "PS_CLUSTER_CACHE": str(folder / "cache")}
    return finding_this_package(without_variables(os.environ)) | own


def _write_images(file: Path) -> None:
    """Write random pixels: it is the cluster that is tried, not what it learns."""
    draw = np.random.default_rng(0)
    images, labels = draw.integers(0, 256, (320, 32, 32, 3), np.uint8), np.arange(320) % 10
    np.savez(file, x_train=images[:256], y_train=labels[:256], x_test=images[256:], y_test=labels[256:])


def _end(process: subprocess.Popen[bytes]) -> None:
    for number, grace_s in ((signal.SIGINT, 1.0), (signal.SIGINT, _GRACE_S), (signal.SIGKILL, _GRACE_S)):
        process.send_signal(number)
        try:
            process.wait(grace_s)
            return
        except subprocess.TimeoutExpired:
            continue
