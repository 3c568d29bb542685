"""Split addresses `host:port`, and check whether this machine can resolve the host and whether its port is free."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable

LOOKED_UP_WITHIN_S = 3.0
_AT_ONCE = 64
_threads: list[threading.Thread] = []  # those of earlier calls that may still wait for an answer


def host_and_port(address: str) -> tuple[str, int]:
    """Return the two parts of "host:port". An IPv6 host is returned without its brackets."""
    host, _, port = address.rpartition(":")
    return host.strip("[]"), int(port)


def check_is_free(address: str) -> None:
    """Raise OSError if another program listens at the port of `host:port`. TensorFlow would need seconds to notice."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # like TensorFlow: ended connections don't matter
        probe.bind(("", host_and_port(address)[1]))


def _look_up(host: str) -> None:
    """Look up the addresses of `host`. Raises OSError or UnicodeError if this machine does not know the name."""
    socket.getaddrinfo(host, None)


def unknown_hosts(
    addresses: Iterable[str], within_s: float = LOOKED_UP_WITHIN_S, look_up: Callable[[str], None] = _look_up
) -> list[str]:
    """Return the hosts in addresses `host:port` whose names this machine can't look up within `within_s` seconds.

    The system may wait for an unreachable name server for half a minute, and meanwhile ignore signals. So daemon threads
    look up the names. At most 64 of them exist at a time, including those that earlier calls have started.
    """
    hosts = list(dict.fromkeys(host_and_port(address)[0] for address in addresses))
    known, left = set[str](), deque(hosts)

    def look_up_the_next() -> None:
        while True:
            try:
                host = left.popleft()
            except IndexError:
                return
            with contextlib.suppress(OSError, UnicodeError):
                look_up(host)
                known.add(host)

    _threads[:] = [thread for thread in _threads if thread.is_alive()]
    threads = [threading.Thread(target=look_up_the_next, daemon=True) for _ in hosts[: _AT_ONCE - len(_threads)]]
    deadline = time.monotonic() + within_s
    for thread in threads:
        thread.start()
    _threads.extend(threads)
    for thread in threads:
        thread.join(max(0.0, deadline - time.monotonic()))
    left.clear()  # a thread whose answer comes too late then looks up no further name
    return [host for host in hosts if host not in known]
