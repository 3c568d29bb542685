"""Inject faults of the disk: mount a tiny file system, which only the run's processes see, over folders of the run."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from ps_cluster.config.tasks import OnDeaths
from ps_cluster.tools.chaos.kind import ChaosFailed, FaultKind, Injection, Run, Scene
from ps_cluster.tools.chaos.namespaces import MOUNTS, NotAllowed, inside, run_in
from ps_cluster.tools.chaos.signs import TrainingBack, new_snapshot

FULL, NO_INODES = "size=4k", "nr_inodes=1"  # options of tmpfs; the one inode is that of the folder itself
NOTICED_WITHIN_S = 90.0  # A leader whose last save was slow pauses for up to 60 s (training/saver.py).
_REFUSED = "No space left on device"  # what the system says in both cases


@contextmanager
def _small_disks(run: Run, folders: Iterable[Path], options: str) -> Iterator[None]:
    with inside(run.pid, MOUNTS) as mounts, ExitStack() as mounted:
        for folder in folders:
            run_in(mounts, "mount", "-t", "tmpfs", "-o", options, "tmpfs", str(folder))
            mounted.callback(
                run_in, mounts, "umount", "--lazy", str(folder)
            )  # works even while a process uses the folder
        yield


class _SmallDisk(FaultKind):
    def why_not(self, run: Run) -> str | None:
        try:
            with _small_disks(run, [run.tools], FULL):
                return None
        except NotAllowed as reason:
            return f"this user is not allowed to mount a file system that only the run sees: {reason}"


class FullAtLastCheckpoint(_SmallDisk):
    """A fault in which the disk is full at the last checkpoint of a drained run.

    The run has to exit with a one-line error, and to train again when it is resumed.
    """

    name = "disk full at the last checkpoint"

    def restarts_whole_cluster(self, on_death: OnDeaths) -> bool:
        return True

    def inject(self, scene: Scene) -> Injection:
        run, began = scene.launched, scene.now()
        with inside(run.pid, MOUNTS) as mounts:
            run_in(mounts, "mount", "-t", "tmpfs", "-o", FULL, "tmpfs", str(run.files.checkpoints))
        run.interrupt()
        scene.wait_for_end(1)  # the small disk goes away with the processes that see it
        if _REFUSED not in run.last_line:
            raise ChaosFailed(f"the run on a full disk did not end with '{_REFUSED}', but with: {run.last_line}")
        run.resume()
        return Injection(began, [TrainingBack(began)])


class OutOfInodes(_SmallDisk):
    """A fault in which no file can be created for checkpoints and snapshots.

    Training has to continue, and to save again as soon as files can be created.
    """

    name = "out of inodes"

    def inject(self, scene: Scene) -> Injection:
        files, log = scene.run.files, scene.launched.leader_log
        scene.wait_for(files.snapshots.is_dir, NOTICED_WITHIN_S, "no snapshot was written")
        before = log.stat().st_size
        with _small_disks(scene.run, files.states, NO_INODES):
            problem = f"the log {log.name} does not report that a snapshot could not be written"
            scene.wait_for(lambda: _REFUSED.encode() in log.read_bytes()[before:], NOTICED_WITHIN_S, problem)
        return Injection(scene.now(), [new_snapshot(files.snapshots)])
