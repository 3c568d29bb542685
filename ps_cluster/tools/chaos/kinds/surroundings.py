"""Faults around all tasks of a run: its disk, the link between them, and the clock. Other programs see none of them."""

from __future__ import annotations

import os
import shutil
import struct
import subprocess
from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

from ps_cluster.config.tasks import OnDeaths
from ps_cluster.system.private_network import NAMESPACE_ARGV
from ps_cluster.tools.chaos.disturbed_runs import Run
from ps_cluster.tools.chaos.hosts import MOUNTS, NETWORK, NotAllowed, inside, program
from ps_cluster.tools.chaos.kind import (
    ChaosFailed,
    FaultKind,
    Injection,
    Lasting,
    Scene,
    TrainingBack,
    TrainingGoesOn,
    new_file,
)

# Mount a disk without room, or without inodes, over folders of the run: a tiny file system only its processes see.

FULL, NO_INODES = "size=4k", "nr_inodes=1"  # options of tmpfs; the one inode is that of the folder itself
NOTICED_WITHIN_S = 90.0  # a leader whose last save was slow pauses for up to 60 s (training/saver.py)

_REFUSED = "No space left on device"  # what the system says in both cases


class _SmallDisk(FaultKind):
    def why_not(self, run: Run) -> str | None:
        try:
            with inside(run.pid, MOUNTS) as call:
                _mount(call, run.tools, FULL)
                _unmount(call, run.tools)
        except NotAllowed as reason:
            return f"this user may not mount a file system for the run alone: {reason}"
        return None


class FullAtLastCheckpoint(_SmallDisk):
    """No room for the last checkpoint when the run is drained: it fails with one line. With room again, it resumes."""

    name = "disk full at the last checkpoint"

    def whole_cluster(self, on_death: OnDeaths) -> bool:
        return True

    def inject(self, scene: Scene) -> Injection:
        run, began = scene.launched, scene.now()
        with inside(run.pid, MOUNTS) as call:
            _mount(call, run.files.checkpoints, FULL)
        run.interrupt()
        scene.wait_for_end(1)  # the small disk goes away with the processes that see it
        if _REFUSED not in run.last_line:
            raise ChaosFailed(f"the run on a full disk ended with other words than '{_REFUSED}': {run.last_line}")
        run.resume()
        return Injection(began, [TrainingBack(began)])


class OutOfInodes(_SmallDisk):
    """No file can be made for checkpoints and snapshots: training continues, and saves again when it can."""

    name = "out of inodes"

    def inject(self, scene: Scene) -> Injection:
        files, log = scene.run.files, scene.launched.leader_log
        scene.wait_for(files.snapshots.is_dir, NOTICED_WITHIN_S, "no snapshot was written")
        before = log.stat().st_size

        def told() -> bool:
            return _REFUSED.encode() in log.read_bytes()[before:]

        with inside(scene.run.pid, MOUNTS) as call:
            mounted = []
            try:
                for folder in files.states:
                    _mount(call, folder, NO_INODES)
                    mounted.append(folder)
                unsaid = f"nothing in {log.name} about a snapshot that could not be written"
                scene.wait_for(told, NOTICED_WITHIN_S, unsaid)
            finally:
                for folder in mounted:
                    _unmount(call, folder)
        return Injection(scene.now(), [new_file(files.snapshots, "*.safetensors")])


def _mount(call: Callable[..., None], folder: Path, options: str) -> None:
    call(program("mount"), "-t", "tmpfs", "-o", options, "tmpfs", str(folder))


def _unmount(call: Callable[..., None], folder: Path) -> None:
    call(program("umount"), "--lazy", str(folder))  # works even while a process uses the folder


# Cut or slow the link between all tasks, in the run's own network.

CUT_S, SLOW_S = 3.0, 6.0
# A step of the default network moves a megabyte each way. A packet on this link has up to 64 KiB.
RATE, BURST, LATENCY = "16mbit", "128kb", "200ms"


class _Link(Lasting):
    @abstractmethod
    def programs(self) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """Return the programs that worsen and restore the link, run in the network. Raises NotAllowed without them."""

    def why_not(self, run: Run) -> str | None:
        try:
            with self._worse(run):
                return None
        except NotAllowed as reason:
            return f"the link of the run's network can't be touched: {reason}"

    def worse(self, scene: Scene) -> AbstractContextManager[None]:
        return self._worse(scene.run)

    @contextmanager
    def _worse(self, run: Run) -> Iterator[None]:
        anyone = next(iter(run.running().values()))  # all tasks are in the same network
        worsen, mend = self.programs()
        with inside(anyone, NETWORK) as call:
            call(*worsen)
            try:
                yield
            finally:
                call(*mend)


class LinkCut(_Link):
    """No task reaches any other: the interface is down."""

    name = "link cut"
    seconds = CUT_S

    def programs(self) -> tuple[tuple[str, ...], tuple[str, ...]]:
        return (*NAMESPACE_ARGV, "loopback", "down"), (*NAMESPACE_ARGV, "loopback", "up")


class LinkSlow(_Link):
    """All tasks together send at most RATE."""

    name = "link slow"
    seconds = SLOW_S

    def programs(self) -> tuple[tuple[str, ...], tuple[str, ...]]:
        rate = ("tbf", "rate", RATE, "burst", BURST, "latency", LATENCY)
        control = (program("tc"), "qdisc")
        return (*control, "add", "dev", "lo", "root", *rate), (*control, "del", "dev", "lo", "root")


# Set the clock back for the run alone: the real clock is that of the whole machine.

BACK_S = 3600
FILE_VARIABLE = "PS_CLUSTER_TEST_CLOCK"
SOURCE = Path(__file__).with_name("shifted_clock.c")

_SHIFT = struct.Struct("l")  # seconds
_COMPILED_WITHIN_S = 60.0


class ClockSetBack(FaultKind):
    """An hour back, for all processes of the run at once. No process may die of it, and no duration may be wrong.

    A library in front of the C library answers `clock_gettime`, `gettimeofday` and `time`. Unlike with a real change of
    the clock, waits that have begun don't get longer, and the times of files are true.
    """

    name = "clock set back"

    def environment(self, folder: Path) -> Mapping[str, str]:
        compiler, library = shutil.which("cc"), folder / "shifted_clock.so"
        if compiler is None:
            return {}
        argv = (compiler, "-shared", "-fPIC", "-O2", "-o", str(library), str(SOURCE), "-ldl")
        if subprocess.run(argv, capture_output=True, timeout=_COMPILED_WITHIN_S).returncode:
            return {}
        _shift_file(folder).write_bytes(_SHIFT.pack(0))
        libraries = ":".join(filter(None, (str(library), os.environ.get("LD_PRELOAD"))))
        return {"LD_PRELOAD": libraries, FILE_VARIABLE: str(_shift_file(folder))}

    def why_not(self, run: Run) -> str | None:
        if _shift_file(run.tools).exists():
            return None
        return "the library that shows another time needs a C compiler (cc) for the GNU C library 2.30 or newer"

    def inject(self, scene: Scene) -> Injection:
        with _shift_file(scene.run.tools).open("r+b") as file:  # in place, since the processes have mapped it
            (shift,) = _SHIFT.unpack(file.read(_SHIFT.size))
            file.seek(0)
            file.write(_SHIFT.pack(shift - BACK_S))
        return Injection(scene.now(), [TrainingGoesOn(scene.now())])


def _shift_file(folder: Path) -> Path:
    return folder / "clock-shift"
