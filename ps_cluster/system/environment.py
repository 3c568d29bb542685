"""Pass on from a process to those that it starts: its end, environment variables and stop signals."""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import shutil
import signal
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from types import FrameType
from typing import Any

import psutil

from ps_cluster.errors import UserError
from ps_cluster.installation import finding_this_package
from ps_cluster.quiet_import import ERRORS_ONLY, LEVEL
from ps_cluster.runs.run_dir import LIFE
from ps_cluster.system.machine import Allowance, allowance

LAUNCHER_PID = "PS_CLUSTER_LAUNCHER_PID"  # environment variable of tasks
CALLER_PID = "PS_CLUSTER_CALLER_PID"  # environment variable of a command that another program has started for itself

_PR_SET_PDEATHSIG = 1


def die_with_launcher() -> None:
    """Ask Linux to kill this process when its launcher ends. Does nothing for a task that was started by hand."""
    _die_with(os.environ.get(LAUNCHER_PID))


def die_with_caller() -> None:
    """Ask Linux to kill this command when the program that called it ends. Does nothing for one started by hand."""
    _die_with(os.environ.pop(CALLER_PID, None))  # removed: a command that this one starts has another caller


def _die_with(parent: str | None) -> None:
    if parent is None:
        return
    die_with_parent()
    if os.getppid() != int(parent):  # it was gone before the line above
        os._exit(1)


def die_with_parent() -> None:
    """Ask Linux to kill this process when its parent ends."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


_M_MMAP_THRESHOLD, _LARGE_BLOCK = -3, 1 << 20


def return_large_blocks() -> None:
    """Let this process give each freed block of 1 MiB or more back to the system (glibc; elsewhere nothing changes).

    glibc keeps such blocks once it has seen one of the size freed, and then they lie scattered. Not for a process that
    allocates such blocks in every step: each would have to be cleared by the system again.
    """
    with contextlib.suppress(AttributeError):
        ctypes.CDLL(None).mallopt(_M_MMAP_THRESHOLD, _LARGE_BLOCK)


# Environment variables for processes that import TensorFlow. They must be set before the import.

_DEFAULTS = {  # unless the user has set them
    LEVEL: ERRORS_ONLY,
    # TensorFlow takes oneDNN by itself only on processors with instructions for networks, such as AVX-512 VNNI (release
    # notes of 2.9). It is faster with AVX2 alone too (docs/results.md).
    "TF_ENABLE_ONEDNN_OPTS": "1",
}
_TEMPORARY = "TMPDIR"
_NO_GRPC_PROXY, _NO_PROXY = "no_grpc_proxy", "no_proxy"
_FIXED = {
    "PYTHONUNBUFFERED": "1",  # the last lines of a killed task are in its log
    "CUDA_VISIBLE_DEVICES": "-1",  # training is on the processors; a visible GPU would be filled by every task
    "OMP_NUM_THREADS": "1",  # the tasks share the cores already
    "MALLOC_ARENA_MAX": "2",  # glibc would keep freed memory for each of many threads: 100 MB over all tasks
    "GRPC_FAIL_FAST": "use_caller",  # a lost ps or worker is an error at once, not a wait
    # Keras 3 on TensorFlow, whatever keras.json or other programs of this user take.
    "KERAS_BACKEND": "tensorflow",
    "KERAS_NNX_ENABLED": "0",
    "TF_USE_LEGACY_KERAS": "0",
    "TF_DETERMINISTIC_OPS": "0",  # TensorFlow then refuses to read the time, which each row of the ledger has
}
# Variable → the values that ask for what tasks can't do (None: all but that of `_FIXED`), and what they do.
_YES = ("1", "true", "True")
_WISHES: Mapping[str, tuple[Sequence[str] | None, str]] = {
    "KERAS_BACKEND": (None, "tasks compute with TensorFlow"),
    "KERAS_NNX_ENABLED": (_YES, "tasks compute with TensorFlow"),
    "TF_USE_LEGACY_KERAS": (_YES, "tasks take Keras 3"),
    "TF_DETERMINISTIC_OPS": (_YES, "TensorFlow then refuses to read the time, which every step does"),
}
_KERAS_FILE = {"backend": "tensorflow", "floatx": "float32", "image_data_format": "channels_last"}
_IMPORTABLE = {"floatx": ("float16", "float32", "float64"), "image_data_format": ("channels_last", "channels_first")}


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


def for_tensorflow(given: Mapping[str, str], allowed: Allowance | None = None) -> dict[str, str]:
    """Return `given` plus the variables that a task's TensorFlow needs."""
    return {**_DEFAULTS, **_threads(allowed or allowance()), **given, **_FIXED}


