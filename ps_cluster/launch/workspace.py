"""Make the working directory of a task. The chief's graph has paths relative to it, so one graph fits all workers."""

from __future__ import annotations

import os
import struct
from pathlib import Path

from ps_cluster.config import RunConfig
from ps_cluster.config.tasks import Task
from ps_cluster.data.packed import PackedDataset, fields_of, file_name
from ps_cluster.files.writing import open_to_write, write_whole
from ps_cluster.runs.run_dir import AGREEMENT, IDENTITY, RunDir
from ps_cluster.training.agreement import CompatibilityFingerprint


def enter(run_dir: RunDir, task: Task, config: RunConfig, dataset: PackedDataset, *, computes_gradients: bool) -> None:
    """Make the task's working directory and change into it.

    The directory contains `agreement.json`, a fingerprint of this task's code, settings and data, which the leader
    compares with its own. For a task that computes gradients, it also contains links to the training examples of this
    machine's packed data set, and `identity`, a file with the task's index and pid, int64 [2].
    """
    directory = run_dir.workspace(task)
    directory.mkdir(parents=True, exist_ok=True)
    fingerprint = CompatibilityFingerprint.of(config, dataset)
    _write_into_workspace(directory / AGREEMENT, fingerprint.to_json().encode())
    if computes_gradients:
        for name, field in fields_of(dataset.spec).items():
            file = file_name("train", name, field)
            (directory / file).unlink(missing_ok=True)
            (directory / file).symlink_to(dataset.directory / file)
        _write_into_workspace(directory / IDENTITY, struct.pack("<2q", task.index, os.getpid()))
    os.chdir(directory)


def _write_into_workspace(file: Path, content: bytes) -> None:
    """Write a file that no process is reading. If a full disk has no room for a second copy, overwrite the file."""
    try:
        write_whole(file, content)
    except OSError:
        if not file.is_file():
            raise
        with os.fdopen(open_to_write(file, os.O_WRONLY), "wb", buffering=0) as there:
            there.write(content)
            there.truncate()
