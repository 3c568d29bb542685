"""The network of a run: who gets into the tasks' ports, who answers there, and which connections are lost.

A TensorFlow server runs code for anybody who reaches its port. So the tasks of a run on one machine get a private
network. A short-lived process (namespace.py) makes the network namespace, sends its descriptors to the launcher and
ends. Every task enters the namespace through the same file before it runs its program. So the launcher keeps its own
network and its threads (the kernel lets no process with threads into a user namespace) and stays the parent of all
tasks. Only the tasks and the launcher's descriptors keep the namespace alive, so it ends with them, however they end.

A task on one of several machines says who reaches its port, and keeps it to one interface on request.
"""

from __future__ import annotations

import contextlib
import ctypes
import ipaddress
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import psutil

from ps_cluster.config.schema import WORDS, interface_of
from ps_cluster.config.tasks import Task
from ps_cluster.errors import UserError
from ps_cluster.runs.logs import PORTS_OPEN


def host_and_port(address: str) -> tuple[str, int]:
    """Return the parts of "host:port", an IPv6 address without its brackets."""
    host, _, port = address.rpartition(":")
    return host.strip("[]"), int(port)


# Keep others from the tasks' ports: a network of the run's own on one machine.

REQUIRE, OFF = "require", "off"  # and "auto": where the system allows it
NAMESPACE_ARGV = (sys.executable, "-I", "-S", str(Path(__file__).with_name("namespace.py")))

_NAMESPACE_WITHIN_S = 30.0  # the kernel makes a namespace in milliseconds, but queues behind others that it takes down
_MOST_DESCRIPTORS = 253  # that the kernel sends at once
_PAGE = "docs/clusters.md#security"
_OPEN = "the ports of this run are open to whoever reaches this machine, and whoever reaches them runs code as you"


@dataclass(frozen=True)
class RunNetwork:
    """The network in which tasks run: the namespace of these descriptors or, without any, the launcher's network.

    Attributes:
      notice: a warning for the user where the network is not private, else None.
    """

    descriptors: tuple[int, ...] = ()
    notice: str | None = None

    @property
    def isolated(self) -> bool:
        return bool(self.descriptors)

    def to_json(self) -> dict[str, Any]:
        """Return the network's entry in summary.json."""
        return {"private": self.isolated, "notice": self.notice}

    def inside(self, argv: tuple[str, ...]) -> tuple[str, ...]:
        """Return a command that runs `argv` in this network. Its process must inherit the descriptors."""
        if not self.descriptors:
            return argv
        return (*NAMESPACE_ARGV, "enter", ",".join(map(str, self.descriptors)), *argv)

    def popen(self, argv: list[str], *, pass_fds: tuple[int, ...] = (), **options: Any) -> subprocess.Popen[bytes]:
        """Start a process in this network; otherwise as `subprocess.Popen`."""
        return subprocess.Popen(self.inside(tuple(argv)), pass_fds=(*pass_fds, *self.descriptors), **options)


class Unavailable(Exception):
    """This system allows no private network; the message says why."""


@contextmanager
def network_for(
    setting: str,
    run_dir: Path,
    data_dir: Path,
    notify: Callable[[str], None],
    namespace_argv: tuple[str, ...] = NAMESPACE_ARGV,
) -> Iterator[RunNetwork]:
    """Yield the network of a run: a private one or, with a notice, the machine's. Closes it after the block.

    Args:
      setting: `cluster.isolation`, one of its words.
      run_dir: the tasks must be able to write there.
      data_dir: the tasks must be able to read there.
    Raises:
      UserError: it is required and can't be had, or the setting names an interface.
    """
    network = _choose(setting, run_dir, data_dir, namespace_argv)
    if network.notice:
        notify(PORTS_OPEN(network.notice))
    try:
        yield network
    finally:
        for descriptor in network.descriptors:
            os.close(descriptor)


def announce_isolation(setting: str, folder: Path, notify: Callable[[str], None]) -> None:
    """Tell on which network the runs in a folder will be: their own notices are in their logs. Errors as `check_isolation`."""
    with network_for(setting, folder, folder, notify):
        pass