def not_used(given: Mapping[str, str]) -> Iterator[str]:
    """Yield a line for each wish of the environment, or of the user's keras.json, that tasks do not fulfil.

    Raises:
      UserError: Keras can't be imported with that keras.json.
    """
    for name, (values, why) in _WISHES.items():
        value = given.get(name, "")
        if value and value != _FIXED[name] and (values is None or value in values):
            yield f"{name}={value} is not used: {why}"
    file = keras_home(given) / "keras.json"
    for name, value in _chosen_in(file).items():
        if value != _KERAS_FILE[name]:
            yield f"'{file}': {name}={value} is not used: tasks take {_KERAS_FILE[name]}"


def keras_home(given: Mapping[str, str]) -> Path:
    """Return the folder in which Keras keeps its settings and data sets."""
    if folder := given.get("KERAS_HOME"):
        return Path(os.path.expanduser(folder))
    home = os.path.expanduser("~")
    return Path(home if os.access(home, os.W_OK) else "/tmp", ".keras")  # as keras/src/backend/config.py finds it


def _chosen_in(file: Path) -> dict[str, str]:
    """Return name → value of the settings in keras.json that decide what a task computes with."""
    try:
        content = json.loads(file.read_bytes())
    except ValueError:  # Keras passes over a file that is no JSON
        return {}
    except OSError as error:
        if not os.path.exists(file):  # or it is in a folder that may not be looked into: Keras does without it too
            return {}
        raise UserError(
            f"'{file}' can't be read ({error.strerror}), and Keras reads it: correct or remove it"
        ) from error
    if not isinstance(content, dict):
        raise UserError(f"'{file}' holds no settings, and Keras reads it: correct or remove it")
    for name, values in _IMPORTABLE.items():
        if (value := content.get(name, values[0])) not in values:
            raise UserError(f"'{file}': {name}: got {value!r}: Keras takes {' or '.join(values)}: correct or remove it")
    if not isinstance(epsilon := content.get("epsilon", 1e-7), float):
        raise UserError(f"'{file}': epsilon: got {epsilon!r}: Keras takes a number such as 1e-07: correct or remove it")
    return {name: str(content[name]) for name in _KERAS_FILE if name in content}


def past_proxies(given: Mapping[str, str], hosts: Iterable[str]) -> dict[str, str]:
    """Return `given`, changed so that gRPC connects to `hosts` directly even where a proxy is set.

    gRPC sends every connection through the proxy of `http_proxy` or `https_proxy`, those to this machine too. A company's
    proxy does not know the tasks, so no connection between them would ever be made. Downloads still take the proxy.
    """
    listed = given.get(_NO_GRPC_PROXY, given.get(_NO_PROXY, ""))  # gRPC reads the second one only without the first
    names = (*(name.strip() for name in listed.split(",")), *hosts)
    return {**given, _NO_GRPC_PROXY: ",".join(dict.fromkeys(filter(None, names)))}


def _threads(allowed: Allowance) -> dict[str, str]:
    """Return the thread counts for TensorFlow under a CPU quota; nothing without one.

    One thread per visible processor would use up the quota at once, and all would wait for the next period.
    """
    if not allowed.quota_decides:
        return {}
    # With a single inter-op thread a server never connects.
    return {"TF_NUM_INTRAOP_THREADS": str(allowed.threads), "TF_NUM_INTEROP_THREADS": str(max(2, allowed.threads))}


