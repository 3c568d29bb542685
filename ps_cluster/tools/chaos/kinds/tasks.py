"""Faults of single tasks: killed or stopped by a signal, short of memory or of a processor."""

from __future__ import annotations

import contextlib
import os
import random
import secrets
import signal
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import psutil

from ps_cluster.config.tasks import CHIEF, EVALUATOR, PS, TRAINING_TYPES, WORKER, OnDeaths, Task
from ps_cluster.launch import task_server
from ps_cluster.system.limits import ROOT, folders
from ps_cluster.tools.chaos.disturbed_runs import Run
from ps_cluster.tools.chaos.hosts import NotAllowed
from ps_cluster.tools.chaos.kind import ChaosFailed, Condition, FaultKind, Injection, Lasting, Scene, TrainingBack


class Death(FaultKind):
    """A kind that ends in the death of its victims. The launcher's table says what follows."""

    def whole_cluster(self, on_death: OnDeaths) -> bool:
        return any(on_death[victim].whole_cluster for victim in self.victims)


class Signalled(Death):
    """One signal to one task of each of these types, all within a millisecond."""

    def __init__(self, name: str, victims: tuple[str, ...], number: int):
        self.name, self.victims, self._signal = name, victims, number
        self.hosted = number == signal.SIGKILL  # only a launcher ends what is frozen

    def inject(self, scene: Scene) -> Injection:
        began = scene.now()
        signs = scene.signs_after_deaths(began)
        for pid in scene.victims.values():
            scene.kill(pid, self._signal)
        return Injection(began, signs)


KILLED_WORKER = Signalled("kill worker", (WORKER,), signal.SIGKILL)
FROZEN_WORKER = Signalled("freeze worker", (WORKER,), signal.SIGSTOP)
KILLED_EVALUATOR = Signalled("kill evaluator", (EVALUATOR,), signal.SIGKILL)
KILLED_PS = Signalled("kill ps", (PS,), signal.SIGKILL)
FROZEN_PS = Signalled("freeze ps", (PS,), signal.SIGSTOP)
KILLED_CHIEF = Signalled("kill chief", (CHIEF,), signal.SIGKILL)
FROZEN_CHIEF = Signalled("freeze chief", (CHIEF,), signal.SIGSTOP)
KILLED_WORKER_AND_PS = Signalled("kill worker+ps", (WORKER, PS), signal.SIGKILL)
KILLED_PS_AND_CHIEF = Signalled("kill ps+chief", (PS, CHIEF), signal.SIGKILL)


class ForkServerStopped(Death):
    """A worker is killed, and the process that is asked to fork its replacement was stopped before."""

    name = "fork server stopped"
    victims = (WORKER,)

    def why_not(self, run: Run) -> str | None:
        return None if _fork_servers(run) else "the launcher has no process that forks tasks"

    def inject(self, scene: Scene) -> Injection:
        began = scene.now()
        stopped = _fork_servers(scene.run)
        for server in stopped:
            scene.kill(server.pid, signal.SIGSTOP)
        for pid in scene.victims.values():
            scene.kill(pid, signal.SIGKILL)
        gone = Condition(
            "the stopped fork server is still there", lambda _: not any(server.is_running() for server in stopped)
        )
        return Injection(began, [*scene.signs_after_deaths(began), gone])


def _fork_servers(run: Run) -> list[psutil.Process]:
    """Return the process that forks a run's tasks: one of the launcher's children; none where there is no launcher."""
    found = []
    with contextlib.suppress(psutil.Error):
        for child in psutil.Process(run.pid).children():
            with contextlib.suppress(psutil.Error):
                if task_server.__name__ in child.cmdline():
                    found.append(child)
    return found


class HangUp(FaultKind):
    """The terminal of a run is closed. The run is drained and ends with exit code 0. Resumed, it trains."""

    name = "hang up"

    def whole_cluster(self, on_death: OnDeaths) -> bool:
        return True

    def why_not(self, run: Run) -> str | None:
        return "SIGHUP is ignored here, as under nohup" if signal.getsignal(signal.SIGHUP) == signal.SIG_IGN else None

    def inject(self, scene: Scene) -> Injection:
        began = scene.now()
        scene.launched.hang_up()
        scene.wait_for_end(0)
        scene.launched.resume()
        return Injection(began, [TrainingBack(began)])


# Limit one process by a control group of its own (the kernel's admin-guide/cgroup-v2.rst, cgroup-v1/), which the user
# must be allowed to make.

KILLED_WITHIN_S = 30.0
# Shorter than the launcher's limit for a silent worker: the worker is slow, not dead.
THROTTLED_S = 6.0

_EMPTY_WITHIN_S = 5.0  # a killed process stays in its group until the kernel has removed it
_LOOK_EVERY_S = 0.02
_COUNTS = ("memory.events", "memory.oom_control", "cpu.stat")  # files of lines "name count"


@dataclass(frozen=True)
class Limit:
    """The files of a control group of either version, and their content. The first file always exists."""

    controller: str
    version_2: Mapping[str, str]
    version_1: Mapping[str, str]


