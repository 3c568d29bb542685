"""Let the system give up connections to machines that have vanished, in a process that can't be told to itself.

TensorFlow sets no keepalive. A machine that loses its power or its network closes nothing, so a request to it would
wait for a quarter of an hour, and one without data on the way for ever.
"""

from __future__ import annotations

import contextlib
import os
import socket
import threading

LOOK_EVERY_S = 2.0
_PROBES = 3


def give_up_lost_connections(after_s: float) -> None:
    """End TCP connections of this process, now and later, whose other side answers nothing for `after_s` seconds."""
    threading.Thread(target=_watch, args=(after_s,), name="connections", daemon=True).start()


def _watch(after_s: float) -> None:
    while True:
        with contextlib.suppress(OSError):  # e.g. no descriptor is left just now
            for descriptor in _descriptors():
                with contextlib.suppress(OSError):
                    _limit(descriptor, after_s)
        threading.Event().wait(LOOK_EVERY_S)


def _descriptors() -> list[int]:
    return [int(name) for name in os.listdir("/proc/self/fd")]


def _limit(descriptor: int, after_s: float) -> None:
    """Set the limits of one descriptor. Raises OSError where it is no TCP connection, or closed meanwhile."""
    if not os.readlink(f"/proc/self/fd/{descriptor}").startswith("socket:"):
        return
    with socket.socket(fileno=os.dup(descriptor)) as connection:
        if connection.family not in (socket.AF_INET, socket.AF_INET6) or connection.type != socket.SOCK_STREAM:
            return
        idle_s = max(1, round(after_s / (_PROBES + 1)))
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, idle_s)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, idle_s)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, _PROBES)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, round(after_s * 1000))
