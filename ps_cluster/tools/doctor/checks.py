"""The checks of `doctor`: whether this machine and installation can train. No TensorFlow."""

from __future__ import annotations

from pathlib import Path

from ps_cluster.tools.doctor.finding import Check
from ps_cluster.tools.doctor.gpu_checks import MULTIPLY_S, gpus
from ps_cluster.tools.doctor.installation_checks import (
    data_set,
    locked_versions,
    python_version,
    surroundings,
    tensorflow_import,
)
from ps_cluster.tools.doctor.machine_checks import free_disk, memory, ports, processor, user_namespaces
from ps_cluster.tools.doctor.trial import TRIAL_S, trial_cluster


def all_checks(runs: Path, cache_dir: Path, data_dir: Path | None, *, cluster: bool) -> list[Check]:
    """Return all checks, quick ones first. `runs` and `cache_dir` are the folders of runs and of packed data.

    Args:
      data_dir: a folder in which archives are looked for, before the caches.
      cluster: whether to start a cluster.
    """
    quick = [
        Check("python", python_version),
        Check("versions", locked_versions),
        Check("processor", processor),
        Check("memory", memory),
        Check("disk", lambda: free_disk((runs, cache_dir))),
        Check("ports", ports),
        Check("isolation", user_namespaces, limit_s=40.0),  # `network_for` has a limit of 30 s
        Check("environment", surroundings),
        Check("data", lambda: data_set(cache_dir, data_dir)),
        Check("gpus", gpus, limit_s=MULTIPLY_S + 10),
        Check("tensorflow", tensorflow_import, limit_s=130.0),
    ]
    return [*quick, Check("cluster", trial_cluster, limit_s=TRIAL_S + 60)] if cluster else quick
