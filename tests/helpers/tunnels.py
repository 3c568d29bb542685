"""Join hosts by an encrypted tunnel, as examples/wireguard configures it, and record the packets on the wire."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from ps_cluster.system.private_network import RunNetwork
from ps_cluster.tools.chaos.hosts import Host
from tests.helpers.real_cluster import PROJECT

WIREGUARD_PORT, TCP, UDP = 51820, 6, 17

_EXAMPLES = PROJECT / "examples" / "wireguard"
_NAMES = "ABC"  # the names of the machines in the placeholders for keys
# Records all interfaces: a line for each packet, with its protocol by the link and its bytes, in hexadecimal digits.
_RECORD = """
import socket, sys
tap = socket.socket(socket.AF_PACKET, socket.SOCK_DGRAM, socket.htons(3))
print("ready", flush=True)
with open(sys.argv[1], "w", 1) as file:
    while True:
        packet, (_, protocol, *_) = tap.recvfrom(70000)
        file.write(f"{protocol:04x} {packet.hex()}\\n")
"""


class Packet(NamedTuple):
    """An IP packet. `protocol`: the protocol in its (first) header. `ports`: the ports of TCP and UDP, otherwise 0."""

    version: int
    protocol: int
    ports: tuple[int, int]
    content: bytes


def why_no_tunnel() -> str | None:
    """Return why WireGuard can't be used on this machine; None if it can."""
    for program in ("wg", "wg-quick"):
        if not shutil.which(program):
            return f"there is no program {program}: apt-get install wireguard-tools"
    if not (shutil.which("wireguard-go") or Path("/sys/module/wireguard").exists()):
        return "no WireGuard in this kernel, and no wireguard-go: apt-get install wireguard-go"
    return None if Path("/dev/net/tun").exists() else "no /dev/net/tun here"


def join(machines: Sequence[Host], folder: Path) -> None:
    """Bring up wg0 of the examples on three hosts, with new keys and the hosts' addresses in place of theirs."""
    private = [_output_of("wg", "genkey") for _ in _NAMES]
    public = [_output_of("wg", "pubkey", given=key) for key in private]
    for machine, name in zip(machines, _NAMES, strict=True):
        text = (_EXAMPLES / f"{name.lower()}.conf").read_text(encoding="utf-8")
        for other, secret, known, peer in zip(_NAMES, private, public, machines, strict=True):
            text = text.replace(f"PRIVATE-KEY-OF-{other}", secret).replace(f"PUBLIC-KEY-OF-{other}", known)
            text = text.replace(f"192.0.2.{_NAMES.index(other) + 1}:", f"{peer.address}:")
        file = folder / name / "wg0.conf"
        file.parent.mkdir(mode=0o700)
        file.write_text(text)
        # wireguard-go names its control socket below /run after the interface, which has the same name on all hosts.
        up = f"mount -t tmpfs none /run && wg-quick up '{file}'"
        ended = machine.popen(["/bin/sh", "-c", up], stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        assert ended.stdout is not None
        output = ended.stdout.read() if ended.wait(timeout=30) else b""
        assert ended.returncode == 0, output.decode()


class Recording:
    """Records the packets on all interfaces of a network, from the beginning of the block to its end."""

    def __init__(self, network: RunNetwork, file: Path):
        self._network, self._file = network, file

    def __enter__(self) -> Recording:
        self._process = self._network.popen([sys.executable, "-c", _RECORD, str(self._file)], stdout=subprocess.PIPE)
        assert self._process.stdout is not None and self._process.stdout.readline() == b"ready\n"
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.communicate()

    def packets(self) -> list[Packet]:
        """Return the IP packets so far. All other packets are ARP."""
        lines = [line.split() for line in self._file.read_text().splitlines(keepends=True) if line.endswith("\n")]
        assert {kind for kind, _ in lines} <= {"0800", "86dd", "0806"}
        return [_packet(bytes.fromhex(content)) for kind, content in lines if kind != "0806"]


def _packet(content: bytes) -> Packet:
    version = content[0] >> 4
    protocol, header = (content[9], 4 * (content[0] & 15)) if version == 4 else (content[6], 40)
    ports = content[header : header + 4] if protocol in (TCP, UDP) else b""
    return Packet(version, protocol, (int.from_bytes(ports[:2]), int.from_bytes(ports[2:])), content)


def _output_of(*argv: str, given: str = "") -> str:
    return subprocess.run(argv, input=given, capture_output=True, text=True, check=True).stdout.strip()
