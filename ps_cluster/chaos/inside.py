"""Run programs in the namespaces of a run's processes, and give a run mounts that only it sees."""

from __future__ import annotations

import ctypes
import os
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from ps_cluster.chaos.kind import NotAllowed
from ps_cluster.processes.isolation import RunNetwork

NETWORK, MOUNTS = "net", "mnt"

_CLONE_NEWNS, _MS_REC, _MS_PRIVATE = 0x20000, 0x4000, 0x40000
_TIMEOUT_S = 30.0


@contextmanager
def inside(pid: int, kind: str) -> Iterator[Callable[..., None]]:
    """Yield a function that runs a program in the NETWORK or MOUNTS of process `pid`, even after the process has ended.

    The function raises NotAllowed with a failing program's last line.

    Raises:
      NotAllowed: the process has no such namespace of its own, or it can't be entered.
    """
    if not is_its_own(pid, kind):
        raise NotAllowed("the run has none of its own")
    kinds = ["user", kind] if is_its_own(pid, "user") else [kind]
    try:
        descriptors = [os.open(f"/proc/{pid}/ns/{name}", os.O_RDONLY | os.O_CLOEXEC) for name in kinds]
    except OSError as error:
        raise NotAllowed(f"it can't be entered: {error.strerror}") from error
    try:
        yield lambda *argv: _run(argv, tuple(descriptors))
    finally:
        for descriptor in descriptors:
            os.close(descriptor)


def is_its_own(pid: int, kind: str) -> bool:
    """Return whether process `pid` is in another namespace of this kind than this process."""
    try:
        return os.readlink(f"/proc/{pid}/ns/{kind}") != os.readlink(f"/proc/self/ns/{kind}")
    except OSError:
        return False


def _run(argv: tuple[str, ...], descriptors: tuple[int, ...]) -> None:
    try:
        ended = subprocess.run(
            RunNetwork(descriptors).inside(argv),
            pass_fds=descriptors,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=_TIMEOUT_S,
        )
    except subprocess.TimeoutExpired as error:
        raise NotAllowed(str(error)) from error
    if ended.returncode:
        said = ended.stderr.strip().splitlines() or [f"exit code {ended.returncode}"]
        raise NotAllowed(said[-1])


def take_mounts_of_its_own() -> None:
    """Give a process that is about to start its own mounts: only it and its children see what is mounted later.

    Do nothing where the user may not mount.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(_CLONE_NEWNS) == 0 and libc.mount(b"none", b"/", None, _MS_REC | _MS_PRIVATE, None):
        os._exit(1)  # mounts made here would be seen by all processes
