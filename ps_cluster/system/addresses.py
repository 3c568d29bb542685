"""Split addresses `host:port`, and check whether this machine can resolve the host and whether its port is free."""

from __future__ import annotations

import socket
from collections.abc import Iterable


def host_and_port(address: str) -> tuple[str, int]:
    """Return the two parts of "host:port". An IPv6 host is returned without its brackets."""
    host, _, port = address.rpartition(":")
    return host.strip("[]"), int(port)


def check_is_free(address: str) -> None:
    """Raise OSError if another program listens at the port of `host:port`. TensorFlow would need seconds to notice."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # like TensorFlow: ended connections don't matter
        probe.bind(("", host_and_port(address)[1]))


def unknown_hosts(addresses: Iterable[str]) -> list[str]:
    """Return the hosts in addresses `host:port` whose names this machine can't look up."""
    unknown = []
    for host in dict.fromkeys(host_and_port(address)[0] for address in addresses):
        try:
            socket.getaddrinfo(host, None)
        except (OSError, UnicodeError):
            unknown.append(host)
    return unknown
