"""Checks of what the system allows: ports of this machine, and a network of its own for a run."""

from __future__ import annotations

import socket
import tempfile
from contextlib import ExitStack
from pathlib import Path

from ps_cluster.doctor.check import Check, Finding, fail, ok, warn
from ps_cluster.processes.isolation import NAMESPACE_ARGV, network_for

PORTS = 13  # of a run with the most workers and parameter servers, and its chief
_TIMEOUT_S = 5.0


class Ports(Check):
    """Check that programs of this machine can listen on ports and reach each other."""

    name = "ports"

    def __init__(self, host: str = "127.0.0.1", count: int = PORTS):
        self._host = host
        self._count = count

    def look(self) -> Finding:
        try:
            with ExitStack() as stack:
                for _ in range(self._count):
                    server = stack.enter_context(socket.create_server((self._host, 0)))
                    stack.enter_context(socket.create_connection(server.getsockname()[:2], timeout=_TIMEOUT_S))
        except OSError as error:
            reason = error.strerror or error
            return fail(f"no connection to {self._host}: {reason}", "allow local connections, and more open files")
        return ok(f"{self._count} ports of {self._host} can be opened and reached")


class UserNamespaces(Check):
    """Check that a run gets a network of its own, in which nobody else reaches its ports."""

    name = "isolation"
    limit_s = 40.0  # that of `network_for` is 30

    def __init__(self, namespace_argv: tuple[str, ...] = NAMESPACE_ARGV):
        self._argv = namespace_argv

    def look(self) -> Finding:
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            with network_for("auto", folder, folder, lambda line: None, self._argv) as network:
                if network.isolated:
                    return ok("a run gets a network of its own")
                return warn(
                    network.notice or "no private network",
                    "allow user namespaces (sysctl user.max_user_namespaces; on Ubuntu also "
                    "kernel.apparmor_restrict_unprivileged_userns=0), or use a machine that you share with nobody",
                )
