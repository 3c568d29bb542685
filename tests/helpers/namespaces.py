"""Check which namespaces this system allows, and run processes that are allowed fewer."""

from __future__ import annotations

import ctypes
import shutil
import subprocess

import pytest

PR_CAPBSET_DROP, CAP_SYS_ADMIN = 24, 21
LIBC = ctypes.CDLL(None)


def as_ordinary_user():
    """Give up, in a process about to start, the right to create a network namespace without a user namespace."""
    LIBC.prctl(PR_CAPBSET_DROP, CAP_SYS_ADMIN, 0, 0, 0)


def as_ourselves():
    pass


def why_not(*unshare_options, rights=as_ourselves) -> str | None:
    """Return why this system does not allow `unshare` with these options; None if it does. Uses a system program."""
    if not shutil.which("unshare"):
        return "there is no unshare(1), which could show whether this system allows a private network"
    tried = subprocess.run(["unshare", *unshare_options, "true"], capture_output=True, text=True, preexec_fn=rights)
    return f"this system does not allow it: {tried.stderr.strip()}" if tried.returncode else None


def skip_unless_allowed(rights):
    if why_not("--net", rights=rights) and (reason := why_not("--user", "--map-root-user", "--net", rights=rights)):
        pytest.skip(reason)


def refused(argv):
    """Return a command that runs `argv` as if the system allowed no network namespace."""
    if why_not("--user", "--map-root-user"):
        if why_not("--net") is None:
            pytest.skip("an administrator of this system is always allowed a private network")
        return argv
    forbid = 'echo 0 > /proc/sys/user/max_net_namespaces && exec "$@"'
    return ["unshare", "--user", "--map-root-user", "sh", "-c", forbid, "sh", *argv]
