"""Define the names of all files of a run, and print lines to a task's log."""

from __future__ import annotations

import contextlib
import itertools
import os
import shlex
import shutil
import threading
from collections import deque
from dataclasses import dataclass
from pathlib import Path

from ps_cluster.config.tasks import Task
from ps_cluster.errors import UserError, did_you_mean
from ps_cluster.files import locks, untrusted, writing
from ps_cluster.files.writing import open_append
from ps_cluster.installation import PROGRAM
from ps_cluster.notices import Line
from ps_cluster.runs import logs as log_formats

RUN_DIRECTORY = "run directory"  # in messages
CODE = "code"  # folder in a run directory, or next to the runs of a comparison
TEMPORARY = "tmp"  # folder for the temporary files of running processes
IDENTITY = "identity"  # file in a worker's workspace: int64 [2], its index and its pid
# Files in a worker's workspace with the state that the worker keeps (training/worker_state.py).
_WORKER_STATE = "local-"
OF_OPTIMIZER = tuple(f"{_WORKER_STATE}state-{number}" for number in range(2))


def residual_files(part: int) -> tuple[str, ...]:
    """Return the names of the two files in which a worker keeps what it has left out of its compressed pushes.

    `part`: the index of the shard that the pushes go to; 0 if they go to all shards.
    """
    return tuple(f"{_WORKER_STATE}left-out-{part}-{number}" for number in range(2))


# File in every task's workspace: the settings, data and versions that the task uses (training/agreement.py).
AGREEMENT = "agreement.json"
TASK_FILE = "task.json"  # file in the workspace of a task of `ps-cluster task`


class _RunPath:
    """A descriptor that returns the path of a file or folder of a run. It stores the path relative to `RunDir.root`."""

    def __init__(self, path: str):
        self._path = path

    def __get__(self, run_dir: RunDir, owner: type[RunDir]) -> Path:
        return run_dir.root / self._path


