"""Environment variables for processes that import TensorFlow. They must be set before the import."""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path

from ps_cluster.installation import finding_this_package
from ps_cluster.processes.control_group import Allowance, allowance
from ps_cluster.processes.lifeline import LAUNCHER_PID, start_ticks
from ps_cluster.quiet_import import ERRORS_ONLY, LEVEL
from ps_cluster.run.run_dir import LIFE

_DEFAULTS = {LEVEL: ERRORS_ONLY}  # unless the user wants to see more
_TEMPORARY = "TMPDIR"
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


@contextlib.contextmanager
def temporary_files_in(folder: Path) -> Iterator[None]:
    """Give the processes that are started inside the block `folder` for their temporary files; remove it at the end.

    A task can't remove its own: it may be killed. Only this user reads them. What a command that was killed has left in
    `folder` is removed first. Where it can't be made, as on a full disk, Python takes the system's folder.
    """
    before = os.environ.get(_TEMPORARY)
    shutil.rmtree(folder, ignore_errors=True)
    with contextlib.suppress(OSError):
        folder.mkdir(mode=0o700)
    os.environ[_TEMPORARY] = str(folder)
    try:
        yield
    finally:
        os.environ.pop(_TEMPORARY) if before is None else os.environ.update({_TEMPORARY: before})
        shutil.rmtree(folder, ignore_errors=True)


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
