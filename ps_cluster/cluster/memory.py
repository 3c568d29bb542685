"""Whether a run's processes fit into the memory that there is for them: an estimate, for a warning before the kernel acts."""

from __future__ import annotations

from ps_cluster.cluster.control_group import Allowance
from ps_cluster.config import RunConfig

_MB = 10**6
# Proportional set sizes of finished runs (`processes` in summary.json; float32, batch 128, two cores), rounded up. Launcher
# and the process that tasks are forked from stand for themselves; a task is little more than its arrays.
SHARED_MB, CHIEF_MB, PS_MB, EVALUATOR_MB, EMPTY_WORKER_MB = 120, 220, 200, 200, 130
WORKER_MB = {"tutorial_cnn": 170, "cifar_tf_cnn": 250, "resnet_small": 350, "airbench": 450}
MEASURED_BATCH = 128


def needed_bytes(config: RunConfig) -> int:
    """Return about how much memory all processes of a run take together at their highest."""
    images = config.training.batch_size_per_worker / MEASURED_BATCH
    worker = EMPTY_WORKER_MB + (WORKER_MB[config.model.name] - EMPTY_WORKER_MB) * images
    workers, servers = config.training_workers, config.slices if config.on_parameter_servers else 0
    leader = CHIEF_MB if config.on_parameter_servers else 0
    evaluator = EVALUATOR_MB if config.cluster.evaluator else 0
    return round((SHARED_MB + leader + PS_MB * servers + worker * workers + evaluator) * _MB)


def warning(config: RunConfig, allowed: Allowance, available_bytes: int) -> str | None:
    """Return a line for the user where the run will take more than there is, else None.

    Args:
      available_bytes: of the machine, as it is now.
    """
    limit = allowed.memory_bytes
    room, why = available_bytes, "the machine has"
    if limit is not None and limit < room:
        room, why = limit, "its control group allows"
    needed = needed_bytes(config)
    if needed <= room:
        return None
    return (
        f"memory: the run takes about {needed / 1e9:.1f} GB and {why} {room / 1e9:.1f} GB: the system will end processes "
        "of it; fewer cluster.workers, a smaller training.batch_size_per_worker or --no-evaluator take less"
    )
