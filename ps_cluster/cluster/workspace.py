"""The working directory of a task. The chief's graph has paths relative to it, so one graph fits all workers."""

from __future__ import annotations

import os
import struct
from pathlib import Path

from ps_cluster.catalogue.task_types import Task
from ps_cluster.config import RunConfig
from ps_cluster.data.packed import PackedDataset, fields_of, file_name
from ps_cluster.files.writing import write_whole
from ps_cluster.run.agreement import Agreement
from ps_cluster.run.run_dir import AGREEMENT, IDENTITY, RunDir


def enter(run_dir: RunDir, task: Task, config: RunConfig, dataset: PackedDataset, *, computes_gradients: bool) -> None:
    """Make the task's working directory and change into it.

    It holds `agreement.json`, which the leader compares with its own. For a task that computes gradients it also holds
    links to the training examples of this machine's packed data set, and `identity`, int64 [2]: the task's index and pid.
    """
    directory = run_dir.workspace(task.type, task.index)
    directory.mkdir(parents=True, exist_ok=True)
    agreement = Agreement.of(config, dataset)
    write_whole(directory / AGREEMENT, agreement.to_json())
    if computes_gradients:
        for name, field in fields_of(dataset.spec).items():
            file = file_name("train", name, field)
            _link(directory / file, dataset.directory / file)
        write_whole(directory / IDENTITY, struct.pack("<2q", task.index, os.getpid()))
    os.chdir(directory)


def _link(link: Path, target: Path) -> None:
    link.unlink(missing_ok=True)
    link.symlink_to(target)
