"""The names of all files of a run, and printing to a task's log."""

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

from ps_cluster.errors import UserError, did_you_mean
from ps_cluster.files import locks, untrusted, writing
from ps_cluster.files.writing import open_append
from ps_cluster.runs import logs as log_formats

CODE = "code"  # folder in a run directory, or beside the runs of a comparison
TEMPORARY = "tmp"  # folder of temporary files, where processes are at work
IDENTITY = "identity"  # in a worker's workspace: int64 [2], its index and its pid
# In a worker's workspace, of modes with local steps: what it keeps (training/worker_state.py).
_OF_TRAINING = "local-"
OF_OPTIMIZER = tuple(f"{_OF_TRAINING}state-{number}" for number in range(2))


def residual_files(part: int) -> tuple[str, ...]:
    """Name the two files with what a worker's pushes left out. `part`: the shard if each shard gets its own pushes, else 0."""
    return tuple(f"{_OF_TRAINING}left-out-{part}-{number}" for number in range(2))


AGREEMENT = "agreement.json"  # in every task's workspace: what it works with (training/agreement.py)


class _Place:
    """A file or folder of a run, by its path below the run directory."""

    def __init__(self, path: str):
        self._path = path

    def __get__(self, run_dir: RunDir, owner: type[RunDir]) -> Path:
        return run_dir.root / self._path


@dataclass(frozen=True)
class RunDir:
    """The files of one run, under `root` (an absolute path)."""

    root: Path

    alive = _Place(".alive")  # The lock file that all tasks of the run share for as long as they live.
    leaders = _Place("leaders")  # The claims of the leaders, a file each (runs/leaders.py).
    config = _Place("config.yaml")
    code = _Place(CODE)  # The folder of what the Python API was given: functions, and arguments.
    cluster = _Place("cluster.json")
    dataset = _Place("dataset.json")  # The packed data set that the tasks of this machine map: name, kind, directory.
    # The folder that says how an example looks, for those who have the run and not its data set.
    examples = _Place("examples")
    summary = _Place("summary.json")
    # The lock for making the summary from the rows, which launcher and evaluator both do, in turn.
    summary_lock = _Place(".summary.lock")
    metrics = _Place("metrics")
    progress = _Place("metrics/progress.jsonl")  # The leader's rows while it trains, one JSON object per line.
    work = _Place("metrics/work.json")  # What each process does, as of the newest of these rows.
    evaluation = _Place("metrics/evaluation.jsonl")  # A row for each checkpoint scored, one JSON object per line.
    # The file of predictions for all test examples, by the last checkpoint that was scored.
    predictions = _Place("metrics/predictions.safetensors")
    samples = _Place("metrics/samples")  # The folder of sampled updates that wait to be computed again.
    recomputed = _Place("metrics/recomputed.jsonl")  # A row for each update that was computed again.
    updates = _Place("metrics/updates.csv")  # The ledger: a row for each update applied (CSV).
    # The times at which each parameter server applied each update (CSV); absent without parameter servers.
    applies = _Place("metrics/applies.csv")
    journals = _Place("metrics/journal")  # The folder of the shards' ledgers.
    # The device of each operation of a step (CSV); only of modes layers and width with `mode.log_placement`.
    placement = _Place("metrics/placement.csv")
    trace = _Place("metrics/trace.json")  # The timeline of all tasks, in Chrome's trace format.
    # The leader's result of the finished training; the summary is made from it.
    training_result = _Place("metrics/training.json")
    tensorboard = _Place("tensorboard")
    checkpoints = _Place("checkpoints")
    # The snapshots from which a cluster restarts after a death; the evaluator ignores them.
    snapshots = _Place("snapshots")
    best = _Place("best")
    best_model = _Place("best/model.keras")
    results = _Place("results")  # The folder that is drawn from the others when the run has ended.
    results_page = _Place("results/results.html")
    results_numbers = _Place("results/results.json")
    logs = _Place("logs")
    launcher_log = _Place("logs/launcher.log")
    errors = _Place("errors")
    temporary = _Place(TEMPORARY)  # The temporary files of all that a run starts; it goes when the run ends.
    tasks = _Place("tasks")

    @classmethod
    def create(cls, root: Path) -> RunDir:
        """Create a run directory in a folder that is missing, or contains nothing but the code of the run.

        Raises:
          UserError: the folder is not empty, a file is in the way, or it can't be written.
        """
        check_unused(root)
        run_dir = cls(Path(os.path.realpath(root)))
        run_dir.make_folders()
        return run_dir

    def make_folders(self) -> None:
        """Make the folders of a run that are missing.

        Raises:
          UserError: a file is in the way, a folder can't be written, or another user made it a link.
        """
        try:
            for folder in self._written:
                untrusted.check_way(folder, "folder of the run")
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
            raise UserError(f"run directory '{root}' is not {_lack_of(run_dir, root)}")
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
        """The folders that every run begins with."""
        return self.metrics, self.checkpoints, self.logs, self.errors

    @property
    def has_trained(self) -> bool:
        """True if there is a state to resume, a row of the ledger, or the result of a training."""
        kept = (path for folder in self.states if folder.is_dir() for path in folder.iterdir())
        results = (self.best_model, self.training_result)
        return (
            any(kept) or any(file.stat().st_size for file in self.journals.glob("*")) or any(map(Path.exists, results))
        )

    def set_aside(self) -> Path | None:
        """Move the states of leader and workers, and the journals, into a new folder, because training starts again.

        Return the folder; None if there was nothing to move. A worker on another machine keeps its files, which do not count
        for the new training (training/worker_state.py).
        """
        folders = (*self.states, self.journals)
        found = [path for folder in folders for path in folder.glob("[!.]*")]
        found += self.tasks.glob(f"*/{_OF_TRAINING}*")
        kept = [path for path in found if path.stat().st_size]
        if not kept:
            return None
        writing.check()
        number = next(number for number in itertools.count(1) if not (self.root / f"before-{number}").exists())
        aside = self.root / f"before-{number}"
        aside.mkdir()
        for path in kept:
            path.rename(aside / f"{path.parent.name}-{path.name}")
        return aside

    @property
    def _written(self) -> tuple[Path, ...]:
        """The folders that a run writes into."""
        written = (
            self.journals,
            self.results,
            self.examples,
            self.logs,
            self.errors,
            self.tasks,
            self.temporary,
        )
        return (self.root, self.leaders, *self.states, *self.scored, *written)

    @property
    def scored(self) -> tuple[Path, Path, Path]:
        """The folders that an evaluator writes into."""
        return self.metrics, self.tensorboard, self.best

    def scale_request(self, asked: str) -> Path:
        """Return the file of a request of `ps-cluster scale`, which the launcher removes. `asked`: the request's name."""
        return self.root / f"scale-{asked}.json"

    def scale_answer(self, asked: str) -> Path:
        """Return the file of the launcher's answer to the request `asked`, which the command removes."""
        return self.root / f"scaled-{asked}.json"

    def scale_requests(self) -> list[str]:
        """Return the names of the requests that the launcher has not read yet, in order."""
        return sorted(path.stem.removeprefix("scale-") for path in self.root.glob("scale-*.json"))

    def scale_answers(self) -> list[str]:
        """Return the names of the requests whose answers nobody has read yet."""
        return sorted(path.stem.removeprefix("scaled-") for path in self.root.glob("scaled-*.json"))

    def metrics_link(self, task: str) -> Path:
        """Return the file with the address at which a process serves its metrics, for as long as it does."""
        return self.metrics / f"{task}.url"

    def journal(self, index: int, term: int) -> Path:
        """Return the file of one shard's ledger while one leader led, appended to during training (runs/journal.py)."""
        return self.journals / f"shard-{index}-term-{term:06d}.bin"

    @property
    def states(self) -> tuple[Path, Path]:
        """The folders with states that training can resume from."""
        return self.checkpoints, self.snapshots

    def log(self, task_type: str, index: int) -> Path:
        return self.logs / f"{task_type}-{index}.log"

    def error(self, task_type: str, index: int) -> Path:
        """Return the file into which a task writes the error that ended it."""
        return self.errors / f"{task_type}-{index}.json"

    def config_of(self, task_type: str, index: int) -> Path:
        """Return the settings of a task that no launcher has started; each has its own, which may differ by mistake."""
        return self.workspace(task_type, index) / self.config.name

    def dataset_of(self, task_type: str, index: int) -> Path:
        """Return where the packed data set of such a task is noted; another machine has it elsewhere."""
        return self.workspace(task_type, index) / self.dataset.name

    def workspace(self, task_type: str, index: int) -> Path:
        """Return the working directory of a task. The graph has the paths of data and identity relative to it."""
        return self.tasks / f"{task_type}-{index}"

    def temporary_of(self, task_type: str, index: int) -> Path:
        """Return the folder for temporary files of a task that no launcher has started."""
        return self.workspace(task_type, index) / TEMPORARY

    def task_file(self, task_type: str, index: int) -> Path:
        """Return the file in which a task of `task` says who it is."""
        return self.workspace(task_type, index) / "task.json"


