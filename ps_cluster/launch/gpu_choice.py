"""Decide which tasks of a run compute on a GPU of this machine, and report GPUs that are not used."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence

from ps_cluster.config import RunConfig
from ps_cluster.config.tasks import Task
from ps_cluster.launch.topology import ClusterTopology
from ps_cluster.notices import Notify
from ps_cluster.system.gpus import usable_gpus


def is_on_gpus(
    config: RunConfig, topology: ClusterTopology, task: Task, environment: Mapping[str, str] = os.environ
) -> bool:
    """Return whether a task sees GPUs: it computes gradients, the user asked for GPUs, and this machine has some."""
    asked = config.cluster.on_gpus and topology.computes_gradients(task)
    return asked and bool(usable_gpus(environment))


def with_gpus_found(config: RunConfig, gpus: Sequence[str], notify: Notify, *, replaces: bool = True) -> RunConfig:
    """Return `config` with `cluster.gpus` set to "none" if this machine has no GPU. Report unused or missing GPUs.

    `gpus`: the GPUs of this machine. `replaces`: whether the setting may be replaced; False for a task on one of
    several machines.
    """
    if not config.cluster.on_gpus:
        if gpus:
            count, them = (f"{len(gpus)} GPUs, which are", "them") if len(gpus) > 1 else ("a GPU, which is", "it")
            notify(f"this machine has {count} not used: --gpus auto would let the workers compute on {them}")
        return config
    if gpus:
        return config
    notify("cluster.gpus: got 'auto', but this machine has no GPU to use: training uses its processors")
    return config.with_values({"cluster.gpus": "none"}) if replaces else config
