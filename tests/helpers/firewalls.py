"""Find out whether a host allows rules of the firewall, by a system program and not by the code that is tested."""

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
    """Return why a host does not allow rules that end with their process; None if it does."""
    if (nft := shutil.which("nft")) is None:
        return "there is no program nft: apt-get install nftables"
    process = machine.popen([nft, "-f", "-"], stdin=subprocess.PIPE, stderr=subprocess.PIPE)
    errors = process.communicate(_RULES, timeout=20)[1].decode().splitlines()
    return f"this kernel's firewall does not allow it: {errors[0]}" if process.returncode else None
