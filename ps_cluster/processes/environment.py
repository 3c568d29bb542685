"""Environment variables for processes that import TensorFlow. They must be set before the import."""

from __future__ import annotations

from collections.abc import Mapping

from ps_cluster.installation import finding_this_package
from ps_cluster.processes.control_group import Allowance, allowance
from ps_cluster.processes.lifeline import LAUNCHER_PID, start_ticks
from ps_cluster.run.run_dir import LIFE

_DEFAULTS = {"TF_CPP_MIN_LOG_LEVEL": "2"}  # errors only, unless the user wants to see more
_FIXED = {
    "PYTHONUNBUFFERED": "1",  # the last lines of a killed task are in its log
    "CUDA_VISIBLE_DEVICES": "-1",  # training is on the processors; a visible GPU would be filled by every task
    "OMP_NUM_THREADS": "1",  # the tasks share the cores already
    "MALLOC_ARENA_MAX": "2",  # glibc would keep freed memory for each of many threads: 100 MB over all tasks
    "GRPC_FAIL_FAST": "use_caller",  # a lost ps or worker is an error at once, not a wait
}


def for_child(given: Mapping[str, str], launcher_pid: int) -> dict[str, str]:
    """Return `given` plus what a process of a run needs to find this package and to end with its launcher."""
    own = {LAUNCHER_PID: str(launcher_pid), LIFE: life_of(launcher_pid)}
    return for_tensorflow(finding_this_package(given)) | own


def life_of(launcher_pid: int) -> str:
    """Return a unique id of a launcher process: pid and start time. In a container the pid alone is often reused."""
    return f"{launcher_pid}@{start_ticks(launcher_pid)}"


def for_tensorflow(given: Mapping[str, str], allowed: Allowance | None = None) -> dict[str, str]:
    """Return `given` plus the variables that a task's TensorFlow needs."""
    return {**_DEFAULTS, **_threads(allowed or allowance()), **given, **_FIXED}


def _threads(allowed: Allowance) -> dict[str, str]:
    """Return the thread counts for TensorFlow under a CPU quota; nothing without one.

    One thread per visible processor would use up the quota at once, and all would wait for the next period.
    """
    if not allowed.quota_decides:
        return {}
    # With a single inter-op thread a server never connects.
    return {"TF_NUM_INTRAOP_THREADS": str(allowed.threads), "TF_NUM_INTEROP_THREADS": str(max(2, allowed.threads))}
