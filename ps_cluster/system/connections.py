"""End connections of this process to machines that have vanished or are silent. TensorFlow never ends such connections.

TensorFlow sets no keepalive. A machine that loses its power or network closes no connection. So a request to it would
wait for a quarter of an hour, or for ever if the data that was sent to it has already arrived. The system does not
notice that a process at the other end is paused, so only this process can end a connection to a paused process.
"""

from __future__ import annotations

import contextlib
import ipaddress
import os
import socket
import threading
from collections.abc import Callable
from typing import Any

from ps_cluster.system.addresses import host_and_port

_NEW_CONNECTIONS_POLL_S = 2.0
_PROBES = 3


def give_up_lost_connections(after_s: float) -> None:
    """From now on, end every TCP connection of this process whose other side sends nothing for `after_s` seconds."""
    threading.Thread(target=_watch, args=(after_s,), name="connections", daemon=True).start()


def cut(address: str) -> None:
    """End all TCP connections of this process to `host:port`. Raises OSError if the host's name is not known."""
    host, port = host_and_port(address)
    ends = {_end(found) for *_, found in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)}

    def end(connection: socket.socket) -> None:
        if _end(connection.getpeername()) in ends:
            connection.shutdown(socket.SHUT_RDWR)

    _for_each_connection(end)


def _end(address: tuple[Any, ...]) -> tuple[str, int]:
    """Return host and port of a socket address.

    An IPv4 host is always written as an IPv4 address, even if a socket reports it as IPv6.
    """
    host = ipaddress.ip_address(address[0])
    mapped = host.ipv4_mapped if isinstance(host, ipaddress.IPv6Address) else None
    return str(mapped or host), address[1]


def _watch(after_s: float) -> None:
    while True:
        _for_each_connection(lambda connection: _limit(connection, after_s))
        threading.Event().wait(_NEW_CONNECTIONS_POLL_S)


def _for_each_connection(act: Callable[[socket.socket], None]) -> None:
    """Call `act` with each TCP connection of this process. A connection that is closed meanwhile is skipped."""
    with contextlib.suppress(OSError):  # e.g. no descriptor is left just now
        for name in os.listdir("/proc/self/fd"):
            with contextlib.suppress(OSError):
                if not os.readlink(f"/proc/self/fd/{name}").startswith("socket:"):
                    continue
                with _socket_of(int(name)) as connection:
                    if connection.family in (socket.AF_INET, socket.AF_INET6) and connection.type == socket.SOCK_STREAM:
                        act(connection)


def _socket_of(number: int) -> socket.socket:
    """Return a duplicate of a descriptor as a socket. Raises OSError if the descriptor is not a socket."""
    duplicate = os.dup(number)
    try:
        return socket.socket(fileno=duplicate)
    except OSError:
        os.close(duplicate)  # a duplicate of a locked file would keep the lock
        raise


def _limit(connection: socket.socket, after_s: float) -> None:
    idle_s = max(1, round(after_s / (_PROBES + 1)))
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, idle_s)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, idle_s)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, _PROBES)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, round(after_s * 1000))