@dataclass(frozen=True)
class RunDir:
    """The files of one run, under `root` (an absolute path)."""

    root: Path

    alive = _RunPath(".alive")  # The lock file that all living tasks of the run share.
    leaders = _RunPath("leaders")  # The folder with a file for each leader's claim (runs/leaders.py).
    config = _RunPath("config.yaml")
    code = _RunPath(CODE)  # The folder with the functions and arguments that were passed to the Python API.
    cluster = _RunPath("cluster.json")
    # The packed data set that the tasks of this machine read: name, kind, directory.
    dataset = _RunPath("dataset.json")
    # The folder that describes the inputs and targets of an example, for users who have the run but not its data set.
    examples = _RunPath("examples")
    summary = _RunPath("summary.json")
    # The lock for writing the summary: launcher and evaluator write it one after the other.
    summary_lock = _RunPath(".summary.lock")
    metrics = _RunPath("metrics")
    progress = _RunPath("metrics/progress.jsonl")  # The leader's rows while it trains, one JSON object per line.
    work = _RunPath("metrics/work.json")  # The work of each process at the time of the newest progress row.
    evaluation = _RunPath("metrics/evaluation.jsonl")  # A row for each scored checkpoint, one JSON object per line.
    # A row for each epoch for which Keras callbacks were called. The file exists while they follow the run.
    callbacks = _RunPath("metrics/callbacks.jsonl")
    # The predictions of the last scored checkpoint for all test examples.
    predictions = _RunPath("metrics/predictions.safetensors")
    samples = _RunPath("metrics/samples")  # The folder of sampled updates that wait to be computed again.
    recomputed = _RunPath("metrics/recomputed.jsonl")  # A row for each update that was computed again.
    updates = _RunPath("metrics/updates.csv")  # The ledger: a row for each applied update (CSV).
    # The times at which each parameter server applied each update (CSV); absent without parameter servers.
    applies = _RunPath("metrics/applies.csv")
    journals = _RunPath("metrics/journal")  # The folder of the shards' ledgers.
    # The device of each operation of a step (CSV); only in modes layers and width with `mode.log_placement`.
    placement = _RunPath("metrics/placement.csv")
    trace = _RunPath("metrics/trace.json")  # The timeline of all tasks, in Chrome's trace format.
    # The leader's result of the finished training, from which the summary is made.
    training_result = _RunPath("metrics/training.json")
    tensorboard = _RunPath("tensorboard")
    checkpoints = _RunPath("checkpoints")
    # The snapshots from which a cluster restarts after a process has died. The evaluator ignores them.
    snapshots = _RunPath("snapshots")
    best = _RunPath("best")
    best_model = _RunPath("best/model.keras")
    results = _RunPath("results")  # The folder with the report that is drawn when the run has ended.
    results_page = _RunPath("results/results.html")
    results_numbers = _RunPath("results/results.json")
    logs = _RunPath("logs")
    launcher_log = _RunPath("logs/launcher.log")
    errors = _RunPath("errors")
    temporary = _RunPath(TEMPORARY)  # The temporary files of all processes of a run; removed when the run ends.
    tasks = _RunPath("tasks")

    @classmethod
    def create(cls, root: Path) -> RunDir:
        """Create a run directory in an unused folder. Raises UserError if the folder is in use, see `check_unused`."""
        check_unused(root)
        run_dir = cls(Path(os.path.realpath(root)))
        run_dir.make_folders()
        return run_dir

    def make_folders(self) -> None:
        """Create the missing folders of a run.

        Raises UserError if a file is in the way, or a folder can't be written or was replaced by another user's symlink.
        """
        try:
            for folder in self._written:
                untrusted.refuse_foreign_symlinks(folder, "folder of the run")
            for folder in (self.root, *self.first_folders):
                folder.mkdir(mode=0o755, parents=True, exist_ok=True)
            with open_append(self.launcher_log):
                pass
        except (NotADirectoryError, FileExistsError) as error:
            raise UserError(f"run directory '{self.root}' can't be made: a file is in the way") from error
        except OSError as error:
            raise UserError(f"run directory '{self.root}' can't be written: {error.strerror}") from error

    @classmethod
    def open(cls, root: Path) -> RunDir:
        """Return the directory of an earlier run. Raises UserError if `root` is not a run directory."""
        run_dir = cls(Path(os.path.realpath(root)))
        if not run_dir.config.is_file():
            raise UserError(f"run directory '{root}' is not {_why_no_run(run_dir, root)}")
        return run_dir

    def clear(self) -> None:
        """Remove everything except the lock and the code that the Python API has put there."""
        for path in self.root.iterdir() if self.root.is_dir() else ():
            if path.is_dir() and not path.is_symlink():
                if path.name != CODE:
                    shutil.rmtree(path)
            elif path.name != locks.LOCK:
                path.unlink()

    @property
    def first_folders(self) -> tuple[Path, ...]:
        """The folders that every run creates first."""
        return self.metrics, self.checkpoints, self.logs, self.errors

    @property
    def has_trained(self) -> bool:
        """Whether the directory has a state to resume, a row of the ledger, or the result of a training."""
        kept = (path for folder in self.states if folder.is_dir() for path in folder.iterdir())
        results = (self.best_model, self.training_result)
        return (
            any(kept) or any(file.stat().st_size for file in self.journals.glob("*")) or any(map(Path.exists, results))
        )

    def set_aside(self) -> Path | None:
        """Move the states of leader and workers, and the journals, into a new folder, because training starts from scratch.

        Return the folder; None if there was nothing to move. A worker on another machine keeps its files, but the new
        training ignores them.
        """
        folders = (*self.states, self.journals)
        found = [path for folder in folders for path in folder.glob("[!.]*")]
        found += self.tasks.glob(f"*/{_WORKER_STATE}*")
        kept = [path for path in found if path.stat().st_size]
        if not kept:
            return None
        writing.check_fence()
        number = next(number for number in itertools.count(1) if not (self.root / f"before-{number}").exists())
        aside = self.root / f"before-{number}"
        aside.mkdir()
        for path in kept:
            path.rename(aside / f"{path.parent.name}-{path.name}")
        return aside

    @property
    def _written(self) -> tuple[Path, ...]:
        """The folders that a run writes into."""
        written = self.journals, self.results, self.examples, self.logs, self.errors, self.tasks, self.temporary
        return (self.root, self.leaders, *self.states, *self.evaluator_folders, *written)

    @property
    def evaluator_folders(self) -> tuple[Path, Path, Path]:
        """The folders that an evaluator writes into."""
        return self.metrics, self.tensorboard, self.best

    def scale_request(self, asked: str) -> Path:
        """Return the path of the request named `asked` from `ps-cluster scale`. The launcher removes the file."""
        return self.root / f"scale-{asked}.json"

    def scale_answer(self, asked: str) -> Path:
        """Return the path of the launcher's answer to the request named `asked`. The command removes the file."""
        return self.root / f"scaled-{asked}.json"

    def scale_requests(self) -> list[str]:
        """Return the names of the requests that the launcher has not read yet, in order."""
        return sorted(path.stem.removeprefix("scale-") for path in self.root.glob("scale-*.json"))

    def scale_answers(self) -> list[str]:
        """Return the names of the requests whose answers no command has read yet."""
        return sorted(path.stem.removeprefix("scaled-") for path in self.root.glob("scaled-*.json"))

    def metrics_link(self, task: str) -> Path:
        """Return the file with the address at which a process serves its metrics. It exists while the process serves them."""
        return self.metrics / f"{task}.url"

    def journal(self, index: int, term: int) -> Path:
        """Return the file to which the leader with number `term` appends the ledger rows of shard `index`."""
        return self.journals / f"shard-{index}-term-{term:06d}.bin"

    @property
    def states(self) -> tuple[Path, Path]:
        """The folders with states from which training can resume."""
        return self.checkpoints, self.snapshots

    def log(self, task: Task) -> Path:
        return self.logs / f"{task}.log"

    def error(self, task: Task) -> Path:
        """Return the file into which a task writes the error that ended it."""
        return self.errors / f"{task}.json"

    def workspace(self, task: Task) -> Path:
        """Return the working directory of a task. The paths of files in its graphs are relative to this directory."""
        return self.tasks / f"{task}"

    def of_task(self, task: Task) -> RunDir:
        """Return the files of a task that no launcher has started: its settings, data set and temporary files.

        The files have the same names as in a run. Each such task has separate files, because settings of tasks may
        differ by mistake.
        """
        return RunDir(self.workspace(task))

    def task_file(self, task: Task) -> Path:
        """Return the file in which a task of `ps-cluster task` describes itself (`TaskFile`)."""
        return self.workspace(task) / TASK_FILE


