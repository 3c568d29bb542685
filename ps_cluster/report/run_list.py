"""List the runs in a folder with their states and scores. Imports no TensorFlow, and runs no code of a run."""

from __future__ import annotations

import contextlib
import shlex
import time
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TypeVar

from rich.console import Console
from rich.text import Text

from ps_cluster.config import user_code
from ps_cluster.config.sections import flat
from ps_cluster.errors import UserError
from ps_cluster.files import locks
from ps_cluster.files.json_files import Json, read_json
from ps_cluster.files.json_rows import last_row
from ps_cluster.files.yaml_files import read_yaml
from ps_cluster.installation import PROGRAM
from ps_cluster.notices import Notify
from ps_cluster.report.terminal import FOLD, LEFT, RIGHT, ColumnOptions, facts_table, plain_table
from ps_cluster.runs.dataset_rows import DatasetPointer
from ps_cluster.runs.result_rows import EvaluationRow, MetricValues, ProgressRow, Summary, metric_text
from ps_cluster.runs.run_dir import RunDir

RUNNING, UNKNOWN = "running", "unknown"
COLOURS = {
    "completed": "green",
    "stopped": "yellow",
    "diverged": "bold red",
    "nan_loss": "bold red",
    "failed": "bold red",
    RUNNING: "bold cyan",
    UNKNOWN: "dim",
}

Found = TypeVar("Found")


@dataclass(frozen=True)
class ListedRun:
    """A run in the list of runs. Unknown values are None.

    Attributes:
      state: "running", the outcome ("completed", "stopped", "diverged", "nan_loss" or "failed"), or "unknown" if there
        is no summary.
      began_at: the time at which the run was last started or resumed, in seconds since 1970.
      mode, dataset, model: the names of the mode, the data set and the network in the configuration.
      test_accuracy, test_error, test_loss, step: the last score and its step.
      updates, total: the number of updates applied so far, and of all updates of the run.
    """

    root: Path
    state: str
    began_at: float
    mode: str | None
    dataset: str | None
    model: str | None
    unit: str = "examples"
    test_accuracy: float | None = None
    test_error: float | None = None
    test_loss: float | None = None
    step: int | None = None
    updates: int | None = None
    total: int | None = None
    train_seconds: float | None = None
    examples_per_second: float | None = None
    staleness_mean: float | None = None
    staleness_p95: int | None = None

    @property
    def score(self) -> str:
        """The last score in words. An accuracy has no name here, because its percent sign shows what it is."""
        text = metric_text(self.test_accuracy, self.test_error)
        if text is None:
            return "–"
        return text.value if text.name == "accuracy" else str(text)


@dataclass(frozen=True)
class RunFiles:
    """The main files of a run. `settings`: the value of each setting, by its dotted key.

    `running`: whether a command uses the run directory at the moment, e.g. to train.
    """

    run_dir: RunDir
    settings: Json
    summary: Summary | None
    running: bool

    @property
    def ended(self) -> Summary | None:
        """The summary; None if `running`, because the file may then be the summary of an earlier command."""
        return None if self.running else self.summary


def read_files(run_dir: RunDir) -> RunFiles:
    """Return the settings and the summary of a run. Raises UserError or OSError if they can't be read."""
    settings, summary = flat(read_yaml(run_dir.config)), None
    with contextlib.suppress(FileNotFoundError):
        summary = read_json(run_dir.summary, Summary)
    return RunFiles(run_dir, settings, summary, locks.is_held(run_dir.root))


def list_run(files: RunFiles) -> ListedRun:
    """Return the entry of a run in the list. Raises OSError if the run was removed meanwhile."""
    run_dir, names = files.run_dir, (files.settings.get(key) for key in ("mode.name", "data.dataset", "model.name"))
    mode, dataset, model = (name if isinstance(name, str) else None for name in names)
    state = RUNNING if files.running else files.summary.outcome if files.summary else UNKNOWN
    one = ListedRun(run_dir.root, state, run_dir.config.stat().st_mtime, mode, dataset, model)
    return _with_summary(one, files.ended) if files.ended else _with_rows(one, run_dir)


def _with_summary(one: ListedRun, summary: Summary) -> ListedRun:
    """Return the entry with the values that a summary has."""
    updates, stale = summary.updates, summary.staleness
    one = replace(
        one,
        unit=summary.unit,
        train_seconds=summary.train_seconds,
        examples_per_second=summary.examples_per_second,
        updates=updates.applied,
        total=updates.scheduled,
        staleness_mean=stale.mean,
        staleness_p95=stale.p95,
    )
    return _with_score(one, summary.evaluation)


