"""Addresses of tasks, who answers there, and this process's own connections: what ends those that are lost."""

from __future__ import annotations

import contextlib
import ipaddress
import os
import socket
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar


def host_and_port(address: str) -> tuple[str, int]:
    """Return the parts of "host:port", an IPv6 address without its brackets."""
    host, _, port = address.rpartition(":")
    return host.strip("[]"), int(port)


# End connections of this process to machines that have vanished or are silent: TensorFlow itself never does.
#
# It sets no keepalive. A machine that loses its power or its network closes nothing, so a request to it would wait for a
# quarter of an hour, and one without data on the way for ever. A process that is paused looks alive to the system, so
# nothing but this process can end a connection to it.

LOOK_EVERY_S = 2.0
_PROBES = 3


def give_up_lost_connections(after_s: float) -> None:
    """End TCP connections of this process, now and later, whose other side answers nothing for `after_s` seconds."""
    threading.Thread(target=_watch, args=(after_s,), name="connections", daemon=True).start()


def cut(address: str) -> None:
    """End all TCP connections of this process to `host:port`. Whoever uses one here sees that it was closed.

    Raises:
      OSError: the host's name is not known.
    """
    host, port = host_and_port(address)
    ends = {_end(found) for *_, found in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)}

    def end(connection: socket.socket) -> None:
        if _end(connection.getpeername()) in ends:
            connection.shutdown(socket.SHUT_RDWR)

    _for_each_connection(end)


def _end(address: tuple[Any, ...]) -> tuple[str, int]:
    """Return host and port; an IPv4 host in one way, although a socket for both versions writes it as one of IPv6."""
    host = ipaddress.ip_address(address[0])
    return str(getattr(host, "ipv4_mapped", None) or host), address[1]


def _watch(after_s: float) -> None:
    while True:
        _for_each_connection(lambda connection: _limit(connection, after_s))
        threading.Event().wait(LOOK_EVERY_S)


def _for_each_connection(act: Callable[[socket.socket], None]) -> None:
    """Call `act` with each TCP connection of this process. One that is closed meanwhile is passed over."""
    with contextlib.suppress(OSError):  # e.g. no descriptor is left just now
        for name in os.listdir("/proc/self/fd"):
            with contextlib.suppress(OSError):
                if not os.readlink(f"/proc/self/fd/{name}").startswith("socket:"):
                    continue
                with _socket_of(int(name)) as connection:
                    if connection.family in (socket.AF_INET, socket.AF_INET6) and connection.type == socket.SOCK_STREAM:
                        act(connection)


def _socket_of(number: int) -> socket.socket:
    """Return a duplicate of a descriptor as a socket. Raises OSError where it has become something else meanwhile."""
    duplicate = os.dup(number)
    try:
        return socket.socket(fileno=duplicate)
    except OSError:
        os.close(duplicate)  # of a file it would keep the lock
        raise


def _limit(connection: socket.socket, after_s: float) -> None:
    idle_s = max(1, round(after_s / (_PROBES + 1)))
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, idle_s)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, idle_s)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, _PROBES)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, round(after_s * 1000))


# Ask TensorFlow servers whether they work.

ANSWER_WITHIN_S = 3.0
_AT_ONCE = 64
_ASK_EVERY_S = 0.2
_STATUS = "/tensorflow.WorkerService/GetStatus"  # of every TensorFlow server; an empty message asks for all

Key = TypeVar("Key")


def check_is_free(address: str) -> None:
    """Raise OSError where another program listens at the port of `host:port`; TensorFlow needs seconds to find out."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as TensorFlow: earlier connections don't matter
        probe.bind(("", host_and_port(address)[1]))


def works(address: str, within_s: float = ANSWER_WITHIN_S) -> bool:
    """Return whether a TensorFlow server at `host:port` answers a request.

    That a connection can be made proves less: the system makes it also for a process that is frozen.
    """
    # Without options a channel would share the connection, and its pauses between attempts, with earlier channels.
    import grpc  # takes a tenth of a second, which `--help` should not wait for

    options = [("grpc.use_local_subchannel_pool", 1), ("grpc.enable_http_proxy", 0)]
    with grpc.insecure_channel(address, options) as channel:
        try:
            channel.unary_unary(_STATUS)(b"", timeout=within_s)
        except grpc.RpcError:
            return False
    return True


def working(addresses: Mapping[Key, str]) -> set[Key]:
    """Return the keys whose server works. All are asked at once, up to 64 at a time."""
    if not addresses:
        return set()
    with ThreadPoolExecutor(min(_AT_ONCE, len(addresses)), thread_name_prefix="reach") as pool:
        answers: Iterable[bool] = pool.map(works, addresses.values())
        return {key for key, works_ in zip(addresses, answers, strict=True) if works_}


def until_none_works(addresses: Iterable[str], within_s: float) -> None:
    """Wait, at most `within_s`, until no server at these addresses works any more."""
    left, deadline = set(addresses), time.monotonic() + within_s
    while left and time.monotonic() < deadline:
        left = working({address: address for address in left})
        time.sleep(_ASK_EVERY_S if left else 0)
