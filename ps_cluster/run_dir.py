"""The one place that names every file of a run, and what its rows are written and read with."""

from __future__ import annotations

import contextlib
from collections import deque
from dataclasses import dataclass
from pathlib import Path

from ps_cluster.errors import UserError
from ps_cluster.files import locks, ownership
from ps_cluster.files.plain_text import printable
from ps_cluster.files.writing import open_append

IDENTITY = "identity"  # in a worker's workspace: int64 [2], its index and its pid


@dataclass(frozen=True)
class RunDir:
    """The files of one run, under `root` (an absolute path)."""

    root: Path

    @classmethod
    def create(cls, root: Path) -> RunDir:
        """A new run directory, in a folder that is not there or empty.

        Raises:
          UserError: there is something in the way, or it can't be written.
        """
        run_dir = cls(root.resolve())
        if not locks.is_empty(run_dir.root):
            raise UserError(
                f"run directory '{root}' exists and is not empty: choose another, or go on with --resume {root}"
            )
        run_dir.make_folders()
        return run_dir

    def make_folders(self) -> None:
        """Make what is missing of the folders that every run has.

        Raises:
          UserError: there is something in the way, it can't be written, or another user made a link of one.
        """
        try:
            for folder in self._written:
                ownership.check_way(folder, "folder of the run")
            for folder in (self.root, self.metrics, self.checkpoints, self.logs, self.errors):
                folder.mkdir(mode=0o755, parents=True, exist_ok=True)
            with open_append(self.launcher_log):
                pass
        except (NotADirectoryError, FileExistsError) as error:
            raise UserError(f"run directory '{self.root}' can't be made: a file is in the way") from error
        except OSError as error:
            raise UserError(f"run directory '{self.root}' can't be written: {error.strerror}") from error

    @classmethod
    def open(cls, root: Path) -> RunDir:
        """The directory of an earlier run. Raises UserError where it is not one."""
        run_dir = cls(root.resolve())
        if not run_dir.config.is_file():
            raise UserError(f"run directory '{root}' is not one: it holds no {run_dir.config.name}")
        return run_dir

    @property
    def _written(self) -> tuple[Path, ...]:
        """The folders that a run writes into."""
        return (self.root, *self.states, *self.scored, self.journal(0).parent, self.logs, self.errors, self.tasks)

    @property
    def scored(self) -> tuple[Path, Path, Path]:
        """The folders that an evaluator writes into."""
        return self.metrics, self.tensorboard, self.best

    @property
    def alive(self) -> Path:
        """Shared by all tasks of the run for as long as they live."""
        return self.root / ".alive"

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
    def summary_lock(self) -> Path:
        """Held while the summary is made of the rows there are: launcher and evaluator both do, in turn."""
        return self.root / ".summary.lock"

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

    @property
    def tasks(self) -> Path:
        return self.root / "tasks"

    def workspace(self, task_type: str, index: int) -> Path:
        """The working directory of a task: the graph names its data and identity relative to it."""
        return self.tasks / f"{task_type}-{index}"


LIFE = "PS_CLUSTER_LIFE"  # environment variable: names the launcher's life, for rows; a task without one has none

_unsaid: deque[str] = deque(maxlen=100)


def say(line: str) -> None:
    """Prints a line for the task's log; while the disk that the log is on is full, it is kept for the next time."""
    _unsaid.append(printable(line))
    say_the_rest()


def say_the_rest() -> None:
    """Prints what could not be printed before, if that is possible now."""
    with contextlib.suppress(OSError):
        while _unsaid:
            print(_unsaid[0], flush=True)
            _unsaid.popleft()