NO_MEMORY = Limit(
    "memory",
    version_2={"memory.max": "1048576", "memory.swap.max": "0"},
    version_1={"memory.limit_in_bytes": "1048576", "memory.memsw.limit_in_bytes": "1048576"},
)
FIVE_PERCENT = Limit(
    "cpu",
    version_2={"cpu.max": "5000 100000"},
    version_1={"cpu.cfs_period_us": "100000", "cpu.cfs_quota_us": "5000"},
)


class OutOfMemory(Death):
    """A worker is killed. Its replacement may use 1 MB more than it starts with, so the kernel kills it as it grows.

    A worker that has trained for a while asks for no more memory, and its memory stays counted in its first group.
    """

    name = "out of memory"
    victims = (WORKER,)

    def why_not(self, run: Run) -> str | None:
        return why_no_limit(NO_MEMORY)

    def inject(self, scene: Scene) -> Injection:
        ((worker, before),) = scene.victims.items()
        scene.kill(before, signal.SIGKILL)
        pid = scene.wait_for_next(worker)
        began = scene.now()
        signs = scene.signs_after_deaths(began, {worker: pid})
        with limited(pid, NO_MEMORY) as group:
            lived = f"{worker} (pid {pid}) got no more memory, and the kernel did not kill it"
            scene.wait_for(lambda: count_in(group, "oom_kill") > 0, KILLED_WITHIN_S, lived)
        return Injection(began, signs)


class Throttled(Lasting):
    """Any one task gets 5 % of a CPU for a while. No process may die of it."""

    name = "throttle"
    seconds = THROTTLED_S

    def choose(self, source: random.Random, tasks: Sequence[Task]) -> tuple[Task, ...]:
        return (source.choice([task for task in tasks if task.type in TRAINING_TYPES]),)

    def why_not(self, run: Run) -> str | None:
        return why_no_limit(FIVE_PERCENT)

    @contextmanager
    def worse(self, scene: Scene) -> Iterator[None]:
        ((task, pid),) = scene.victims.items()
        with limited(pid, FIVE_PERCENT) as group:
            yield
            if count_in(group, "nr_throttled") == 0:
                raise ChaosFailed(f"{task} was to get 5 % of a processor, and the kernel never held it back")


@contextmanager
def limited(pid: int, limit: Limit, root: Path = ROOT) -> Iterator[Path]:
    """Keep process `pid` in a group of its own, the folder yielded, during the block. The process may end meanwhile.

    Raises:
      NotAllowed: no such group can be made, or the process can't be moved.
    """
    around = [folder for folder in folders(limit.controller, Path(f"/proc/{pid}/cgroup"), root) if folder.is_dir()]
    group = _make(limit, around)
    try:
        _move(pid, group)
        yield group
    finally:
        with contextlib.suppress(NotAllowed):  # the process has ended
            _move(pid, around[0])
        _remove(group)


def count_in(group: Path, name: str) -> int:
    """Return the kernel's count of this name in a group; 0 where it has none."""
    for file in _COUNTS:
        with contextlib.suppress(FileNotFoundError):
            for line in (group / file).read_text().splitlines():
                if line.split()[0] == name:
                    return int(line.split()[1])
    return 0


def why_no_limit(limit: Limit, root: Path = ROOT) -> str | None:
    """Return why this user can't limit a process so; None if possible. Tries it with a sleeping process."""
    with subprocess.Popen(["sleep", "60"], start_new_session=True) as sleeper:
        try:
            with limited(sleeper.pid, limit, root):
                return None
        except NotAllowed as reason:
            return str(reason)
        finally:
            sleeper.kill()


def _make(limit: Limit, around: list[Path]) -> Path:
    """Make a limited group in the innermost folder of `around` whose members may have the controller."""
    reason = "none is mounted"
    for parent in around:
        group = parent / f"ps-cluster-chaos-{os.getpid()}-{secrets.token_hex(4)}"
        try:
            group.mkdir()
        except OSError as error:
            reason = error.strerror or str(error)
            continue
        files = next(
            (files for files in (limit.version_2, limit.version_1) if (group / next(iter(files))).exists()), {}
        )
        for name, value in files.items():
            if (group / name).exists():  # some systems don't count swap
                (group / name).write_text(value)
        if files:
            return group
        group.rmdir()
        reason = f"'{parent}' does not hand the controller on"
    raise NotAllowed(f"no control group with a limit of {limit.controller} can be made here: {reason}")


def _move(pid: int, group: Path) -> None:
    try:
        (group / "cgroup.procs").write_text(str(pid))
    except OSError as error:
        raise NotAllowed(f"a process can't be moved into '{group.parent}': {error.strerror}") from error


def _remove(group: Path) -> None:
    deadline = time.monotonic() + _EMPTY_WITHIN_S
    while True:
        try:
            return group.rmdir()
        except OSError:
            if time.monotonic() > deadline:
                raise
        time.sleep(_LOOK_EVERY_S)
