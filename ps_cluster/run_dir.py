"""The one place that names every file of a run, and writes whole files so that no reader ever sees half of one."""

from __future__ import annotations

import contextlib
import json
import os
from collections import deque
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ps_cluster.errors import UserError

IDENTITY = "identity"  # in a worker's workspace: int64 [2], its index and its pid


@dataclass(frozen=True)
class RunDir:
    """The files of one run, under `root` (an absolute path)."""

    root: Path

    @classmethod
    def create(cls, root: Path) -> RunDir:
        """A new run directory.

        Raises:
          UserError: there is something in the way, or it can't be written.
        """
        run_dir = cls(root.resolve())
        try:
            if root.is_dir() and any(root.iterdir()):
                raise UserError(
                    f"run directory '{root}' exists and is not empty: choose another, or go on with --resume {root}"
                )
            for folder in (run_dir.root, run_dir.metrics, run_dir.checkpoints, run_dir.logs, run_dir.errors):
                folder.mkdir(mode=0o755, parents=True, exist_ok=True)
            with run_dir.launcher_log.open("a"):
                pass
        except (NotADirectoryError, FileExistsError) as error:
            raise UserError(f"run directory '{root}' can't be made: a file is in the way") from error
        except OSError as error:
            raise UserError(f"run directory '{root}' can't be written: {error.strerror}") from error
        return run_dir

    @classmethod
    def open(cls, root: Path) -> RunDir:
        """The directory of an earlier run. Raises UserError where it is not one."""
        run_dir = cls(root.resolve())
        if not run_dir.config.is_file():
            raise UserError(f"run directory '{root}' is not one: it holds no {run_dir.config.name}")
        return run_dir

    @property
    def config(self) -> Path:
        return self.root / "config.yaml"

    @property
    def cluster(self) -> Path:
        return self.root / "cluster.json"

    @property
    def dataset(self) -> Path:
        """Which packed data set the tasks of this machine map: name, kind, directory."""
        return self.root / "dataset.json"

    @property
    def summary(self) -> Path:
        return self.root / "summary.json"

    @property
    def metrics(self) -> Path:
        return self.root / "metrics"

    @property
    def progress(self) -> Path:
        """Rows of the chief while it trains, a JSON object a line."""
        return self.metrics / "progress.jsonl"

    @property
    def evaluation(self) -> Path:
        """A row for each checkpoint scored, a JSON object a line."""
        return self.metrics / "evaluation.jsonl"

    @property
    def updates(self) -> Path:
        """The ledger: a row for each update applied (CSV)."""
        return self.metrics / "updates.csv"

    @property
    def applies(self) -> Path:
        """When each parameter server was at each update of its slice (CSV); absent without parameter servers."""
        return self.metrics / "applies.csv"

    def journal(self, index: int) -> Path:
        """The ledger of one slice of the parameters, appended to while training goes on (training/journal.py)."""
        return self.metrics / "journal" / f"slice-{index}.bin"

    @property
    def trace(self) -> Path:
        """What every task did when, in Chrome's trace format."""
        return self.metrics / "trace.json"

    @property
    def profile(self) -> Path:
        """The same for TensorBoard's profile plugin, which looks for <logdir>/plugins/profile/<run>/<host>.xplane.pb."""
        return self.tensorboard / "plugins" / "profile" / self.root.name / "cluster.xplane.pb"

    @property
    def training_result(self) -> Path:
        """What the chief says of the finished training; the summary is made from it."""
        return self.metrics / "training.json"

    @property
    def tensorboard(self) -> Path:
        return self.root / "tensorboard"

    @property
    def checkpoints(self) -> Path:
        return self.root / "checkpoints"

    @property
    def snapshots(self) -> Path:
        """What a chief that died is started again from; of no interest to an evaluator."""
        return self.root / "snapshots"

    @property
    def states(self) -> tuple[Path, Path]:
        """The folders with something to go on from."""
        return self.checkpoints, self.snapshots

    @property
    def best(self) -> Path:
        return self.root / "best"

    @property
    def best_model(self) -> Path:
        return self.best / "model.keras"

    @property
    def logs(self) -> Path:
        return self.root / "logs"

    @property
    def launcher_log(self) -> Path:
        return self.logs / "launcher.log"

    def log(self, task_type: str, index: int) -> Path:
        return self.logs / f"{task_type}-{index}.log"

    @property
    def errors(self) -> Path:
        return self.root / "errors"

    def error(self, task_type: str, index: int) -> Path:
        """What ended a task, written by the task itself."""
        return self.errors / f"{task_type}-{index}.json"

    def workspace(self, task_type: str, index: int) -> Path:
        """The working directory of a task: the graph names its data and identity relative to it."""
        return self.root / "tasks" / f"{task_type}-{index}"


def write_whole(path: Path, content: str | bytes) -> None:
    """Writes beside `path`, flushes to the disk and renames: readers see the old file or the new one, never a part."""
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with beside.open("wb") as file:
            file.write(content.encode() if isinstance(content, str) else content)
            file.flush()
            os.fsync(file.fileno())
        beside.replace(path)
    finally:
        beside.unlink(missing_ok=True)


def write_json(path: Path, value: Any) -> None:
    write_whole(path, json.dumps(value, indent=1) + "\n")


LIFE = "PS_CLUSTER_LIFE"  # environment variable: names the launcher's life, for rows; a task without one has none

_unsaid: deque[str] = deque(maxlen=100)


def say(line: str) -> None:
    """Prints a line for the task's log; while the disk that the log is on is full, it is kept for the next time."""
    _unsaid.append(line)
    say_the_rest()


def say_the_rest() -> None:
    """Prints what could not be printed before, if that is possible now."""
    with contextlib.suppress(OSError):
        while _unsaid:
            print(_unsaid[0], flush=True)
            _unsaid.popleft()
