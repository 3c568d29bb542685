"""Make hosts: network namespaces on one switch, each with its own mounts. They end with their last process.

Nothing has a name that stays: descriptors of this program and processes on the hosts keep the namespaces alive.
"""

from __future__ import annotations

import contextlib
import json
import os
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from ps_cluster.hosts.host import Host, HostFailed, kill_all_in, program
from ps_cluster.processes.isolation import RunNetwork, Unavailable, new_namespaces

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
