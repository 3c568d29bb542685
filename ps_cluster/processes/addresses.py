"""Take addresses of tasks apart."""

from __future__ import annotations


def host_and_port(address: str) -> tuple[str, int]:
    """Return the parts of "host:port", an IPv6 address without its brackets."""
    host, _, port = address.rpartition(":")
    return host.strip("[]"), int(port)
