"""Describe the training that a process is started for."""

from __future__ import annotations

from dataclasses import dataclass, field

from ps_cluster.config import RunConfig
from ps_cluster.data.packed import PackedDataset
from ps_cluster.runs.leaders import LeaderStart
from ps_cluster.runs.run_dir import RunDir
from ps_cluster.system.stop_signals import Drain


@dataclass(frozen=True)
class TrainingJob:
    """The description of one training, for the process that leads it (in mode sync, for every worker)."""

    config: RunConfig
    run_dir: RunDir
    dataset: PackedDataset
    cluster: dict[str, list[str]] = field(default_factory=dict)  # task type → the addresses of its tasks
    index: int = 0  # the index of this process among the tasks of its type
    resume: bool = False  # whether training continues from the newest checkpoint
    drain: Drain = field(default_factory=Drain)  # set when training has to end early, after the steps under way
    leading: LeaderStart = LeaderStart()  # how this process was started
