"""Report who can reach the port of a task on one of several machines, and if asked, close it to all interfaces but one."""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Callable, Iterator, Mapping

import psutil

from ps_cluster.config.isolation import interface_of
from ps_cluster.config.tasks import Task
from ps_cluster.errors import TemporaryFailure, UserError
from ps_cluster.notices import Notify
from ps_cluster.system.addresses import host_and_port
from ps_cluster.system.firewall import Refused, keep_rules, only_through
from ps_cluster.system.private_network import REQUIRE

_PAGE = "docs/clusters.md#security"


def guard_port(
    setting: str,
    port: int | None,
    members: Mapping[Task, str],
    notify: Notify,
    keep: Callable[[str], None] = keep_rules,
) -> None:
    """Report who can reach the port of a task. If `setting` names an interface, close the port to all other interfaces.

    `members`: the tasks of the cluster with their addresses. Raises UserError if `setting` is "require", if the port
    can't be limited to the interface, or if this machine does not reach the members through the interface. Raises
    TemporaryFailure if the name service does not know an address yet.
    """
    if port is None:
        return
    check_can_guard(setting)
    if (interface := interface_of(setting)) is not None:
        try:
            keep(only_through(interface, port, _behind(interface, members)))
        except Refused as reason:
            raise UserError(
                f"cluster.isolation: got '{setting}': {reason}; {_PAGE} shows how to close the port yourself"
            ) from reason
    notify(who_reaches(f"port {port}", setting))


def check_can_guard(setting: str) -> None:
    """Raise UserError if `setting` is an isolation that is impossible for a cluster on several machines."""
    if setting == REQUIRE:
        raise UserError(
            "cluster.isolation: got 'require': a task can't create a private network of several machines; give the value "
            f"interface=NAME instead, or see {_PAGE}"
        )


def who_reaches(ports: str, setting: str) -> str:
    """Return a line that says who can reach `ports` (text such as "port 2222") if the isolation is `setting`."""
    if (interface := interface_of(setting)) is None:
        return f"not isolated: whoever reaches {ports} can run code as you, and nothing is encrypted: {_PAGE}"
    return f"{ports}: only connections through {interface} and from your own processes on the same machine are accepted"


def _behind(interface: str, members: Mapping[Task, str]) -> Iterator[tuple[str, int]]:
    """Yield IP address and port of each cluster member. Raises UserError if `interface` does not lead to a member."""
    here = psutil.net_if_addrs()
    if interface not in here:
        raise _wrong(
            interface,
            f"this machine has no interface '{interface}' with an address: choose one of {', '.join(sorted(here))}",
        )
    own = {one.address.partition("%")[0] for one in here[interface]}
    for member, address in members.items():
        host, port = host_and_port(address)
        try:
            endpoints = {
                (family, where[0]) for family, *_, where in socket.getaddrinfo(host, port, type=socket.SOCK_DGRAM)
            }
        except OSError as error:  # a scheduler may give a name to a task only once the task starts
            raise TemporaryFailure(
                f"{_got(interface)}: the address of {member}, '{address}', can't be looked up ({error.strerror}): correct "
                "it, or run the same command again when the name service knows it"
            ) from error
        except UnicodeError as error:
            raise _wrong(interface, f"the address of {member}, '{address}', can't be looked up: {error}") from error
        for family, number in endpoints:
            if not ipaddress.ip_address(number).is_loopback and _source(family, str(number)) not in own:
                raise _wrong(
                    interface,
                    f"{member} at '{address}' is not reached through this interface: give every task an "
                    "address in the network of this interface",
                )
            yield str(number), port


def _source(family: int, number: str) -> str | None:
    """Return the local address of connections to the IP address `number`, or None without a route. Sends nothing."""
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect((number, 1))
        except OSError:
            return None
        return str(probe.getsockname()[0])


def _got(interface: str) -> str:
    return f"cluster.isolation: got 'interface={interface}'"


def _wrong(interface: str, what: str) -> UserError:
    return UserError(f"{_got(interface)}: {what}")
