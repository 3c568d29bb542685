"""Manage child processes. Start each in a new process group, signal it, and stop it with all that it has started."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Protocol, TypedDict, TypeVar, Unpack

import psutil

from ps_cluster.system.private_network import RunNetwork

KILL_TIMEOUT_S = 5.0  # from SIGKILL until a process that is still there is given up
_POLL_INTERVAL_S = 0.05


class StartedProcess(Protocol):
    """The part of `subprocess.Popen` that `ChildProcess` uses. `returncode`: negative if a signal ended the process."""

    pid: int
    returncode: int | None

    def poll(self) -> int | None: ...


class StartOptions(TypedDict):
    """The keyword arguments, besides `env`, that `ChildProcess.start` passes to a `Starter` in each call."""

    cwd: Path | None
    stdin: int
    stdout: IO[bytes] | int | None
    stderr: int | None
    start_new_session: bool
    pass_fds: tuple[int, ...]


Started = TypeVar("Started", bound=StartedProcess, covariant=True)


class Starter(Protocol[Started]):
    """A function that starts a process, as `subprocess.Popen` does, e.g. `RunNetwork.popen` or `ForkServer.popen`."""

    def __call__(self, argv: list[str], *, env: Mapping[str, str], **options: Unpack[StartOptions]) -> Started: ...


def group_members(group: int) -> list[int]:
    """Return the pids in a process group, without zombies."""
    members = []
    for process in psutil.process_iter(["status"]):
        with contextlib.suppress(ProcessLookupError, PermissionError):
            if os.getpgid(process.pid) == group and process.info["status"] != psutil.STATUS_ZOMBIE:
                members.append(process.pid)
    return members


@dataclass(frozen=True)
class ProcessCalls:
    """The functions of the operating system that `ChildProcess` calls. Tests replace them by other functions."""

    clock: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep
    signal_group: Callable[[int, int], None] = os.killpg
    group_members: Callable[[int], list[int]] = group_members


class ChildProcess:
    """A process that leads a new session and process group, so that Ctrl-C in a terminal does not reach it."""

    def __init__(self, started: StartedProcess, calls: ProcessCalls = ProcessCalls()):
        self._started = started
        self._calls = calls
        self._gone = False  # the process group was seen empty, so its id may be another group's by now

    @classmethod
    def start(
        cls,
        argv: Sequence[str],
        *,
        env: Mapping[str, str],
        cwd: Path | None = None,
        output: IO[bytes] | int | None = None,
        popen: Starter[StartedProcess] = RunNetwork().popen,
        pass_fds: tuple[int, ...] = (),
        calls: ProcessCalls = ProcessCalls(),
    ) -> ChildProcess:
        """Start a process without input. Raises OSError if the machine refuses.

        `output`: where standard output and standard error go; None: to the outputs of this process.
        """
        started = popen(
            list(argv),
            env=dict(env),
            cwd=cwd,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=None if output is None else subprocess.STDOUT,
            start_new_session=True,
            pass_fds=pass_fds,
        )
        return cls(started, calls)

    @property
    def pid(self) -> int:
        return self._started.pid

    @property
    def exit_code(self) -> int | None:
        """The exit code, negative if a signal ended the process; None while it runs."""
        return self._started.poll()

    @property
    def running(self) -> bool:
        return self.exit_code is None

    @property
    def owns_pid(self) -> bool:
        """Whether the pid still belongs to this process. It does until `exit_code` is read after the process has ended."""
        return self._started.returncode is None

    @property
    def is_frozen(self) -> bool:
        return self.running and is_stopped(self.pid)

    def is_there(self) -> bool:
        """Return whether any process of the group lives."""
        if not self._gone:
            self._gone = not (self.running or self._calls.group_members(self.pid))
        return not self._gone

    def signal(self, number: int) -> None:
        """Send a signal to all processes of the group, if any are there."""
        if self.is_there():
            with contextlib.suppress(ProcessLookupError):
                self._calls.signal_group(self.pid, number)

    def wait(self, within_s: float) -> int | None:
        """Wait until the process has ended. Return its exit code, or None if it still runs after `within_s` seconds."""
        deadline_s = self._calls.clock() + within_s
        while (code := self.exit_code) is None and self._calls.clock() < deadline_s:
            self._calls.sleep(_POLL_INTERVAL_S)
        return code

    def kill(self) -> bool:
        """Kill all processes of the group. Return whether all of them have ended within `KILL_TIMEOUT_S`."""
        return not kill_all([self], self._calls)

    def stop(self, grace_s: float) -> bool:
        """Send SIGTERM to the group, and SIGKILL after `grace_s` seconds. Return whether all processes have ended."""
        return not stop_all([self], grace_s, self._calls)


def stop_all(
    children: Iterable[ChildProcess], grace_s: float, calls: ProcessCalls = ProcessCalls()
) -> list[ChildProcess]:
    """Send SIGTERM to all groups, and SIGKILL to the processes that are left after `grace_s` seconds.

    Return the children that still have processes; usually there are none.
    """
    left = _signal_and_wait(children, signal.SIGTERM, deadline_s := calls.clock() + grace_s, calls)
    return _signal_and_wait(left, signal.SIGKILL, deadline_s + KILL_TIMEOUT_S, calls)


def kill_all(children: Iterable[ChildProcess], calls: ProcessCalls = ProcessCalls()) -> list[ChildProcess]:
    """Send SIGKILL to all groups. Return the children that still have processes after `KILL_TIMEOUT_S`."""
    return _signal_and_wait(children, signal.SIGKILL, calls.clock() + KILL_TIMEOUT_S, calls)


def _signal_and_wait(
    children: Iterable[ChildProcess], number: int, deadline_s: float, calls: ProcessCalls
) -> list[ChildProcess]:
    left = [child for child in children if child.is_there()]
    for child in left:
        child.signal(number)
    while left and calls.clock() < deadline_s:
        calls.sleep(_POLL_INTERVAL_S)
        left = [child for child in left if child.is_there()]
    return left


def is_stopped(pid: int) -> bool:
    """Return whether a process is frozen (SIGSTOP)."""
    try:
        return psutil.Process(pid).status() == psutil.STATUS_STOPPED
    except psutil.Error:
        return False


def signal_name(number: int) -> str:
    """Return the name of a signal, e.g. "SIGKILL"."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def how_ended(exit_code: int) -> str:
    """Return how a process ended, e.g. "exit code 1" or "SIGKILL". `exit_code`: negative if a signal ended it."""
    return f"exit code {exit_code}" if exit_code >= 0 else signal_name(-exit_code)
