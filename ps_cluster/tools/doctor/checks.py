"""Ask whether this machine and installation can train: a function for each check. No TensorFlow."""

from __future__ import annotations

import atexit
import os
import platform
import re
import shlex
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from enum import StrEnum
from functools import partial
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np
from packaging.markers import Marker

from ps_cluster.config import RunConfig, build_config
from ps_cluster.config.user_layers import without_variables
from ps_cluster.data import sources
from ps_cluster.errors import UserError
from ps_cluster.files.json_files import read_json
from ps_cluster.files.values import Malformed
from ps_cluster.files.writing import check_folder
from ps_cluster.installation import IMPORT_FOLDER, PROGRAM, finding_this_package, how_to_install
from ps_cluster.launch import topology
from ps_cluster.runs.result_rows import Summary
from ps_cluster.runs.run_dir import RunDir
from ps_cluster.system import environment, machine
from ps_cluster.system.environment import CALLER_PID
from ps_cluster.system.machine import Allowance, FreeMemory, allowance, room
from ps_cluster.system.network import NAMESPACE_ARGV, network_for


class Status(StrEnum):
    """The ways in which a check can end. After a warning training works, but is slower, less safe or not as expected."""

    OK = "ok"
    WARN = "warn"
    FAIL = "fail"


@dataclass(frozen=True)
class Finding:
    """The answer of a check. `todo`: what to do about it; empty where all is well.

    `name` of the check and the `seconds` that it took are set by `examine`.
    """

    status: Status
    says: str
    todo: str = ""
    name: str = ""
    seconds: float = 0.0


ok = partial(Finding, Status.OK)
warn = partial(Finding, Status.WARN)
fail = partial(Finding, Status.FAIL)


@dataclass(frozen=True)
class Check:
    """A question about this machine or installation.

    Attributes:
      name: what is examined, in one or two words.
      look: returns the answer. An exception counts as a failure.
      limit_s: seconds after which it counts as failed.
    """

    name: str
    look: Callable[[], Finding]
    limit_s: float = 10.0


def all_checks(runs: Path, cache_dir: Path, data_dir: Path | None, *, cluster: bool) -> list[Check]:
    """Return all checks, quick ones first.

    Args:
      runs: the folder in which runs are written. cache_dir: that of packed data.
      data_dir: a folder in which archives are looked for, before the caches.
      cluster: whether a cluster is started.
    """
    quick = [
        Check("python", python_version),
        Check("versions", locked_versions),
        Check("processor", processor),
        Check("memory", memory),
        Check("limits", control_group),
        Check("disk", lambda: free_disk((runs, cache_dir))),
        Check("ports", ports),
        Check("isolation", user_namespaces, limit_s=40.0),  # that of `network_for` is 30
        Check("environment", surroundings),
        Check("data", lambda: data_set(cache_dir, data_dir)),
        Check("tensorflow", tensorflow_import, limit_s=130.0),
    ]
    return [*quick, Check("cluster", trial_cluster, limit_s=TRIAL_S + 60)] if cluster else quick


# Carry out checks one after the other, each within its time.


def examine(checks: Sequence[Check]) -> Iterator[Finding]:
    """Yield what each check has found. One that raises or takes too long has failed; its thread is left behind."""
    for check in checks:
        began = time.monotonic()
        findings: list[Finding] = []

        def look(check: Check = check, findings: list[Finding] = findings) -> None:
            try:
                findings.append(check.look())
            except Exception as error:  # nothing that one check meets may keep the others from their turn
                findings.append(fail(f"{type(error).__name__}: {error}", "look into what the message names"))

        thread = threading.Thread(target=look, daemon=True)
        thread.start()
        thread.join(check.limit_s)
        late = fail(f"no answer within {check.limit_s:g} s", "see whether the machine is overloaded or a disk hangs")
        finding = (findings or [late])[0]
        yield replace(finding, name=check.name, seconds=round(time.monotonic() - began, 3))


def as_json(examined: Sequence[Finding]) -> dict[str, Any]:
    """Return the output of --json. Its status is the worst of all checks."""
    worst = max((one.status for one in examined), key=list(Status).index, default=Status.OK)
    return {"status": worst.value, "checks": [asdict(one) for one in examined]}


# Checks of the machine: processor, memory, limits of the control group, disk.

GB = 10**9
# A default run writes 0.2 GB; each packed copy of CIFAR-10 has 0.2 GB.
ENOUGH_DISK_BYTES, LEAST_DISK_BYTES = GB, GB // 10
SMALLEST = {"model.name": "tutorial_cnn", "cluster.workers": 1, "cluster.evaluator": False}


def processor(cpuinfo: Path = machine.CPUINFO, allowed: Allowance | None = None) -> Finding:
    """Name the processor, what of it may be used, and the precision that it gives."""
    found = machine.describe(cpuinfo, allowed or allowance())
    precision = machine.fastest_precision(cpuinfo)
    why = "" if precision == "bfloat16" else ", as it has no instructions for bfloat16"
    told = f"{machine.processor_of(found)}, {found['cores']} at a time: precision auto is {precision}{why}"
    flags = machine.flags_of(cpuinfo)
    if platform.machine() == "x86_64" and flags and "avx" not in flags:
        return fail(f"{told}; it has no AVX", "use another machine: TensorFlow's packages need AVX")
    if found["cores"] < 2:
        return warn(told, "give it a second core: on one, workers take turns")
    return ok(told)


