"""Mount a disk without room, or without inodes, over folders of the run: a tiny file system only its processes see."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

from ps_cluster.config.modes import OnDeaths
from ps_cluster.tools.chaos.kind import ChaosFailed, FaultKind, Injection, NewFile, NotAllowed, Run, Scene, TrainingBack
from ps_cluster.tools.chaos.training_run import MOUNTS, inside

FULL, NO_INODES = "size=4k", "nr_inodes=1"  # options of tmpfs; the one inode is that of the folder itself
NOTICED_WITHIN_S = 30.0

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
        run, began = scene.run, scene.now()
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
        files, log = scene.run.files, scene.run.leader_log
        scene.wait_for(files.snapshots.is_dir, NOTICED_WITHIN_S, "no snapshot was written")
        before = log.stat().st_size
        with inside(scene.run.pid, MOUNTS) as call:
            mounted = []
            try:
                for folder in files.states:
                    _mount(call, folder, NO_INODES)
                    mounted.append(folder)
                unsaid = f"nothing in {log.name} about a snapshot that could not be written"
                scene.wait_for(lambda: _REFUSED in _since(log, before), NOTICED_WITHIN_S, unsaid)
            finally:
                for folder in mounted:
                    _unmount(call, folder)
        return Injection(scene.now(), [NewFile(files.snapshots, "*.safetensors")])


def _mount(call: Callable[..., None], folder: Path, options: str) -> None:
    call(_program("mount"), "-t", "tmpfs", "-o", options, "tmpfs", str(folder))


def _unmount(call: Callable[..., None], folder: Path) -> None:
    call(_program("umount"), "--lazy", str(folder))  # works even while a process uses the folder


def _program(name: str) -> str:
    if (program := shutil.which(name)) is None:
        raise NotAllowed(f"there is no program `{name}`")
    return program


def _since(log: Path, offset: int) -> str:
    with log.open("rb") as file:
        file.seek(offset)
        return file.read().decode("utf-8", "replace")


FULL_AT_LAST_CHECKPOINT = FullAtLastCheckpoint()
OUT_OF_INODES = OutOfInodes()
