"""Simulate machines by network namespaces on one switch, each with its own address, link and mounts."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Unpack

from ps_cluster.system.lifetime import die_with_parent
from ps_cluster.system.private_network import PopenOptions, RunNetwork, Unavailable, new_namespaces
from ps_cluster.tools.chaos.namespaces import PROGRAM_S, NotAllowed, program, run_in

MOST_HOSTS = 100
KILLED_WITHIN_S = 10.0

_POLL_INTERVAL_S = 0.02
# Packets larger than the burst are split. The queue holds all that the other hosts may send at once, so that no packet
# is lost by accident.
_BURST, _LONGEST_QUEUE = "32kb", "1s"
_WIRE = str(Path(__file__).with_name("slow_wire.py"))
_ADDRESSES, _SIZE = "10.111.0", 24


@dataclass
class Host:
    """A simulated machine."""

    name: str
    address: str
    run_dir: Path | None  # the folder that processes of the host see as the run directory; its path outside of the host
    number: int
    network: RunNetwork  # the host's namespaces
    switch: RunNetwork  # the network to which all hosts are connected
    _wire: subprocess.Popen[bytes] | None = field(default=None, init=False)

    def popen(self, argv: Sequence[str], **options: Unpack[PopenOptions]) -> subprocess.Popen[bytes]:
        """Start a process on this host, like `subprocess.Popen`. It is killed when the thread that started it ends."""
        return _popen(self.network, argv, **options)

    def cut(self) -> None:
        """Cut the link: packets are lost both ways, without any notice."""
        self._set_link(f"set {self._port} down")

    def restore(self) -> None:
        """Restore the link to its original state."""
        if self._wire is not None:
            self._wire.kill()
            self._wire.communicate()
            self._wire = None
            self._set_link(f"del near{self.number}")
        for network, device in self._ends:
            with contextlib.suppress(NotAllowed):  # there is no limit
                run_in(network, "tc", "qdisc", "del", "dev", device, "root")
        self._set_link(f"set {self._port} master switch", f"set {self._port} up")

    def slow(self, rate: str | None = None, delay_ms: float = 0.0, loss: float = 0.0) -> None:
        """Degrade the link in both directions.

        Args:
          rate: bits per second, as `tc` writes them: "8mbit"; None for no limit.
          delay_ms: the additional time of each packet, one way.
          loss: the share of the packets, 0 to 1, that is lost.
        """
        self.restore()
        if rate is not None:
            limit = ("tbf", "rate", rate, "burst", _BURST, "latency", _LONGEST_QUEUE)
            for network, device in self._ends:
                run_in(network, "tc", "qdisc", "replace", "dev", device, "root", *limit)
        if delay_ms or loss:
            self._begin_wire(delay_ms / 1000, loss)

    def vanish(self) -> None:
        """Cut the link, and kill all processes. No other host receives a packet about it.

        After `restore`, this host is like one that has just been started.
        """
        self.cut()
        _kill_all_in(self.network, self.name)
        # Otherwise a restored link would close the connections of the killed processes, and carry waiting packets.
        run_in(self.network, "ss", "--kill", "--all", "--tcp")
        for state in ("down", "up"):
            run_in(self.network, "ip", "link", "set", "eth0", state)

    @property
    def _port(self) -> str:
        return f"port{self.number}"

    @property
    def _ends(self) -> tuple[tuple[RunNetwork, str], ...]:
        """The two ends of the link: the namespaces and the network interface of each. `tc` limits what an end sends."""
        return (self.switch, self._port), (self.network, "eth0")

    def _set_link(self, *commands: str) -> None:
        for command in commands:
            run_in(self.switch, "ip", "link", *command.split())

    def _begin_wire(self, delay_s: float, loss: float) -> None:
        """Disconnect this host's port from the switch, and reconnect it through a slow wire."""
        near, far = f"near{self.number}", f"far{self.number}"
        self._set_link(f"set {self._port} nomaster", f"add {near} type veth peer name {far}")
        self._set_link(f"set {far} master switch", f"set {far} up", f"set {near} up")
        argv = [sys.executable, "-I", "-S", _WIRE, self._port, near, str(delay_s), str(loss)]
        self._wire = _popen(self.switch, argv, stdout=subprocess.PIPE)
        assert self._wire.stdout is not None
        if not self._wire.stdout.readline():
            raise NotAllowed(
                f"{self.name}: the program that delays and loses packets ended with exit code {self._wire.wait()}"
            )