def memory(space: FreeMemory | None = None) -> Finding:
    """Check that the memory is enough for the default run."""
    space = space or room()

    def needed(config: RunConfig) -> int:
        size = topology.needed_bytes(config)
        assert size is not None  # these networks were measured
        return size

    default, smallest = needed(build_config()), needed(build_config(None, SMALLEST))
    told = f"{space}, the default run takes about {default / GB:.1f} GB"
    if smallest > space.memory_bytes:
        return fail(told, f"free some: the smallest run takes about {smallest / GB:.1f} GB")
    if default > space.memory_bytes:
        return warn(told, "use fewer --workers, a smaller --batch-size, --model tutorial_cnn or --no-evaluator")
    return ok(told)


def control_group(allowed: Allowance | None = None) -> Finding:
    """Name the limits of the control group, as a container has them."""
    allowed = allowed or allowance()
    cpus, limit = allowed.cpus, allowed.memory_bytes
    parts = [
        f"{cpus:g} processor seconds a second" if cpus else "no limit on processors",
        f"{limit / GB:.1f} GB of memory" if limit else "no limit on memory",
    ]
    told = f"control group: {', '.join(parts)}"
    if allowed.quota_decides:
        return warn(told, f"give the container more processors: of {allowed.processors} it may use a part")
    return ok(told)


def free_disk(
    folders: Sequence[Path], free_bytes: Callable[[Path], int] = lambda path: shutil.disk_usage(path).free
) -> Finding:
    """Check that runs and packed data can be written."""
    told = []
    for folder in folders:
        try:
            check_folder(folder)
        except Malformed as error:
            return fail(f"'{folder}' {error}", "work in a folder of your own; PS_CLUSTER_CACHE moves the cache")
        place = next(path for path in (folder.absolute(), *folder.absolute().parents) if path.exists())
        told.append((free_bytes(place), folder))
    free, folder = min(told)
    says = f"{free / GB:.1f} GB are free for {folder}"
    if free < LEAST_DISK_BYTES:
        return fail(says, "free some: a run and its data take several 100 MB")
    if free < ENOUGH_DISK_BYTES:
        return warn(says, "free some, or remove old runs and packed data (data rm)")
    return ok(says)


# Checks of what is installed: Python, TensorFlow, versions against the lock, data.

FIRST_PYTHON, LAST_PYTHON = (3, 11), (3, 13)  # as in pyproject.toml
_LOCK = IMPORT_FOLDER / "requirements.txt"
_PINNED = re.compile(r"([A-Za-z0-9._-]+)==([^\s;\\]+)\s*(?:;\s*([^\\]+))?")
_MOST_NAMED = 5
_IMPORT = "import tensorflow; print(tensorflow.__version__)"


def python_version(version: tuple[int, ...] = sys.version_info[:3]) -> Finding:
    """Check the version of Python."""
    told = ".".join(map(str, version))
    first, last = (".".join(map(str, one)) for one in (FIRST_PYTHON, LAST_PYTHON))
    if FIRST_PYTHON <= version[:2] <= LAST_PYTHON:
        return ok(f"{told}, {sys.executable}")
    return fail(f"{told}: {first} to {last} is supported", how_to_install(f"python{last}"))


def surroundings(given: Mapping[str, str] | None = None) -> Finding:
    """Look for settings of other programs that tasks can't take: Keras on another library, keras.json, and the like."""
    try:
        lines = list(environment.not_used(os.environ if given is None else given))
    except UserError as error:
        return fail(str(error), "correct or remove that file")
    if lines:
        return warn("; ".join(lines), "nothing, unless you rely on it: tasks take what they need")
    return ok("nothing in it asks for what tasks can't do")


def tensorflow_import(
    argv: tuple[str, ...] = (sys.executable, "-P", "-c", _IMPORT), timeout_s: float = 120.0
) -> Finding:
    """Import TensorFlow in a process of its own."""
    env = environment.for_tensorflow(os.environ)
    try:
        ended = subprocess.run(argv, capture_output=True, text=True, errors="replace", timeout=timeout_s, env=env)
    except subprocess.TimeoutExpired:
        return fail(f"not imported within {timeout_s:g} s", "see whether the machine is overloaded")
    last = (ended.stdout if ended.returncode == 0 else ended.stderr).strip().splitlines()[-1:]
    told = " ".join(last) or f"exit code {ended.returncode}"
    return ok(told) if ended.returncode == 0 else fail(told, how_to_install())