def _lack_of(run_dir: RunDir, root: Path) -> str:
    """Return what is wrong with a folder that is no run, after "is not "."""
    if not root.is_dir():
        beside = [path.name for path in root.parent.glob("*/") if (path / run_dir.config.name).is_file()]
        return f"there: {did_you_mean(root.name, beside)}'runs {root.parent}' lists what is"
    lacks = f"one: it holds no {run_dir.config.name}"
    inside = sorted(file.parent for depth in ("*", "*/*") for file in root.glob(f"{depth}/{run_dir.config.name}"))
    return f"{lacks}, but '{inside[0]}' does: name that, or another run in it" if inside else lacks


def check_unused(root: Path) -> None:
    """Raise UserError unless `root` is empty, or holds the code of a run that has not begun, or a run that never trained.

    A run that was killed before it had a configuration is recognised by the folders that every run begins with.
    """
    if locks.is_empty(root, besides=CODE):
        return
    run = RunDir(root)
    first = {locks.LOCK, CODE, *(path.name for path in (run.alive, *run.first_folders))}
    begun = run.config.is_file() or {path.name for path in root.iterdir()} <= first
    if begun and run.launcher_log.is_file() and not run.has_trained:
        untrusted.refuse_foreign(run.launcher_log)
        return
    go_on = f", or go on with --resume {shlex.quote(str(root))}" if run.config.is_file() else ""
    raise UserError(f"run directory '{root}' exists and is not empty: choose another{go_on}")


_unsaid: deque[str] = deque(maxlen=100)
_saying = threading.RLock()  # the threads of workers that are lost together speak at the same time


def say(line: log_formats.Line) -> None:
    """Print a line to the task's log. While the log's disk is full, keep the line for the next call."""
    _unsaid.append(log_formats.chosen().line(line))
    say_the_rest()


def say_the_rest() -> None:
    """Print the lines that could not be printed before, if that is possible now."""
    with _saying, contextlib.suppress(OSError):
        while _unsaid:
            print(_unsaid[0], flush=True)
            _unsaid.popleft()
