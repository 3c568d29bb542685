"""Make and enter network namespaces, in separate programs, because the kernel requires a process with a single thread.

    python -I -S namespace.py create CHANNEL RUN_DIR DATA_DIR   sends a new namespace's descriptors through a socket
    python -I -S namespace.py hosts CHANNEL PLAN                makes a switch and hosts, and sends their descriptors
    python -I -S namespace.py enter DESCRIPTORS ARGV...         runs ARGV inside, with the same pid and folder
    python -I -S namespace.py loopback up|down                  connects, or cuts, all connections inside

This program uses only the standard library, without `site`: it runs before every task, and no import may start a
thread. On failure, it writes one line to stderr and ends with exit code 1.
"""

import ctypes
import errno
import fcntl
import os
import socket
import struct
import sys
from collections.abc import Callable

_CLONE_NEWNS, _CLONE_NEWUSER, _CLONE_NEWNET = 0x20000, 0x10000000, 0x40000000
_MS_BIND, _MS_REC, _MS_PRIVATE = 0x1000, 0x4000, 0x40000
_SIOCGIFFLAGS, _SIOCSIFFLAGS, _IFF_UP = 0x8913, 0x8914, 0x1
_IFREQ = struct.Struct("16sH22x")  # name, flags, padding to the size of the union


def create(channel: str, run_dir: str, data_dir: str) -> None:
    """Move this process into a new network namespace, and send the descriptors that tasks need to enter it.

    These are the descriptors of the new user namespace, if one was needed, and of the network namespace.
    """
    kinds = _unshare()
    loopback("up")
    _talk_to_itself()
    # Inside, an administrator with only some capabilities loses the right to use other users' files.
    for folder, wanted in ((run_dir, os.R_OK | os.W_OK | os.X_OK), (data_dir, os.R_OK | os.X_OK)):
        if not os.access(folder, wanted):
            raise PermissionError(f"tasks inside it could not use '{folder}'")
    _send(channel, [_own(kind) for kind in kinds])


def hosts(channel: str, plan: str) -> None:
    """Create a network switch and hosts that are connected to it, and send the descriptors of their namespaces.

    The descriptors are sent in this order: the user namespace, if one was needed; the network namespace of the switch;
    and for each host, its network namespace and its mount namespace.

    `plan` is a JSON object (made by tools/chaos/hosts.py). "ip" is the path of the program `ip`. "hosts" is a list with
    an object for each host: its "name", its "address" with the network's prefix length, and its "mounts". A mount is a
    pair of paths: the path of a file or folder outside, and the path at which the host sees it.
    """
    import json  # imported only here, because this program runs before every task

    planned = json.loads(plan)
    kinds = _unshare(_CLONE_NEWNS, inner_user=0)
    _call("mount", b"none", b"/", None, _MS_REC | _MS_PRIVATE, None)
    switch, mounts = [_own(kind) for kind in kinds], _own("mnt")
    _ip(planned["ip"], "link add switch type bridge", "link set switch up")
    descriptors = []
    for number, host in enumerate(planned["hosts"]):
        _call("setns", mounts, 0)
        _call("unshare", _CLONE_NEWNET | _CLONE_NEWNS)
        for seen, where in host["mounts"]:
            _call("mount", seen.encode(), where.encode(), None, _MS_BIND | _MS_REC, None)
        port = f"link add eth0 type veth peer name port{number} netns /proc/{os.getpid()}/fd/{switch[-1]}"
        _ip(planned["ip"], port, f"addr add {host['address']} dev eth0", "link set lo up", "link set eth0 up")
        descriptors += [_own("net"), _own("mnt")]
    _call("setns", switch[-1], 0)
    _ip(planned["ip"], *(f"link set port{number} master switch up" for number, _ in enumerate(planned["hosts"])))
    _send(channel, [*switch, *descriptors])


def enter(descriptors: str, *argv: str) -> None:
    """Enter the namespaces and become `argv`; keep none of the descriptors open."""
    folder = os.getcwd()
    for descriptor in map(int, descriptors.split(",")):
        _call("setns", descriptor, 0)
        os.close(descriptor)
    os.chdir(folder)  # entering a mount namespace moves this process to the root folder
    os.execv(argv[0], argv)


def loopback(state: str) -> None:
    """Set the loopback interface up or down. This process's network has no other interface."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        name, flags = _IFREQ.unpack(fcntl.ioctl(any_socket, _SIOCGIFFLAGS, _IFREQ.pack(b"lo", 0)))
        flags = flags | _IFF_UP if state == "up" else flags & ~_IFF_UP
        fcntl.ioctl(any_socket, _SIOCSIFFLAGS, _IFREQ.pack(name, flags))


def _unshare(more: int = 0, inner_user: int | None = None) -> tuple[str, ...]:
    """Move this process into a new network namespace; return the types ("net",) or ("user", "net").

    Root needs no user namespace, and without one it keeps its rights to files. For other users, a new user namespace is
    made first, because they may make a network namespace only inside it.

    Args:
      more: flags of further namespaces to make. Their types are not returned.
      inner_user: the user's id inside the user namespace, if it differs from the id outside. With id 0, the process may
        start programs that set up a network.
    """
    try:
        _call("unshare", _CLONE_NEWNET | more)
        return ("net",)
    except PermissionError:
        user, group = os.geteuid(), os.getegid()
    _call("unshare", _CLONE_NEWUSER | _CLONE_NEWNET | more)
    inside = (user, group) if inner_user is None else (inner_user, inner_user)
    # One user and group are mapped, so files keep their owner. The kernel wants setgroups before gid_map.
    _write("/proc/self/setgroups", "deny")
    _write("/proc/self/uid_map", f"{inside[0]} {user} 1")
    _write("/proc/self/gid_map", f"{inside[1]} {group} 1")
    return ("user", "net")


def _own(kind: str) -> int:
    """Return a descriptor of a namespace of this process."""
    return os.open(f"/proc/self/ns/{kind}", os.O_RDONLY)


def _send(channel: str, descriptors: list[int]) -> None:
    with socket.socket(fileno=int(channel)) as sender:
        socket.send_fds(sender, [b"%d" % len(descriptors)], descriptors)


def _ip(program: str, *commands: str) -> None:
    """Run commands with `program`, the path of `ip`, in the present network namespace."""
    import subprocess  # imported only here, because this program runs before every task

    ended = subprocess.run(
        (program, "-batch", "-"), input="\n".join(commands), capture_output=True, text=True, timeout=20
    )
    if ended.returncode:
        raise OSError(f"ip: {' '.join(ended.stderr.split()) or 'no reason given'}")


def _talk_to_itself() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        socket.create_connection(server.getsockname(), timeout=5).close()


def _write(path: str, text: str) -> None:
    with open(path, "w") as file:
        file.write(text)


def _call(name: str, *arguments: int | bytes | None) -> None:
    if getattr(ctypes.CDLL(None, use_errno=True), name)(*arguments):
        code = ctypes.get_errno()
        # At this limit the kernel says "No space left on device", which has nothing to do with a disk.
        said = "the limit in /proc/sys/user is reached" if code == errno.ENOSPC else os.strerror(code)
        raise OSError(code, f"{name}: {said}")


if __name__ == "__main__":
    commands: dict[str, Callable[..., None]] = {"create": create, "hosts": hosts, "enter": enter, "loopback": loopback}
    try:
        commands[sys.argv[1]](*sys.argv[2:])
    except (OSError, AttributeError) as problem:
        sys.exit(f"private network: {str(problem).rpartition('] ')[2]}")  # without the "[Errno 1] "
