"""Set rules of this machine's firewall (nftables) that hold for as long as this process lives, however it ends.

A table with the flag `owner` (Linux 5.12) belongs to the socket that made it: nobody else can change it, and the kernel
removes it when that socket closes. The library behind the program nft opens the socket in this process. If this
process started nft itself, nft would hold the socket, and the port would be open as soon as nft ends.
"""

from __future__ import annotations

import ctypes
import ipaddress
import os
import socket
from collections.abc import Iterable

LIBRARY = "libnftables.so.1"  # libnftables(3); the same name in all distributions since 2018
_NETLINK_NETFILTER = 12


class Refused(Exception):
    """Raised if this process can't set firewall rules. The message says why, and what would help."""


def keep_rules(rules: str, library_name: str = LIBRARY) -> None:
    """Add firewall tables that last until this process ends. `rules`: the tables, in nft's language. Raises Refused."""
    library = _nftables(library_name)
    context = library.nft_ctx_new(0)
    library.nft_ctx_buffer_error(context)
    if not library.nft_run_cmd_from_buffer(context, rules.encode()):
        return  # the context is never freed: it holds the socket
    said = library.nft_ctx_get_error_buffer(context).decode(errors="replace").partition("\n")[0]
    library.nft_ctx_free(context)
    if "not permitted" in said:
        raise Refused("a rule of the firewall needs the capability CAP_NET_ADMIN")
    raise Refused(f"the firewall refuses the rule, which needs nftables in Linux 5.12 or newer: {said}")


def only_through(interface: str, port: int, others: Iterable[tuple[str, int]]) -> str:
    """Return firewall rules that limit the connections of a task to `interface` and loopback.

    The rules drop packets that arrive at `port` or leave for one of `others` through any other interface. On this
    machine, only processes of this user reach the port. Several processes may set rules for the same port.

    Args:
      others: the IP addresses and ports of the cluster's tasks.
    """
    through = f'!= {{ "lo", "{interface}" }} drop'
    to = {"ip": "", "ip6": ""}
    for address, other in sorted(set(others)):
        to["ip6" if ipaddress.ip_address(address).version == 6 else "ip"] += f"{address} . {other}, "
    leaving = "".join(
        f"    {kind} daddr . tcp dport {{ {ends} }} oifname {through}\n" for kind, ends in to.items() if ends
    )
    return (
        f"table inet ps_cluster_{port}_{os.getpid()} {{\n"
        "  flags owner\n"
        "  chain arriving {\n"
        "    type filter hook input priority filter\n"
        f"    tcp dport {port} iifname {through}\n"
        "  }\n"
        "  chain leaving {\n"
        "    type filter hook output priority filter\n"
        f"{leaving}"
        f'    tcp dport {port} oifname "lo" meta skuid != {os.geteuid()} drop\n'
        "  }\n"
        "}\n"
    )


def _nftables(name: str) -> ctypes.CDLL:
    try:
        socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, _NETLINK_NETFILTER).close()
    except OSError as error:  # else the library would end the process
        raise Refused(f"this system has no firewall that can be set: {error.strerror}") from error
    try:
        library = ctypes.CDLL(name)
    except OSError as error:
        raise Refused(
            f"this machine has no library '{name}': install nftables, e.g. by apt-get install nftables"
        ) from error
    library.nft_ctx_new.restype = ctypes.c_void_p
    library.nft_ctx_get_error_buffer.restype = ctypes.c_char_p
    for function in ("nft_ctx_buffer_error", "nft_ctx_get_error_buffer", "nft_ctx_free"):
        getattr(library, function).argtypes = [ctypes.c_void_p]
    library.nft_run_cmd_from_buffer.argtypes = [ctypes.c_void_p, ctypes.c_char_p]
    return library