def locked_versions(lock: Path = _LOCK, version_of: Callable[[str], str] = metadata.version) -> Finding:
    """Compare the installed packages with the lock, with which the project is tested."""
    if not lock.is_file():
        return ok("installed as a package: there is no lock to hold it against")
    count, others = 0, []
    for line in lock.read_text(encoding="utf-8").splitlines():
        match = _PINNED.match(line)
        if match is None or (match[3] and not Marker(match[3].strip()).evaluate()):
            continue  # no package, or one of other machines
        count += 1
        try:
            if (found := version_of(match[1])) != match[2]:
                others.append(f"{match[1]} {found} in place of {match[2]}")
        except metadata.PackageNotFoundError:
            others.append(f"{match[1]} {match[2]} is missing")
    if not others:
        return ok(f"all {count} packages are those of {lock.name}")
    more = f", and {len(others) - _MOST_NAMED} more" if len(others) > _MOST_NAMED else ""
    return warn(
        f"{len(others)} of {count} packages are not those of {lock.name}: {', '.join(others[:_MOST_NAMED])}{more}",
        f"python -m pip install --require-hashes --no-deps -r {lock.name}",
    )


def data_set(cache_dir: Path, data_dir: Path | None) -> Finding:
    """Look for CIFAR-10 on this machine."""
    entry = next(entry for entry in sources.entries(cache_dir, data_dir) if entry.name == "cifar10")
    damaged = [copy.directory.name for copy in entry.copies if copy.dataset is None]
    if sound := [copy for copy in entry.copies if copy.dataset is not None]:
        return ok(f"{entry.title} is packed in {sound[0].directory}")
    if entry.archives:
        return ok(f"{entry.title} is here: {entry.archives[0]}")
    if damaged:
        return warn(f"the packed copy {damaged[0]} is damaged", f"{PROGRAM} data rm {shlex.quote(damaged[0])}")
    return warn(
        f"{entry.title} is not here: a run downloads it, or else trains on the generated set and says so",
        f"{PROGRAM} data fetch cifar10, or give it by --data-dir",
    )


# Checks of what the system allows: ports of this machine, a network of its own for a run, and a whole run.

PORTS = 13  # of a run with the most workers and parameter servers, and its chief
TRIAL_S = 120.0  # on two cores it takes 10 to 20
STEPS, WORKERS, BATCH_SIZE = 40, 2, 32
_TIMEOUT_S = 5.0
_RUN = (sys.executable, "-m", "ps_cluster")


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
    """Check that a run gets a network of its own, in which nobody else reaches its ports."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        with network_for("auto", folder, folder, lambda line: None, namespace_argv) as network:
            if network.isolated:
                return ok("a run gets a network of its own")
            return warn(
                network.notice or "no private network",
                "allow user namespaces (sysctl user.max_user_namespaces; on Ubuntu also "
                "kernel.apparmor_restrict_unprivileged_userns=0), or use a machine that you share with nobody",
            )


def trial_cluster(program: Sequence[str] = _RUN, timeout_s: float = TRIAL_S) -> Finding:
    """Train with two workers, a parameter server and an evaluator. If it fails, its folder stays."""
    folder = Path(tempfile.mkdtemp(prefix="ps_cluster_doctor-"))
    removal = partial(shutil.rmtree, folder, ignore_errors=True)
    atexit.register(removal)  # also after Ctrl-C
    if problem := _trained(program, timeout_s, folder):
        atexit.unregister(removal)
        return fail(problem, f"read {folder}/output.txt and the logs in {folder}/run/logs, then remove the folder")
    summary = read_json(RunDir(folder / "run").summary, Summary)
    removal()
    updates = summary.updates
    return ok(
        f"{updates.applied} of {updates.scheduled} updates of {len(summary.workers)} workers, each applied once, in "
        f"{summary.wall_seconds:.0f} s"
    )


def _trained(program: Sequence[str], timeout_s: float, folder: Path) -> str:
    """Train in a folder, where all that is written goes to. Return what went wrong, or ""."""
    # Random pixels: it is the cluster that is tried, not what it learns.
    draw = np.random.default_rng(0)
    images, labels = draw.integers(0, 256, (320, 32, 32, 3), np.uint8), np.arange(320) % 10
    np.savez(
        folder / "images.npz", x_train=images[:256], y_train=labels[:256], x_test=images[256:], y_test=labels[256:]
    )
    size = ("--workers", WORKERS, "--ps", 1, "--steps", STEPS, "--batch-size", BATCH_SIZE)
    what = ("--dataset", folder / "images.npz", "--model", "mlp", "--run-dir", folder / "run")
    own = {CALLER_PID: str(os.getpid()), "PS_CLUSTER_CACHE": str(folder / "cache")}  # it ends with this process
    with (folder / "output.txt").open("wb") as output:
        try:
            ended = subprocess.run(  # after the timeout it is killed, and its tasks end with it
                [*program, "run", *map(str, (*size, *what))],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env=finding_this_package(without_variables(os.environ)) | own,
                timeout=timeout_s,
            )
        except subprocess.TimeoutExpired:
            return f"not trained within {timeout_s:g} s"
    lines = (folder / "output.txt").read_text(encoding="utf-8", errors="replace").strip().splitlines()
    return "" if ended.returncode == 0 else f"exit code {ended.returncode}: {lines[-1] if lines else 'no output'}"
