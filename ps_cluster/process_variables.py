"""List the environment variables by which a process of this package passes state on to the processes that it starts.

All other state is passed in as arguments. Only this module writes these variables into the environment of its own process.
"""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Iterable, Iterator
from pathlib import Path

TF_CONFIG = "TF_CONFIG"  # the cluster, and which of its tasks this process is; users and schedulers set it too
LAUNCHER_PID = "PS_CLUSTER_LAUNCHER_PID"  # the pid of the launcher of a task; the task ends when this launcher ends
CALLER_PID = "PS_CLUSTER_CALLER_PID"  # the pid of the program that started a command; the command ends with the program
LIFE = "PS_CLUSTER_LIFE"  # the launcher's unique id, which rows contain; unset in a task that was started by hand
LOG_FORMAT = "PS_CLUSTER_LOG_FORMAT"  # the name of the format of log lines (runs/logs.py)
LOG_TASK = "PS_CLUSTER_LOG_TASK"  # the name of the process in log lines, e.g. "worker-1"
TRUSTED_FILES = "PS_CLUSTER_CODE"  # the files of code that may be run, one per line (config/user_code.py)
TEMPORARY = "TMPDIR"  # the folder for temporary files


def set_tf_config(content: str) -> None:
    """Tell TensorFlow in this process which cluster it belongs to (`ClusterTopology.tf_config`)."""
    os.environ[TF_CONFIG] = content


def set_log_format(name: str) -> None:
    """Write the log lines of this process, and of the processes that it starts, in this format."""
    os.environ[LOG_FORMAT] = name


def set_log_task(name: str) -> None:
    os.environ[LOG_TASK] = name


def trusted_files() -> list[str]:
    return [name for name in os.environ.get(TRUSTED_FILES, "").split("\n") if name]


def set_trusted_files(files: Iterable[str]) -> None:
    """Allow this process, and the processes that it starts, to run the code in these files, given as absolute paths."""
    os.environ[TRUSTED_FILES] = "\n".join(files)


def take_caller_pid() -> str | None:
    """Return the pid of the program that started this command, or None if it is not set.

    The pid is removed from the environment, so that child processes do not inherit it.
    """
    return os.environ.pop(CALLER_PID, None)


@contextlib.contextmanager
def temporary_files_in(folder: Path) -> Iterator[None]:
    """Put the temporary files of processes that are started in the block into `folder`. Remove the folder at the end.

    A task can't remove its temporary files itself, because it may be killed. Files that a killed command left in `folder`
    are removed first. If the folder can't be made, e.g. on a full disk, Python uses the system's folder.
    """
    before = os.environ.get(TEMPORARY)
    shutil.rmtree(folder, ignore_errors=True)
    with contextlib.suppress(OSError):
        folder.mkdir(mode=0o700)  # only this user may read temporary files
    os.environ[TEMPORARY] = str(folder)
    try:
        yield
    finally:
        os.environ.pop(TEMPORARY) if before is None else os.environ.update({TEMPORARY: before})
        shutil.rmtree(folder, ignore_errors=True)
