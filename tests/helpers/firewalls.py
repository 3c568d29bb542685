"""Tell whether a host allows rules of the firewall. Asks a system program, not the code that is tested."""

from __future__ import annotations

import shutil
import subprocess

from ps_cluster.tools.chaos.hosts import Host

_RULES = b"""
table inet asked {
  flags owner
  chain arriving {
    type filter hook input priority filter
    tcp dport 1 iifname != { "lo", "wg0" } drop
  }
}
"""


def why_no_firewall(machine: Host) -> str | None:
    """Return why a host allows no rules that end with their process; None where it does."""
    if (nft := shutil.which("nft")) is None:
        return "no program nft here: apt-get install nftables"
    asked = machine.popen([nft, "-f", "-"], stdin=subprocess.PIPE, stderr=subprocess.PIPE)
    said = asked.communicate(_RULES, timeout=20)[1].decode().splitlines()
    return f"this kernel's firewall allows it not: {said[0]}" if asked.returncode else None
