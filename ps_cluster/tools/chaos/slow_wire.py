"""Join two network interfaces by a wire that delays and loses packets. This is a separate program.

    python -I -S slow_wire.py LEFT RIGHT DELAY_SECONDS LOSS

Linux's module for this, netem, is missing from many kernels. This program only needs packet sockets. It prints a line when it
is ready, and runs until it is killed.
"""

import contextlib
import random
import select
import socket
import sys
import time
from collections import deque

_SOL_PACKET, _VIRTUAL_HEADER, _IGNORE_OUTGOING = 263, 15, 23  # linux/if_packet.h
_ALL_PROTOCOLS = 0x0003
# Size of the largest packet, with the virtual header, before the kernel has split it into packets of the link's size.
_MOST_BYTES = 70_000
_MOST_WAITING = 4096  # packets in each direction; if the wire is full, the next packet is lost


def main(left: str, right: str, delay: str, loss: str) -> None:
    """Carry packets both ways, each after `delay` seconds. Lose the share `loss` of them."""
    ends = [_interface(name) for name in (left, right)]
    ways = {ends[0]: ends[1], ends[1]: ends[0]}
    source, delay_s, lost = random.Random(0), float(delay), float(loss)
    waiting: deque[tuple[float, socket.socket, bytes]] = deque()  # when it is due, where it goes, the packet
    print("ready", flush=True)
    while True:
        next_in = max(0.0, waiting[0][0] - time.monotonic()) if waiting else None
        for end in select.select(ends, [], [], next_in)[0]:
            packet = _received(end)
            if packet and source.random() >= lost and len(waiting) < 2 * _MOST_WAITING:
                waiting.append((time.monotonic() + delay_s, ways[end], packet))
        while waiting and waiting[0][0] <= time.monotonic():
            _, end, packet = waiting.popleft()
            _send(end, packet)


def _interface(name: str) -> socket.socket:
    end = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(_ALL_PROTOCOLS))
    end.setsockopt(_SOL_PACKET, _VIRTUAL_HEADER, 1)  # large packets and missing checksums pass as they are
    end.setsockopt(_SOL_PACKET, _IGNORE_OUTGOING, 1)
    end.bind((name, 0))
    return end


def _received(end: socket.socket) -> bytes:
    try:
        return end.recv(_MOST_BYTES)
    except OSError:  # the interface is down: a cut link
        return b""


def _send(end: socket.socket, packet: bytes) -> None:
    with contextlib.suppress(OSError):  # the link is cut, or its queue is full: the packet is lost
        end.send(packet)


if __name__ == "__main__":
    main(*sys.argv[1:])