@contextmanager
def hosts(count: int, *, run_dir: Path | None = None) -> Iterator[list[Host]]:
    """Yield hosts `host-0`, `host-1`, …, each connected to all others. End their processes after the block.

    The namespaces have no names. They exist as long as this program has their descriptors, or a process runs in them.

    Args:
      count: 1 to MOST_HOSTS.
      run_dir: an existing folder, which only host-0 sees. Each other host sees a different folder at the same path.
        Programs outside of a host find the host's folder at `Host.run_dir`.
    Raises:
      NotAllowed: this system does not allow simulated hosts (network namespaces).
    """
    addresses = {f"host-{number}": f"{_ADDRESSES}.{number + 1}" for number in range(count)}
    folders = {name: run_dir and run_dir.with_name(f"{run_dir.name}.{name}") for name in addresses}
    folders["host-0"] = run_dir
    with tempfile.TemporaryDirectory(prefix="ps-cluster-hosts-") as scratch:
        known = Path(scratch) / "hosts"
        known.write_text("".join(f"{addresses[name]} {name}\n" for name in addresses) + "127.0.0.1 localhost\n")
        planned = []
        for name, folder in folders.items():
            mounts = [(str(known), "/etc/hosts")]
            if folder and run_dir:
                folder.mkdir(exist_ok=True)
                mounts.append((os.path.realpath(folder), os.path.realpath(run_dir)))
            planned.append({"name": name, "address": f"{addresses[name]}/{_SIZE}", "mounts": mounts})
        try:
            descriptors = new_namespaces("hosts", json.dumps({"ip": program("ip"), "hosts": planned}))
        except (Unavailable, NotAllowed) as reason:
            raise NotAllowed(f"hosts on this machine: {reason}") from reason
    # The descriptors are [user,] switch, and two for each host. A user namespace is entered before the others.
    user, (switch, *rest) = descriptors[: -2 * count - 1], descriptors[-2 * count - 1 :]
    at_switch = RunNetwork((*user, switch))
    machines = [
        Host(name, addresses[name], folder, number, RunNetwork((*user, *rest[2 * number : 2 * number + 2])), at_switch)
        for number, (name, folder) in enumerate(folders.items())
    ]
    with contextlib.ExitStack() as ends:
        for descriptor in descriptors:
            ends.callback(os.close, descriptor)
        ends.callback(_kill_all_in, at_switch, "the switch")
        for machine in machines:
            ends.callback(_kill_all_in, machine.network, machine.name)
        yield machines


def why_not() -> str | None:
    """Return why this system does not allow simulated hosts (network namespaces); None if it does."""
    try:
        program("tc")
        with hosts(1):
            return None
    except NotAllowed as reason:
        return str(reason)


def pids_in(network: RunNetwork) -> list[int]:
    """Return the pids of all processes in the namespaces of `network`, without those that have ended."""
    return [pid for pid in map(int, filter(str.isdigit, os.listdir("/proc"))) if _is_in(network, pid)]


def _kill_all_in(network: RunNetwork, name: str) -> None:
    """Kill all processes in the namespaces of `network`. Raises NotAllowed if one exists after KILLED_WITHIN_S."""
    deadline = time.monotonic() + KILLED_WITHIN_S
    while left := pids_in(network):
        for pid in left:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        if time.monotonic() > deadline:
            raise NotAllowed(f"{name}: processes {left} outlive SIGKILL")
        time.sleep(_POLL_INTERVAL_S)


def _is_in(network: RunNetwork, pid: int) -> bool:
    try:
        entered = os.stat(f"/proc/{pid}/ns/net").st_ino
    except OSError:  # it has ended, or belongs to another user
        return False
    return entered in (os.fstat(descriptor).st_ino for descriptor in network.descriptors)


def _popen(network: RunNetwork, argv: Sequence[str], **options: Unpack[PopenOptions]) -> subprocess.Popen[bytes]:
    """Start a process, and wait until it has entered the namespaces, so that `_kill_all_in` can't miss it."""
    options.setdefault("preexec_fn", die_with_parent)
    process = network.popen(list(argv), **options)
    deadline = time.monotonic() + PROGRAM_S
    while process.poll() is None and not _is_in(network, process.pid):
        if time.monotonic() > deadline:
            process.kill()
            process.wait()
            raise NotAllowed(f"{argv[0]} did not enter the namespaces of its host within {PROGRAM_S:.0f} s")
        time.sleep(_POLL_INTERVAL_S / 10)
    return process
