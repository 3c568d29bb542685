"""Check the machine: its processor, memory, disk, ports, and whether a run gets a private computer network."""

from __future__ import annotations

import platform
import shutil
import socket
import tempfile
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path

from ps_cluster.config import build_config
from ps_cluster.files.values import Malformed, with_noun
from ps_cluster.files.writable import check_folder
from ps_cluster.launch.memory import needed_bytes
from ps_cluster.notices import ignore
from ps_cluster.system import machine
from ps_cluster.system.limits import Allowance, FreeMemory, allowance, free_memory
from ps_cluster.system.private_network import NAMESPACE_ARGV, network_for
from ps_cluster.tools.doctor.finding import Finding, fail, ok, warn

GB = 10**9
# A default run writes 0.2 GB; each packed copy of CIFAR-10 has 0.2 GB.
ENOUGH_DISK_BYTES, LEAST_DISK_BYTES = GB, GB // 10
SMALLEST = {"model.name": "tutorial_cnn", "cluster.workers": 1, "cluster.evaluator": False}
PORTS = 13  # ports of the largest run: all its workers, parameter servers and the chief
_TIMEOUT_S = 5.0


def processor(cpuinfo: Path = machine.CPUINFO, allowed: Allowance | None = None) -> Finding:
    """Name the processor, the number of cores that may be used, and the precision that `--precision auto` chooses."""
    allowed = allowed or allowance()
    found = machine.describe(cpuinfo, allowed)
    precision = machine.fastest_precision(cpuinfo)
    why = "" if precision == "bfloat16" else ", as the processor has no instructions for bfloat16"
    answer = f"{machine.processor_of(found)}, {with_noun(allowed.threads, 'core')}: precision auto is {precision}{why}"
    flags = machine.flags_of(cpuinfo)
    if platform.machine() == "x86_64" and flags and "avx" not in flags:
        return fail(f"{answer}; it has no AVX", "use another machine: TensorFlow's packages need AVX")
    if allowed.quota_decides:
        return warn(
            answer,
            f"raise the CPU limit of the container: it may use only a part of its {allowed.processors} processors",
        )
    if allowed.threads < 2:
        return warn(answer, "allow this program a second core: on one core, workers take turns")
    return ok(answer)


def memory(space: FreeMemory | None = None) -> Finding:
    """Check that there is enough memory for the default run."""
    space = space or free_memory()
    configs = (build_config(), build_config(None, SMALLEST))
    default, smallest = (needed_bytes(config) or 0 for config in configs)  # these networks were measured
    answer = f"{space}; the default run takes about {default / GB:.1f} GB"
    if smallest > space.memory_bytes:
        return fail(answer, f"free some memory: the smallest run takes about {smallest / GB:.1f} GB")
    if default > space.memory_bytes:
        return warn(answer, "use fewer --workers, a smaller --batch-size, --model tutorial_cnn or --no-evaluator")
    return ok(answer)


def free_disk(
    folders: Sequence[Path], free_bytes: Callable[[Path], int] = lambda path: shutil.disk_usage(path).free
) -> Finding:
    """Check that the folders of runs and of packed data can be written, and that their disks have enough free space."""
    answer = []
    for folder in folders:
        try:
            check_folder(folder)
        except Malformed as error:
            return fail(f"'{folder}' {error}", "work in a folder of your own; PS_CLUSTER_CACHE moves the cache")
        place = next(path for path in (folder.absolute(), *folder.absolute().parents) if path.exists())
        answer.append((free_bytes(place), folder))
    free, folder = min(answer)
    message = f"{free / GB:.1f} GB are free for {folder}"
    if free < LEAST_DISK_BYTES:
        return fail(message, "free some space: a run and its data take several 100 MB")
    if free < ENOUGH_DISK_BYTES:
        return warn(message, "free some space, e.g. remove old runs and packed data (data rm)")
    return ok(message)


def ports(host: str = "127.0.0.1") -> Finding:
    """Check that programs of this machine can listen on ports and reach each other."""
    try:
        with ExitStack() as stack:
            for _ in range(PORTS):
                server = stack.enter_context(socket.create_server((host, 0)))
                stack.enter_context(socket.create_connection(server.getsockname()[:2], timeout=_TIMEOUT_S))
    except OSError as error:
        reason = error.strerror or error
        return fail(f"no connection to {host}: {reason}", "allow local connections, and more open files")
    return ok(f"{PORTS} ports of {host} can be opened and reached")


def user_namespaces(namespace_argv: tuple[str, ...] = NAMESPACE_ARGV) -> Finding:
    """Check that a run gets a private computer network, so that no other user reaches its ports."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        with network_for("auto", folder, folder, ignore, namespace_argv) as network:
            if network.isolated:
                return ok("each run gets a private computer network")
            return warn(
                network.notice or "no private network",
                "allow user namespaces (sysctl user.max_user_namespaces; on Ubuntu also "
                "kernel.apparmor_restrict_unprivileged_userns=0), or use a machine without other users",
            )
