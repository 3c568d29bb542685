"""Run programs in the Linux namespaces of other processes: those of simulated hosts, and those of a run's tasks."""

from __future__ import annotations

import contextlib
import ctypes
import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ps_cluster.system.failure_lines import last_error_line
from ps_cluster.system.private_network import RunNetwork

NETWORK, MOUNTS = "net", "mnt"  # types of namespaces
PROGRAM_S = 30.0  # limit for programs that set up a link or a disk; they usually take milliseconds
_CLONE_NEWNS, _MS_REC, _MS_PRIVATE = 0x20000, 0x4000, 0x40000


class NotAllowed(Exception):
    """Raised if the system does not allow hosts to be simulated or a fault to be injected, or if a system program fails.

    The message is one line.
    """


def program(name: str) -> str:
    """Return the path of a system program. Raises NotAllowed if it is not installed."""
    if (path := shutil.which(name, path=f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin")) is None:
        raise NotAllowed(f"there is no program `{name}`{' (package iproute2)' if name in ('ip', 'tc', 'ss') else ''}")
    return path


def run_in(network: RunNetwork, *argv: str) -> None:
    """Run a program in the namespaces of `network`.

    Raises NotAllowed if it is missing, is too slow, or fails. The message then has the last line of its errors.
    """
    try:
        ended = subprocess.run(
            network.inside((program(argv[0]), *argv[1:])),
            pass_fds=network.descriptors,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=PROGRAM_S,
        )
    except subprocess.TimeoutExpired as error:
        raise NotAllowed(str(error)) from error
    if ended.returncode:
        raise NotAllowed(f"{Path(argv[0]).name} {' '.join(argv[1:])}: {last_error_line(ended)}")


@contextmanager
def inside(pid: int, kind: str) -> Iterator[RunNetwork]:
    """Yield a namespace (NETWORK or MOUNTS) of process `pid` for `run_in`.

    The namespace remains usable after the process has ended. Raises NotAllowed if the process has no such namespace of
    its own, or if that namespace can't be entered.
    """
    if not _is_its_own(pid, kind):
        raise NotAllowed("the run has no namespace of its own")
    with contextlib.ExitStack() as opened:
        descriptors = []
        for name in ("user", kind) if _is_its_own(pid, "user") else (kind,):
            try:
                descriptors.append(os.open(f"/proc/{pid}/ns/{name}", os.O_RDONLY | os.O_CLOEXEC))
            except OSError as error:
                raise NotAllowed(f"the namespace of the run can't be entered: {error.strerror}") from error
            opened.callback(os.close, descriptors[-1])
        yield RunNetwork(tuple(descriptors))


def _is_its_own(pid: int, kind: str) -> bool:
    """Return whether process `pid` and this process are in different namespaces of this type."""
    try:
        return os.readlink(f"/proc/{pid}/ns/{kind}") != os.readlink(f"/proc/self/ns/{kind}")
    except OSError:
        return False


def take_mounts_of_its_own() -> None:
    """Move this process, which is just starting, into a mount namespace of its own, if the user may create one.

    Then only this process and its children see file systems that are mounted there later.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(_CLONE_NEWNS) == 0 and libc.mount(b"none", b"/", None, _MS_REC | _MS_PRIVATE, None):
        os._exit(1)  # Otherwise all processes of the machine would see the mounts of the run.