def _with_rows(one: ListedRun, run_dir: RunDir) -> ListedRun:
    """Return the entry with the values that the newest rows of a run have."""
    with contextlib.suppress(FileNotFoundError, UserError):
        one = replace(one, unit=read_json(run_dir.dataset, DatasetPointer).unit)
    if row := last_row(run_dir.progress, ProgressRow):
        one = replace(
            one,
            updates=row.applied,
            total=row.total,
            train_seconds=row.train_seconds,
            examples_per_second=row.examples_per_second,
        )
        if row.staleness:
            one = replace(one, staleness_mean=row.staleness.mean)
    score = last_row(run_dir.evaluation, EvaluationRow)
    return _with_score(one, score) if score else one


def _with_score(one: ListedRun, score: MetricValues) -> ListedRun:
    """Return a copy of an entry whose score fields have the values of `score`."""
    return replace(
        one,
        test_accuracy=score.test_accuracy,
        test_error=score.test_error,
        test_loss=score.test_loss,
        step=score.step,
    )


def run_dirs(folder: Path) -> list[RunDir]:
    """Return the run directories in a folder, in the order of their names.

    Raises:
      UserError: the folder can't be read, or is itself a run directory.
    """
    if RunDir(folder).config.is_file():
        raise UserError(
            f"FOLDER: got '{folder}': it is itself a run directory; to show this run: {PROGRAM} runs show "
            f"{shlex.quote(str(folder))}"
        )
    try:
        return [RunDir(path) for path in sorted(folder.iterdir()) if RunDir(path).config.is_file()]
    except OSError as error:
        raise UserError(f"FOLDER: got '{folder}': it can't be read: {error.strerror}") from error


def read_each(found: Iterable[RunDir], read: Callable[[RunDir], Found], notify: Notify) -> list[Found]:
    """Call `read` with each run directory, and return the results. Damaged runs are skipped with a notice."""
    results = []
    for run_dir in found:
        try:
            results.append(read(run_dir))
        except UserError as error:
            notify(f"passed over: {error}")
        except OSError as error:  # removed meanwhile, or no permission
            notify(f"passed over: '{run_dir.root}' can't be read: {error.strerror}")
    return results


def listed_runs(folder: Path, notify: Notify) -> list[ListedRun]:
    """Return the runs in a folder, newest first. Damaged runs are skipped with a notice, other folders silently.

    Raises:
      UserError: the folder can't be read, or is itself a run directory.
    """
    found = read_each(run_dirs(folder), lambda run_dir: list_run(read_files(run_dir)), notify)
    return sorted(found, key=lambda run: -run.began_at)


def print_runs(runs: list[ListedRun], console: Console) -> None:
    """Print a table with a row for each run."""
    now = time.time()
    unit = "images" if all(run.unit == "images" for run in runs) else "examples"
    name: ColumnOptions = {**FOLD, "ratio": 1}
    last = {"test": RIGHT, f"{unit}/s": RIGHT}
    table = plain_table(run={**FOLD, "ratio": 2}, state=LEFT, age=RIGHT, mode=name, data=name, network=name, **last)
    for run in runs:
        chosen = (short_name(name) for name in (run.mode, run.dataset, run.model))
        speed = "–" if run.examples_per_second is None else f"{run.examples_per_second:,.0f}"
        state = Text(state_text(run), COLOURS[run.state])
        table.add_row(run.root.name, state, age(now - run.began_at), *chosen, run.score, speed)
    console.print(table)


def print_unfinished(run: ListedRun, run_dir: RunDir, console: Console) -> None:
    """Print what is known about a run that has no summary, or that is running."""
    facts: tuple[tuple[str, str | Text], ...] = (
        ("run", Text(state_text(run), COLOURS[run.state])),
        ("began", f"{age(time.time() - run.began_at)} ago"),
        ("mode", run.mode or "–"),
        ("data", run.dataset or "–"),
        ("network", run.model or "–"),
        ("test", f"{run.score} at step {run.step:,}" if run.step is not None else "not scored yet"),
        ("logs", str(run_dir.logs)),
    )
    console.print(facts_table(facts))
    if run.state == UNKNOWN:
        why = "the run was killed, or its tasks were started by hand"
        console.print(f"there is no {run_dir.summary.name}: {why}", highlight=False)


def as_json(runs: list[ListedRun]) -> list[Json]:
    """Return the runs as JSON for other programs."""
    return [asdict(run) | {"root": str(run.root)} for run in runs]


def age(seconds: float) -> str:
    """Return a duration in its largest unit, e.g. "5 min"."""
    for unit, length, most in (("s", 1, 90), ("min", 60, 90), ("h", 3600, 48)):
        if seconds < most * length:
            return f"{max(0, seconds) / length:.0f} {unit}"
    return f"{seconds / 86_400:.0f} d"


def state_text(run: ListedRun) -> str:
    """Return the state of a run. The state of a running run includes its progress in percent."""
    if run.state == RUNNING and run.updates is not None and run.total:
        return f"{run.state} {run.updates / run.total:.0%}"
    return run.state


def short_name(name: str | None) -> str:
    """Return the name of a mode, network or data set for display; "–" for None.

    A name in a user's code, path/to/file.py:name, is shown without the folders.
    """
    return "–" if name is None else Path(user_code.short_name(name)).name
