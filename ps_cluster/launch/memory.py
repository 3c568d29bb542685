"""Estimate whether a run's processes fit into the available memory, to warn before the kernel kills one.

This is for networks whose memory was measured. training/memory.py has an estimate for all others.
"""

from __future__ import annotations

from collections.abc import Iterable

from ps_cluster.config import RunConfig
from ps_cluster.config.networks import NETWORKS
from ps_cluster.config.tasks import CHIEF
from ps_cluster.system.limits import FreeMemory

_MB = 10**6
# Fitted to `peak_memory_bytes` of runs with 3 workers, 1 ps and an evaluator (batch 128, float32, 90 steps, n = 1
# each): 1,785 MB for airbench, 1,330 MB for cifar_tf_cnn, 1,224 MB for resnet_small, 750 to 850 MB for tutorial_cnn.
# The tasks do not all reach their peaks at the same time. In the default run (batch 256, bfloat16, 918 steps), airbench
# needs more: 3,029 to 3,172 MB.
SHARED_MB = 100  # the launcher, and the process that tasks are forked from
SERVING_MB = 160  # for each of the chief, the parameter servers and the evaluator
EMPTY_WORKER_MB, MEASURED_BATCH = 130, 128
# Additional, for a worker that sees a GPU: it is not forked, so it shares no import (n = 2, tutorial_cnn).
UNSHARED_MB = 320
HOLDS_ALL_MB = 70  # additional, for a worker that holds all parameters itself


def needed_bytes(config: RunConfig) -> int | None:
    """Return the estimated peak memory of all processes of a run together; None for a network without a measurement."""
    measured_mb = NETWORKS[config.model.name].worker_mb
    if measured_mb is None:
        return None
    images = config.training.batch_size_per_worker / MEASURED_BATCH
    worker = EMPTY_WORKER_MB + (measured_mb - EMPTY_WORKER_MB) * images
    if config.cluster.on_gpus:
        worker += UNSHARED_MB
    kind = config.chosen_mode
    serving = int(config.cluster.evaluator) + (kind.trainer_type != CHIEF and CHIEF in kind.cluster.types)
    if config.chosen_mode.has_parameter_servers:
        serving += config.shards
    else:
        worker += HOLDS_ALL_MB
    return round((SHARED_MB + SERVING_MB * serving + worker * config.most_workers) * _MB)


def expected(configs: Iterable[RunConfig], at_once: int = 1) -> str:
    """Return in words the memory that `at_once` runs need together, if each is as large as the largest of `configs`."""
    needed = [needed_bytes(config) for config in configs]
    if not needed or None in needed:
        return "not known for one of the networks"
    return f"up to {at_once * max(filter(None, needed)) / 1e9:.1f} GB"


def warning(config: RunConfig, free: FreeMemory) -> str | None:
    """Return a line for the user if the run needs more memory than is available, else None."""
    needed = needed_bytes(config)
    if needed is None or needed <= free.memory_bytes:
        return None
    return (
        f"memory: the run takes about {needed / 1e9:.1f} GB, but {free}: the system may kill its processes; fewer "
        "cluster.workers, a smaller training.batch_size_per_worker or --no-evaluator need less memory"
    )