def _why_no_run(run_dir: RunDir, root: Path) -> str:
    """Return why a folder is no run directory. The text continues the words "run directory '…' is not "."""
    if not root.is_dir():
        siblings = [path.name for path in root.parent.glob("*/") if (path / run_dir.config.name).is_file()]
        return f"there: {did_you_mean(root.name, siblings)}'{PROGRAM} runs {root.parent}' lists the existing runs"
    lacks = f"a run: it holds no {run_dir.config.name}"
    inside = sorted(file.parent for depth in ("*", "*/*") for file in root.glob(f"{depth}/{run_dir.config.name}"))
    return f"{lacks}, but '{inside[0]}' is a run: give the path of that run, or of another one" if inside else lacks


def check_unused(root: Path) -> None:
    """Raise UserError unless `root` is empty, or contains only the code of a new run, or a run that never trained.

    A run that was killed before it wrote its configuration is recognised by the folders that every run creates first.
    """
    if locks.is_empty(root, besides=CODE):
        return
    run = RunDir(root)
    first = {locks.LOCK, CODE, *(path.name for path in (run.alive, *run.first_folders))}
    begun = run.config.is_file() or {path.name for path in root.iterdir()} <= first
    if begun and run.launcher_log.is_file() and not run.has_trained:
        untrusted.refuse_foreign(run.launcher_log)
        return
    or_resume = f", or continue its run with --resume {shlex.quote(str(root))}" if run.config.is_file() else ""
    raise UserError(f"run directory '{root}' exists and is not empty: choose another folder{or_resume}")


_unprinted: deque[str] = deque(maxlen=100)
# Several threads may print at the same time, e.g. when several workers are lost together.
_print_lock = threading.RLock()


def log_line(line: Line) -> None:
    """Print a line to the task's log. While the log's disk is full, keep the line for the next call."""
    _unprinted.append(log_formats.chosen().line(line))
    log_pending_lines()


def log_pending_lines() -> None:
    """Print the lines that could not be printed before, if that is possible now."""
    with _print_lock, contextlib.suppress(OSError):
        while _unprinted:
            print(_unprinted[0], flush=True)
            _unprinted.popleft()
