"""Ask TensorFlow servers whether they work."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

ANSWER_WITHIN_S = 3.0
_AT_ONCE = 64
_ASK_EVERY_S = 0.2
_STATUS = "/tensorflow.WorkerService/GetStatus"  # a method of every TensorFlow server; its request may be empty

Key = TypeVar("Key")


def works(address: str) -> bool:
    """Return whether a TensorFlow server at `host:port` answers a request.

    A successful connection would prove less, because the system accepts connections for a frozen process too.
    """
    # Without options a channel would share the connection, and its pauses between attempts, with earlier channels.
    import grpc  # takes a tenth of a second, which `--help` should not wait for

    options = [("grpc.use_local_subchannel_pool", 1), ("grpc.enable_http_proxy", 0)]
    with grpc.insecure_channel(address, options) as channel:
        try:
            channel.unary_unary(_STATUS)(b"", timeout=ANSWER_WITHIN_S)
        except grpc.RpcError:
            return False
    return True


def working(addresses: Mapping[Key, str]) -> set[Key]:
    """Return the keys of those addresses whose server works. Up to 64 servers are asked at a time."""
    if not addresses:
        return set()
    with ThreadPoolExecutor(min(_AT_ONCE, len(addresses)), thread_name_prefix="reach") as pool:
        answers: Iterable[bool] = pool.map(works, addresses.values())
        return {key for key, works_ in zip(addresses, answers, strict=True) if works_}


def until_none_works(
    addresses: Iterable[str],
    within_s: float,
    *,
    ask: Callable[[Mapping[str, str]], set[str]] = working,
    sleep: Callable[[float], None] = time.sleep,
) -> None:
    """Wait until no server at these addresses works any more, but at most `within_s` seconds."""
    left, deadline = set(addresses), time.monotonic() + within_s
    while left and time.monotonic() < deadline:
        left = ask({address: address for address in left})
        sleep(_ASK_EVERY_S if left else 0)