# Count Ctrl-C, SIGTERM and SIGHUP, for a loop that checks the count.

Handler = Callable[[int, FrameType | None], Any] | int | None  # as `signal.signal` takes and returns it


def stop_signals() -> tuple[int, ...]:
    """Return the signals that ask a run to stop. SIGHUP (terminal closed) is left out where `nohup` ignores it."""
    hang_up = () if signal.getsignal(signal.SIGHUP) == signal.SIG_IGN else (signal.SIGHUP,)
    return signal.SIGINT, signal.SIGTERM, *hang_up


class Drain(threading.Event):
    """Asks the leader to end in order: no new steps, then a last checkpoint.

    Attributes:
      for_good: the user wants the training to end (Ctrl-C). Otherwise the machine is needed, and the training goes on
        when a leader is started again.
    """

    def __init__(self) -> None:
        super().__init__()
        self.for_good = True

    def ask(self, number: int) -> None:
        """Ask by a signal with this number."""
        self.for_good = number == signal.SIGINT
        self.set()


class StopRequests:
    """Counts the stop signals inside the `with` block, in place of their earlier handlers."""

    def __init__(self) -> None:
        self.count = 0
        self.last_signal = 0
        self._before: dict[int, Handler] = {}

    def __enter__(self) -> StopRequests:
        for number in stop_signals():
            self._before[number] = signal.signal(number, self._note)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _note(self, number: int, _: FrameType | None) -> None:
        self.count += 1
        self.last_signal = number

    @property
    def exit_code(self) -> int:
        """The code that shells report for a process ended by this signal: 130 Ctrl-C, 143 SIGTERM, 129 SIGHUP."""
        return 128 + self.last_signal


# Tell which processes belong to a run: a pid that its files name may be another program's by now.

_LISTENING = "0A"  # the state of a socket in /proc/PID/net/tcp


def start_ticks(pid: int) -> int:
    """Return when a process was started, in clock ticks since boot; exec does not count as a start."""
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19])


def age_seconds(pid: int) -> float:
    """Return the seconds since a process was started; exec does not count as a start."""
    return time.clock_gettime(time.CLOCK_BOOTTIME) - start_ticks(pid) / os.sysconf("SC_CLK_TCK")


def life_of(launcher_pid: int) -> str:
    """Return a unique id of a launcher process: pid and start time. In a container the pid alone is often reused."""
    return f"{launcher_pid}@{start_ticks(launcher_pid)}"


def state_of(pid: int, root: Path, life: str | None = None) -> str:
    """Return "running", "stopped" (SIGSTOP), or "gone", for a process that a run's files name.

    Args:
      root: the run directory, resolved.
      life: the unique id of the process (`life_of`), where the files have it.
    """
    with contextlib.suppress(psutil.Error):
        process = psutil.Process(pid)
        if _lives(process, life) if life else belongs(process, root):
            return "stopped" if process.status() == psutil.STATUS_STOPPED else "running"
    return "gone"


def _lives(process: psutil.Process, life: str) -> bool:
    with contextlib.suppress(OSError):
        return process.status() != psutil.STATUS_ZOMBIE and life_of(process.pid) == life
    return False


def listens(pid: int, port: int) -> bool:
    """Return whether anybody listens at a TCP port in the network of a process, which may be a private one.

    Nothing is sent to the port. True where the system does not say.
    """
    try:
        tables = [Path(f"/proc/{pid}/net/{name}").read_text() for name in ("tcp", "tcp6")]
    except PermissionError:
        return True
    except OSError:
        return False
    rows = (line.split() for table in tables for line in table.splitlines()[1:])
    return any(row[3] == _LISTENING and int(row[1].rpartition(":")[2], 16) == port for row in rows)


def belongs(process: psutil.Process, root: Path) -> bool:
    """Return whether a process names this run directory (resolved) or works in it."""
    with contextlib.suppress(psutil.Error):
        if process.status() == psutil.STATUS_ZOMBIE:
            return False
        return str(root) in process.cmdline() or root in Path(process.cwd()).parents
    return False