def check_isolation(setting: str, run_dir: Path) -> None:
    """Raise UserError where a run can't have the network that is asked for, before the run changes anything."""
    if setting == REQUIRE or interface_of(setting):
        announce_isolation(setting, run_dir, notify=lambda _: None)


def _choose(setting: str, run_dir: Path, data_dir: Path, namespace_argv: tuple[str, ...]) -> RunNetwork:
    if interface_of(setting):
        words = ", ".join(WORDS)
        raise UserError(f"cluster.isolation: got '{setting}': that is for `task`; on one machine it is one of {words}")
    if setting == OFF:
        return RunNetwork(notice=f"not isolated, as asked for: {_OPEN}")
    try:
        return RunNetwork(new_namespaces("create", str(run_dir), str(data_dir), namespace_argv=namespace_argv))
    except Unavailable as reason:
        if setting == REQUIRE:
            raise UserError(f"cluster.isolation: 'require', but this system allows no {reason}") from reason
        return RunNetwork(notice=f"not isolated: {_OPEN} (this system allows no {reason})")


def new_namespaces(command: str, *arguments: str, namespace_argv: tuple[str, ...] = NAMESPACE_ARGV) -> tuple[int, ...]:
    """Run a command of namespace.py that makes namespaces; return their descriptors. Raises Unavailable."""
    receiver, sender = socket.socketpair()
    with receiver, sender:
        argv = [*namespace_argv, command, str(sender.fileno()), *arguments]
        try:
            helper = subprocess.run(
                argv,
                pass_fds=[sender.fileno()],
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                timeout=_NAMESPACE_WITHIN_S,
                start_new_session=True,  # Ctrl-C is for the launcher
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            raise Unavailable(f"private network: {error}") from error
        if helper.returncode:
            said = helper.stderr.strip().splitlines() or [f"exit code {helper.returncode}"]
            raise Unavailable(said[-1])
        return _received(receiver)


def _received(receiver: socket.socket) -> tuple[int, ...]:
    count, descriptors, *_ = socket.recv_fds(receiver, 3, _MOST_DESCRIPTORS, socket.MSG_CMSG_CLOEXEC)
    if len(descriptors) == int(count):
        return tuple(descriptors)
    for descriptor in descriptors:  # a user namespace alone would leave the tasks in the machine's network
        os.close(descriptor)
    raise Unavailable("private network: too many files are open")


# Rules of this machine's firewall (nftables) that hold for as long as this process lives, however it ends.
#
# A table with the flag `owner` (Linux 5.12) belongs to the socket that made it: nobody else can change it, and the kernel
# removes it when that socket closes. The library behind the program nft keeps the socket in this process. The program
# itself would be a second process, and the port would be open as soon as that one ends.

LIBRARY = "libnftables.so.1"  # libnftables(3); the same name in all distributions since 2018
_NETLINK_NETFILTER = 12


class Refused(Exception):
    """This process can't set rules; the message says why, and what would help."""


def keep_rules(rules: str, library_name: str = LIBRARY) -> None:
    """Add tables, in nft's language, until this process ends. Raises Refused."""
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
    """Return rules by which nothing reaches `port` by another interface, and nothing to `others` leaves by another.

    On this machine only processes of this user reach the port. Several processes may keep one port.

    Args:
      others: addresses and ports to which this machine connects.
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
    except OSError as error:  # the library would end the process
        raise Refused(f"this system has no firewall that can be set: {error.strerror}") from error
    try:
        library = ctypes.CDLL(name)
    except OSError as error:
        raise Refused(f"there is no {name} here: install nftables, e.g. by apt-get install nftables") from error
    library.nft_ctx_new.restype = ctypes.c_void_p
    library.nft_ctx_get_error_buffer.restype = ctypes.c_char_p
    for function in ("nft_ctx_buffer_error", "nft_ctx_get_error_buffer", "nft_ctx_free"):
        getattr(library, function).argtypes = [ctypes.c_void_p]
    library.nft_run_cmd_from_buffer.argtypes = [ctypes.c_void_p, ctypes.c_char_p]
    return library


# On one of several machines: say who reaches a task's port, and keep it to one interface on request.


def guard_port(
    setting: str,
    port: int | None,
    members: Mapping[Task, str],
    notify: Callable[[str], None],
    keep: Callable[[str], None] = keep_rules,
) -> None:
    """Say who reaches the port of a task; close it to other interfaces until this process ends, if that is asked for.

    Args:
      setting: `cluster.isolation`.
      port: at which the task listens; None: at none.
      members: of the cluster, with their addresses.
      keep: sets rules of the firewall until this process ends.
    Raises:
      UserError: the port can't be kept to the interface, or the cluster's addresses are not behind it.
    """
    if port is None:
        return
    check_can_guard(setting)
    if (interface := interface_of(setting)) is not None:
        try:
            keep(only_through(interface, port, _behind(interface, members)))
        except Refused as reason:
            raise UserError(f"cluster.isolation: got '{setting}': {reason}; by hand: {_PAGE}") from reason
    notify(who_reaches(f"port {port}", setting))


def check_can_guard(setting: str) -> None:
    """Raise UserError for an isolation that no task on several machines can make."""
    if setting == REQUIRE:
        raise UserError(
            "cluster.isolation: got 'require': a task can't make a network that other machines share: give "
            f"interface=NAME, or see {_PAGE}"
        )


def who_reaches(ports: str, setting: str) -> str:
    """Return a line that says who reaches `ports`, e.g. "port 2222", with this isolation."""
    if (interface := interface_of(setting)) is None:
        return f"not isolated: whoever reaches {ports} runs code as you, and nothing is encrypted: {_PAGE}"
    return f"{ports}: only {interface} and your own processes on the same machine get in"


def _behind(interface: str, members: Mapping[Task, str]) -> Iterator[tuple[str, int]]:
    """Yield address and port of each member of the cluster. Raises UserError for one that is not behind `interface`."""
    here = psutil.net_if_addrs()
    if interface not in here:
        raise _wrong(interface, f"there is no such interface with an address here, but {', '.join(sorted(here))}")
    own = {one.address.partition("%")[0] for one in here[interface]}
    for member, address in members.items():
        host, port = host_and_port(address)
        try:
            endpoints = {
                (family, where[0]) for family, *_, where in socket.getaddrinfo(host, port, type=socket.SOCK_DGRAM)
            }
        except (OSError, UnicodeError) as error:
            raise _wrong(interface, f"the address of {member}, '{address}', can't be looked up: {error}") from error
        for family, number in endpoints:
            if not ipaddress.ip_address(number).is_loopback and _source(family, str(number)) not in own:
                raise _wrong(
                    interface, f"{member} at '{address}' is not reached through it: give every task an address there"
                )
            yield str(number), port


def _source(family: int, number: str) -> str | None:
    """Return the address from which this machine would connect to `number`, None if there is no way. Sends nothing."""
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect((number, 1))
        except OSError:
            return None
        return str(probe.getsockname()[0])


def _wrong(interface: str, what: str) -> UserError:
    return UserError(f"cluster.isolation: got 'interface={interface}': {what}")


# Ask TensorFlow servers whether they work.

ANSWER_WITHIN_S = 3.0
_AT_ONCE = 64
_ASK_EVERY_S = 0.2
_STATUS = "/tensorflow.WorkerService/GetStatus"  # of every TensorFlow server; an empty message asks for all

Key = TypeVar("Key")


def check_is_free(address: str) -> None:
    """Raise OSError where another program listens at the port of `host:port`; TensorFlow needs seconds to find out."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as TensorFlow: earlier connections don't matter
        probe.bind(("", host_and_port(address)[1]))


def works(address: str, within_s: float = ANSWER_WITHIN_S) -> bool:
    """Return whether a TensorFlow server at `host:port` answers a request.

    That a connection can be made proves less: the system makes it also for a process that is frozen.
    """
    # Without options a channel would share the connection, and its pauses between attempts, with earlier channels.
    import grpc  # takes a tenth of a second, which `--help` should not wait for

    options = [("grpc.use_local_subchannel_pool", 1), ("grpc.enable_http_proxy", 0)]
    with grpc.insecure_channel(address, options) as channel:
        try:
            channel.unary_unary(_STATUS)(b"", timeout=within_s)
        except grpc.RpcError:
            return False
    return True


def working(addresses: Mapping[Key, str]) -> set[Key]:
    """Return the keys whose server works. All are asked at once, up to 64 at a time."""
    if not addresses:
        return set()
    with ThreadPoolExecutor(min(_AT_ONCE, len(addresses)), thread_name_prefix="reach") as pool:
        answers: Iterable[bool] = pool.map(works, addresses.values())
        return {key for key, works_ in zip(addresses, answers, strict=True) if works_}


def unknown_hosts(addresses: Iterable[str]) -> list[str]:
    """Return the names of hosts, in addresses `host:port`, for which this machine knows no address."""
    return [host for host in dict.fromkeys(host_and_port(address)[0] for address in addresses) if not _is_known(host)]


def _is_known(host: str) -> bool:
    try:
        return bool(socket.getaddrinfo(host, None))
    except (OSError, UnicodeError):
        return False


def until_none_works(addresses: Iterable[str], within_s: float) -> None:
    """Wait, at most `within_s`, until no server at these addresses works any more."""
    left, deadline = set(addresses), time.monotonic() + within_s
    while left and time.monotonic() < deadline:
        left = working({address: address for address in left})
        time.sleep(_ASK_EVERY_S if left else 0)


# End connections of this process to machines that have vanished or are silent: TensorFlow itself never does.
#
# It sets no keepalive. A machine that loses its power or its network closes nothing, so a request to it would wait for a
# quarter of an hour, and one without data on the way for ever. A process that is paused looks alive to the system, so
# nothing but this process can end a connection to it.

LOOK_EVERY_S = 2.0
_PROBES = 3


def give_up_lost_connections(after_s: float) -> None:
    """End TCP connections of this process, now and later, whose other side answers nothing for `after_s` seconds."""
    threading.Thread(target=_watch, args=(after_s,), name="connections", daemon=True).start()


def cut(address: str) -> None:
    """End all TCP connections of this process to `host:port`. Whoever uses one here sees that it was closed.

    Raises:
      OSError: the host's name is not known.
    """
    host, port = host_and_port(address)
    ends = {_end(found) for *_, found in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)}

    def end(connection: socket.socket) -> None:
        if _end(connection.getpeername()) in ends:
            connection.shutdown(socket.SHUT_RDWR)

    _for_each_connection(end)


