"""Make and enter network namespaces, each as a program of its own: the kernel wants a process with a single thread.

    python -I -S namespace.py create CHANNEL RUN_DIR DATA_DIR   sends a new namespace's descriptors through a socket
    python -I -S namespace.py enter DESCRIPTORS ARGV...         runs ARGV inside it, with the same pid
    python -I -S namespace.py loopback up|down                  connects, or cuts, all connections inside

It uses only the standard library, without `site`: it runs before every task, and no import may start a thread.
On failure, write one line to stderr and exit with code 1.
"""

import ctypes
import errno
import fcntl
import os
import socket
import struct
import sys
from collections.abc import Callable

_CLONE_NEWUSER, _CLONE_NEWNET = 0x10000000, 0x40000000
_SIOCGIFFLAGS, _SIOCSIFFLAGS, _IFF_UP = 0x8913, 0x8914, 0x1
_IFREQ = struct.Struct("16sH22x")  # name, flags, padding to the size of the union


def create(channel: str, run_dir: str, data_dir: str) -> None:
    """Move this process into a new namespace and send the descriptors that tasks need to enter it: [user,] net."""
    kinds = _unshare()
    loopback("up")
    _talk_to_itself()
    # Inside, an administrator with only some capabilities loses the right to use other users' files.
    for folder, wanted in ((run_dir, os.R_OK | os.W_OK | os.X_OK), (data_dir, os.R_OK | os.X_OK)):
        if not os.access(folder, wanted):
            raise PermissionError(f"'{folder}' could not be used inside")
    descriptors = [os.open(f"/proc/self/ns/{kind}", os.O_RDONLY) for kind in kinds]
    with socket.socket(fileno=int(channel)) as sender:
        socket.send_fds(sender, [b"%d" % len(descriptors)], descriptors)


def enter(descriptors: str, *argv: str) -> None:
    """Enter the namespace and become `argv`; keep none of the descriptors open."""
    for descriptor in map(int, descriptors.split(",")):
        _call("setns", descriptor, 0)
        os.close(descriptor)
    os.execv(argv[0], argv)


def loopback(state: str) -> None:
    """Set the loopback interface, the only one of this process's network, up or down."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        name, flags = _IFREQ.unpack(fcntl.ioctl(any_socket, _SIOCGIFFLAGS, _IFREQ.pack(b"lo", 0)))
        flags = flags | _IFF_UP if state == "up" else flags & ~_IFF_UP
        fcntl.ioctl(any_socket, _SIOCSIFFLAGS, _IFREQ.pack(name, flags))


def _unshare() -> tuple[str, ...]:
    """Make the namespace and return its kinds. Root needs no user namespace and so keeps its rights to files."""
    try:
        _call("unshare", _CLONE_NEWNET)
        return ("net",)
    except PermissionError:
        user, group = os.geteuid(), os.getegid()
    _call("unshare", _CLONE_NEWUSER | _CLONE_NEWNET)
    # Map the user and group to themselves, so files keep their owner. The kernel wants setgroups before gid_map.
    _write("/proc/self/setgroups", "deny")
    _write("/proc/self/uid_map", f"{user} {user} 1")
    _write("/proc/self/gid_map", f"{group} {group} 1")
    return ("user", "net")


def _talk_to_itself() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        socket.create_connection(server.getsockname(), timeout=5).close()


def _write(path: str, text: str) -> None:
    with open(path, "w") as file:
        file.write(text)


def _call(name: str, *arguments: int) -> None:
    if getattr(ctypes.CDLL(None, use_errno=True), name)(*arguments):
        code = ctypes.get_errno()
        # "No space left on device" is what the kernel says then, and it has nothing to do with a disk.
        said = "the limit in /proc/sys/user is reached" if code == errno.ENOSPC else os.strerror(code)
        raise OSError(code, f"{name}: {said}")


if __name__ == "__main__":
    commands: dict[str, Callable[..., None]] = {"create": create, "enter": enter, "loopback": loopback}
    try:
        commands[sys.argv[1]](*sys.argv[2:])
    except (OSError, AttributeError) as problem:
        sys.exit(f"private network: {str(problem).rpartition('] ')[2]}")  # without the "[Errno 1] "
