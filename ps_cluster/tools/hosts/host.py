"""One machine of several on this one: its processes, its link, its address."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ps_cluster.system.environment import die_with_parent
from ps_cluster.system.isolation import RunNetwork, Unavailable, new_namespaces

KILLED_WITHIN_S = 10.0

_PROGRAM_S = 30.0  # for programs that set up a link; they take milliseconds
_LOOK_EVERY_S = 0.02
# Larger packets are cut. The queue holds what all others may send at once, so no packet is lost unless that is asked for.
_BURST, _LONGEST_QUEUE = "32kb", "1s"
_PYTHON = (sys.executable, "-I", "-S")
_WIRE = str(Path(__file__).with_name("slow_wire.py"))
_CONNECT = "import socket, sys; socket.create_connection((sys.argv[1], int(sys.argv[2])), float(sys.argv[3])).close()"


class HostFailed(Exception):
    """A host could not do what it was told. The message is one line."""


@dataclass
class Host:
    """A machine with an address, a link to the others, and mounts of its own.

    Attributes:
      name: known to all hosts. address: its IPv4 address.
      run_dir: the folder, as this program sees it, that processes of the host see at the path of the run directory.
    """

    name: str
    address: str
    run_dir: Path | None
    number: int
    network: RunNetwork  # the host's namespaces
    switch: RunNetwork  # to which all hosts are connected
    _wire: subprocess.Popen[bytes] | None = field(default=None, init=False)

    def popen(self, argv: Sequence[str], **options: Any) -> subprocess.Popen[bytes]:
        """Start a process on this host; otherwise as `subprocess.Popen`. It ends with the thread that started it."""
        return _popen(self.network, argv, **options)

    def can_reach(self, other: Host | str, port: int, within_s: float = 2.0) -> bool:
        """Return whether a connection from here to this port of `other`, a host or a name, can be made."""
        address = other if isinstance(other, str) else other.address
        return not _ended(self.network, *_PYTHON, "-c", _CONNECT, address, str(port), str(within_s)).returncode

    def cut(self) -> None:
        """Cut the link: packets are lost both ways, and nobody is told."""
        self._set_link(f"set {self._port} down")

    def restore(self) -> None:
        """Join and mend the link: as it was at first."""
        self._end_wire()
        for network, device in self._ends:
            _ended(network, *_traffic_control(), "del", "dev", device, "root")  # fails where there is none
        self._set_link(f"set {self._port} master switch", f"set {self._port} up")

    def slow(self, rate: str | None = None, delay_ms: float = 0.0, loss: float = 0.0) -> None:
        """Make the link worse, both ways, than it was at first.

        Args:
          rate: of bits, as `tc` writes it: "8mbit"; None for no limit.
          delay_ms: what each packet takes longer, one way.
          loss: share of the packets, 0 to 1, that don't arrive.
        """
        self.restore()
        if rate is not None:
            limit = ("tbf", "rate", rate, "burst", _BURST, "latency", _LONGEST_QUEUE)
            for network, device in self._ends:
                _run(network, *_traffic_control(), "replace", "dev", device, "root", *limit)
        if delay_ms or loss:
            self._begin_wire(delay_ms / 1000, loss)

    def vanish(self) -> None:
        """Lose the host: the link is cut, then all processes end, and no other host hears of it.

        `restore` makes it a host that has just been started.
        """
        self.cut()
        self.kill_all()
        # Their connections wait to say goodbye over a restored link, and so do packets for an address to be found.
        _run(self.network, program("ss"), "--kill", "--all", "--tcp")
        for state in ("down", "up"):
            _run(self.network, program("ip"), "link", "set", "eth0", state)

    def pids(self) -> list[int]:
        """Return the pids of all processes on this host."""
        return pids_in(self.network)

    def kill_all(self) -> None:
        """Kill all processes on this host. Raises HostFailed if one is left."""
        kill_all_in(self.network, self.name)

    @property
    def _port(self) -> str:
        return f"port{self.number}"

    @property
    def _ends(self) -> tuple[tuple[RunNetwork, str], ...]:
        """Both ends of the link: what each sends can be limited."""
        return (self.switch, self._port), (self.network, "eth0")

    def _set_link(self, *commands: str) -> None:
        for command in commands:
            _run(self.switch, program("ip"), "link", *command.split())

    def _begin_wire(self, delay_s: float, loss: float) -> None:
        """Take the port off the switch, and put it back with a wire between."""
        near, far = f"near{self.number}", f"far{self.number}"
        self._set_link(f"set {self._port} nomaster", f"add {near} type veth peer name {far}")
        self._set_link(f"set {far} master switch", f"set {far} up", f"set {near} up")
        argv = [*_PYTHON, _WIRE, self._port, near, str(delay_s), str(loss)]
        self._wire = _popen(self.switch, argv, stdout=subprocess.PIPE)
        assert self._wire.stdout is not None
        if not self._wire.stdout.readline():
            raise HostFailed(f"{self.name}: the program that delays and loses packets ended with {self._wire.wait()}")

    def _end_wire(self) -> None:
        if self._wire is None:
            return
        self._wire.kill()
        self._wire.communicate()
        self._wire = None
        self._set_link(f"del near{self.number}")


def program(name: str) -> str:
    """Return the path of a program. Raises HostFailed where there is none."""
    if (path := shutil.which(name, path=f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin")) is None:
        raise HostFailed(f"there is no program `{name}` (package iproute2)")
    return path


def pids_in(network: RunNetwork) -> list[int]:
    """Return the pids of all processes in a network, without those that have ended."""
    return [pid for pid in map(int, filter(str.isdigit, os.listdir("/proc"))) if _is_in(network, pid)]


def kill_all_in(network: RunNetwork, name: str) -> None:
    """Kill all processes in a network, in bounded time. Raises HostFailed if one is left."""
    deadline = time.monotonic() + KILLED_WITHIN_S
    while left := pids_in(network):
        for pid in left:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        if time.monotonic() > deadline:
            raise HostFailed(f"{name}: processes {left} outlive SIGKILL")
        time.sleep(_LOOK_EVERY_S)


def _is_in(network: RunNetwork, pid: int) -> bool:
    try:
        entered = os.stat(f"/proc/{pid}/ns/net").st_ino
    except OSError:  # it has ended, or is another user's
        return False
    return entered in (os.fstat(descriptor).st_ino for descriptor in network.descriptors)


def _popen(network: RunNetwork, argv: Sequence[str], **options: Any) -> subprocess.Popen[bytes]:
    """Start a process in a network, and wait until it is there: what ends all that are there must not miss it."""
    process = network.popen(list(argv), **{"preexec_fn": die_with_parent, **options})
    deadline = time.monotonic() + _PROGRAM_S
    while process.poll() is None and not _is_in(network, process.pid):
        if time.monotonic() > deadline:
            process.kill()
            process.wait()
            raise HostFailed(f"{argv[0]} did not reach its host within {_PROGRAM_S:.0f} s")
        time.sleep(_LOOK_EVERY_S / 10)
    return process


def _traffic_control() -> tuple[str, str]:
    return program("tc"), "qdisc"


def _run(network: RunNetwork, *argv: str) -> None:
    """Run a program in a network. Raises HostFailed with its last line."""
    if (ended := _ended(network, *argv)).returncode:
        said = ended.stderr.strip().splitlines() or [f"exit code {ended.returncode}"]
        raise HostFailed(f"{Path(argv[0]).name} {' '.join(argv[1:])}: {said[-1]}")


def _ended(network: RunNetwork, *argv: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        network.inside(argv),
        pass_fds=network.descriptors,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=_PROGRAM_S,
    )


# Make hosts: network namespaces on one switch, each with its own mounts. They end with their last process.
#
# Nothing has a name that stays: descriptors of this program and processes on the hosts keep the namespaces alive.

MOST_HOSTS = 100

_NETWORK, _SIZE = "10.111.0", 24
_HOSTS_FILE = Path("/etc/hosts")


class NoHosts(Exception):
    """This system allows no hosts; the message says why."""


@contextmanager
def hosts(count: int, *, run_dir: Path | None = None, shared: bool = True) -> Iterator[list[Host]]:
    """Yield hosts `host-0`, `host-1`, …, each connected to all others. Ends their processes after the block.

    Args:
      count: 1 to MOST_HOSTS.
      run_dir: an existing folder. Every host has a mount of its own there.
      shared: whether all hosts see the same run directory; else only host-0 does, and the others see a folder of their
        own in its place, `host.run_dir`.
    Raises:
      NoHosts: this system does not allow them.
    """
    names = [f"host-{number}" for number in range(count)]
    addresses = [f"{_NETWORK}.{number + 1}" for number in range(count)]
    folders = [_folder_of(name, run_dir, shared or number == 0) for number, name in enumerate(names)]
    with tempfile.TemporaryDirectory(prefix="ps-cluster-hosts-") as scratch:
        known = Path(scratch) / "hosts"
        known.write_text(
            "".join(f"{line}\n" for line in ("127.0.0.1 localhost", *map(" ".join, zip(addresses, names))))
        )
        mounts = [[(str(known), str(_HOSTS_FILE)), *_mounted(folder, run_dir)] for folder in folders]
        descriptors = _made(names, addresses, mounts)
    switch, networks = _networks(descriptors, count)
    made = zip(names, addresses, folders, networks)
    machines = [
        Host(name, address, folder, number, network, switch)
        for number, (name, address, folder, network) in enumerate(made)
    ]
    try:
        yield machines
    finally:
        _end(machines, switch, descriptors)


def why_not() -> str | None:
    """Return why this system does not allow hosts; None where it does."""
    try:
        program("tc")
        with hosts(1):
            return None
    except (NoHosts, HostFailed) as reason:
        return str(reason)


def _folder_of(name: str, run_dir: Path | None, sees_it: bool) -> Path | None:
    if run_dir is None or sees_it:
        return run_dir
    own = run_dir.with_name(f"{run_dir.name}.{name}")
    own.mkdir(exist_ok=True)
    return own


def _mounted(folder: Path | None, run_dir: Path | None) -> list[tuple[str, str]]:
    return [] if folder is None or run_dir is None else [(os.path.realpath(folder), os.path.realpath(run_dir))]


def _made(names: Sequence[str], addresses: Sequence[str], mounts: Sequence[list[tuple[str, str]]]) -> tuple[int, ...]:
    """Return descriptors of [user,] switch, and two of each host."""
    planned = [
        {"name": name, "address": f"{address}/{_SIZE}", "mounts": mounted}
        for name, address, mounted in zip(names, addresses, mounts)
    ]
    try:
        return new_namespaces("hosts", json.dumps({"ip": program("ip"), "hosts": planned}))
    except (Unavailable, HostFailed) as reason:
        raise NoHosts(f"hosts on this machine: {reason}") from reason


def _networks(descriptors: Sequence[int], count: int) -> tuple[RunNetwork, list[RunNetwork]]:
    """Return the switch's network and those of the hosts. A user namespace is entered before any of them."""
    user, (switch, *rest) = tuple(descriptors[: -2 * count - 1]), descriptors[-2 * count - 1 :]
    pairs = [tuple(rest[2 * number : 2 * number + 2]) for number in range(count)]
    return RunNetwork((*user, switch)), [RunNetwork((*user, *pair)) for pair in pairs]


def _end(machines: Sequence[Host], switch: RunNetwork, descriptors: Sequence[int]) -> None:
    """End all processes and let go of the namespaces. Raises HostFailed if a process is left."""
    with contextlib.ExitStack() as ends:
        for descriptor in descriptors:
            ends.callback(os.close, descriptor)
        ends.callback(kill_all_in, switch, "the switch")
        for machine in machines:
            ends.callback(machine.kill_all)