def _end(address: tuple[Any, ...]) -> tuple[str, int]:
    """Return host and port; an IPv4 host in one way, although a socket for both versions writes it as one of IPv6."""
    host = ipaddress.ip_address(address[0])
    return str(getattr(host, "ipv4_mapped", None) or host), address[1]


def _watch(after_s: float) -> None:
    while True:
        _for_each_connection(lambda connection: _limit(connection, after_s))
        threading.Event().wait(LOOK_EVERY_S)


def _for_each_connection(act: Callable[[socket.socket], None]) -> None:
    """Call `act` with each TCP connection of this process. One that is closed meanwhile is passed over."""
    with contextlib.suppress(OSError):  # e.g. no descriptor is left just now
        for name in os.listdir("/proc/self/fd"):
            with contextlib.suppress(OSError):
                if not os.readlink(f"/proc/self/fd/{name}").startswith("socket:"):
                    continue
                with _socket_of(int(name)) as connection:
                    if connection.family in (socket.AF_INET, socket.AF_INET6) and connection.type == socket.SOCK_STREAM:
                        act(connection)


def _socket_of(number: int) -> socket.socket:
    """Return a duplicate of a descriptor as a socket. Raises OSError where it has become something else meanwhile."""
    duplicate = os.dup(number)
    try:
        return socket.socket(fileno=duplicate)
    except OSError:
        os.close(duplicate)  # of a file it would keep the lock
        raise


def _limit(connection: socket.socket, after_s: float) -> None:
    idle_s = max(1, round(after_s / (_PROBES + 1)))
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, idle_s)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, idle_s)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, _PROBES)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, round(after_s * 1000))
