"""Give the tasks of a run on one machine a private network, which no other process reaches.

A TensorFlow server runs code for anybody who reaches its port. So the tasks of a run on one machine get a private
network. A short-lived process (namespace.py) makes the network namespace, sends its descriptors to the launcher and
ends. Every task enters the namespace through namespace.py before it runs its own program. So the launcher keeps its
network and its threads (the kernel lets no process with threads into a user namespace) and stays the parent of all
tasks. Only the tasks and the launcher's descriptors keep the namespace alive, so it ends with them, however they end.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TypedDict, Unpack

from ps_cluster.config.isolation import WORDS, interface_of
from ps_cluster.errors import UserError
from ps_cluster.notices import Notify, ignore
from ps_cluster.runs.logs import PORTS_OPEN
from ps_cluster.runs.machine_rows import NetworkSummary
from ps_cluster.system.failure_lines import last_error_line

REQUIRE, OFF = "require", "off"  # the other value, "auto", isolates where the system allows it
NAMESPACE_ARGV = (sys.executable, "-I", "-S", str(Path(__file__).with_name("namespace.py")))

_NAMESPACE_WITHIN_S = 30.0  # the kernel makes a namespace in milliseconds, but first finishes the removal of others
_MOST_DESCRIPTORS = 253  # the most descriptors that the kernel sends at once
_OPEN = "the ports of this run are open to whoever reaches this machine, and whoever reaches them can run code as you"


class PopenOptions(TypedDict, total=False):
    """The keyword arguments that `RunNetwork.popen` passes to `subprocess.Popen` unchanged."""

    env: Mapping[str, str]
    cwd: Path | None
    stdin: IO[bytes] | int | None
    stdout: IO[bytes] | int | None
    stderr: IO[bytes] | int | None
    start_new_session: bool
    preexec_fn: Callable[[], None]


@dataclass(frozen=True)
class RunNetwork:
    """The computer network of a run's tasks: namespaces, or the launcher's network if `descriptors` is empty.

    `descriptors`: the file descriptors of the namespaces. `notice`: a warning for the user if the network is not
    private, else None.
    """

    descriptors: tuple[int, ...] = ()
    notice: str | None = None

    @property
    def isolated(self) -> bool:
        return bool(self.descriptors)

    def summary(self) -> NetworkSummary:
        """Return the network's entry in summary.json."""
        return NetworkSummary(private=self.isolated, notice=self.notice)

    def inside(self, argv: tuple[str, ...]) -> tuple[str, ...]:
        """Return a command that runs `argv` in this network. The process of the command must inherit `descriptors`."""
        if not self.descriptors:
            return argv
        return (*NAMESPACE_ARGV, "enter", ",".join(map(str, self.descriptors)), *argv)

    def popen(
        self, argv: list[str], *, pass_fds: tuple[int, ...] = (), **options: Unpack[PopenOptions]
    ) -> subprocess.Popen[bytes]:
        """Start a process in this network, and otherwise act like `subprocess.Popen`."""
        return subprocess.Popen(self.inside(tuple(argv)), pass_fds=(*pass_fds, *self.descriptors), **options)


class Unavailable(Exception):
    """Raised if this system allows no private network. The message says why."""


@contextmanager
def network_for(
    setting: str, run_dir: Path, data_dir: Path, notify: Notify, namespace_argv: tuple[str, ...] = NAMESPACE_ARGV
) -> Iterator[RunNetwork]:
    """Yield the computer network of a run: a private network or, with a notice, the network of this machine.

    A private network is closed after the block. Tasks in the network must be able to write in `run_dir` and to read in
    `data_dir`. Raises UserError if `setting` is "require" and a private network is impossible here, or if `setting`
    names an interface.
    """
    network = _choose(setting, run_dir, data_dir, namespace_argv)
    if network.notice:
        notify(PORTS_OPEN(network.notice))
    try:
        yield network
    finally:
        for descriptor in network.descriptors:
            os.close(descriptor)


def announce_isolation(setting: str, folder: Path, notify: Notify) -> None:
    """Report which network the runs in a folder will have. Raises UserError as `network_for` does.

    A command that starts several runs calls this, because their own notices are only in their logs.
    """
    with network_for(setting, folder, folder, notify):
        pass


def check_isolation(setting: str, run_dir: Path) -> None:
    """Raise UserError if a run can't have the isolation `setting`. Call this before the run changes anything."""
    if setting == REQUIRE or interface_of(setting):
        announce_isolation(setting, run_dir, ignore)


def _choose(setting: str, run_dir: Path, data_dir: Path, namespace_argv: tuple[str, ...]) -> RunNetwork:
    if interface_of(setting):
        words = ", ".join(WORDS)
        raise UserError(
            f"cluster.isolation: got '{setting}': interface=NAME works only with the command `task`, for a run on several "
            f"machines: give one of {words}"
        )
    if setting == OFF:
        return RunNetwork(notice=f"not isolated, because cluster.isolation is off: {_OPEN}")
    try:
        return RunNetwork(new_namespaces("create", str(run_dir), str(data_dir), namespace_argv=namespace_argv))
    except Unavailable as reason:
        if setting == REQUIRE:
            raise UserError(f"cluster.isolation: got 'require', but this system allows no {reason}") from reason
        return RunNetwork(notice=f"not isolated: {_OPEN} (this system allows no {reason})")


def new_namespaces(command: str, *arguments: str, namespace_argv: tuple[str, ...] = NAMESPACE_ARGV) -> tuple[int, ...]:
    """Run a command of namespace.py that makes namespaces; return their descriptors. Raises Unavailable."""
    receiver, sender = socket.socketpair()
    with receiver, sender:
        argv = [*namespace_argv, command, str(sender.fileno()), *arguments]
        try:
            helper = subprocess.run(
                argv,
                pass_fds=[sender.fileno()],
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                timeout=_NAMESPACE_WITHIN_S,
                start_new_session=True,  # Ctrl-C is for the launcher
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            raise Unavailable(f"private network: {error}") from error
        if helper.returncode:
            raise Unavailable(last_error_line(helper))
        return _received(receiver)


def _received(receiver: socket.socket) -> tuple[int, ...]:
    count, descriptors, *_ = socket.recv_fds(receiver, 3, _MOST_DESCRIPTORS, socket.MSG_CMSG_CLOEXEC)
    if len(descriptors) == int(count):
        return tuple(descriptors)
    for descriptor in descriptors:  # a user namespace alone would leave the tasks in the machine's network
        os.close(descriptor)
    raise Unavailable("private network: too many files are open")
