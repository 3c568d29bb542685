"""Train from a script or a notebook: the command `run` as a function."""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from enum import Enum
from functools import partial
from operator import itemgetter
from pathlib import Path
from typing import Any, Protocol

from ps_cluster.api import keywords
from ps_cluster.api.data import with_data
from ps_cluster.api.networks import name_of, write_network
from ps_cluster.api.program import COMMAND, Program, refuse_within_a_run
from ps_cluster.api.result import Result
from ps_cluster.config import build_config
from ps_cluster.config.networks import NETWORKS
from ps_cluster.config.sections import flat, nested
from ps_cluster.config.user_layers import trust_names
from ps_cluster.errors import UserError
from ps_cluster.files import untrusted
from ps_cluster.files.json_rows import RowTail
from ps_cluster.files.writing import write_whole
from ps_cluster.files.yaml_files import dump_yaml, read_yaml
from ps_cluster.launch.local_run import new_root
from ps_cluster.notices import Notify
from ps_cluster.report.terminal import print_line
from ps_cluster.runs.result_rows import EvaluationRow, ProgressRow, with_work
from ps_cluster.runs.run_dir import RunDir, check_unused

SETTINGS = "settings.yaml"  # the file in the folder of the code with the settings that the caller has chosen


def train(
    model: Any = None,
    data: Any = None,
    *,
    run_dir: str | os.PathLike[str] | None = None,
    resume: str | os.PathLike[str] | None = None,
    settings: Mapping[str, Any] | None = None,
    on_progress: OnProgress | None = None,
    on_evaluation: OnEvaluation | None = None,
    callbacks: Any = None,
    command: Sequence[str] = COMMAND,
    **options: Any,
) -> Result:
    """Train on a cluster of processes on this machine, as `ps-cluster run` does, and return when all processes have ended.

    Args:
      model: the name of a network, "file.py:name", a .keras file or a Keras model to continue from, or a function
        build(examples, settings) or build() that returns a Keras model; None: the default network.
      data: the name of a data set, the path of files of your own, "file.py:name", {x_train, y_train, x_test, y_test},
        (x_train, y_train), ((x_train, y_train), (x_test, y_test)), Contents, or a function that returns one of the last
        four; None: auto.
      run_dir: a new folder for all files of the run; None: a new one in runs/.
      resume: the folder of an earlier run to continue, e.g. `result.run_dir`. `epochs` or `steps` make it longer, `ps`
        changes the number of parameter servers; everything else stays. If the network is code, give it again as `model`.
      settings: any settings of docs/configuration.md, e.g. {"optimizer.rule": "adam"}.
      on_progress: called with each row of progress during the training (`row.applied`, `row.loss`, …).
      on_evaluation: called with each score (`row.step`, `row.test_accuracy`, …). A function that returns
        `ps_cluster.STOP` ends the training early.
      callbacks: Keras callbacks, which are called in this process at the end of each scored epoch (docs/python-api.md).
      command: the program that is run.
      options: the options of `ps-cluster run`: workers, ps, mode, epochs, steps, batch_size, seed, …

    Raises:
      UserError: bad input, in one line.
      TrainingFailed: the training failed.
      KeyboardInterrupt, and whatever a callback raises: raised after the run was drained. Its directory is complete.
    """
    refuse_within_a_run("train")
    if resume is not None:
        if data is not None or run_dir is not None or settings is not None or callbacks is not None:
            raise UserError(
                "resume: a run continues with its own data and settings, in its own folder, and without Keras callbacks: leave "
                "these out"
            )
        return _resumed(Path(resume), model, options, on_progress, on_evaluation, command)
    values = keywords.values_of(options, settings)
    listeners: list[Callable[[RunDir], Listening]] = [
        partial(Listener, on_progress=on_progress, on_evaluation=on_evaluation)
    ]
    if callbacks is not None:
        from ps_cluster.api.keras_callbacks import check_callbacks
        from ps_cluster.api.run_callbacks import RunCallbacks, with_epochs_scored

        values = with_epochs_scored(values)
        listeners.append(partial(RunCallbacks, callbacks=check_callbacks(callbacks), model=model))
    return train_new(model, data, values, run_dir=run_dir, listeners=listeners, command=command)


keywords.show_keywords(train)


class Listening(Protocol):
    """Follows a run from the caller's process."""

    def look(self) -> bool:
        """Read what the run has written since the last call. Return whether to end the run early."""

    def finish(self) -> None:
        """Do what remains to do after the run has ended without an error."""


def train_new(
    model: Any,
    data: Any,
    values: Mapping[str, Any],
    *,
    run_dir: str | os.PathLike[str] | None,
    listeners: Sequence[Callable[[RunDir], Listening]],
    command: Sequence[str],
    say: Notify = print_line,
) -> Result:
    """Write the caller's network, data and settings to a new run directory, and train there.

    Args:
      model, data, run_dir, command: as for `train`.
      values: dotted key → value of the settings.
      listeners: each is called with the run directory before the training begins.
      say: called with each line of the launcher.
    """
    named = {"model.name": os.fspath(model)} if isinstance(model, str | os.PathLike) else {}
    with untrusted.writing_alone():
        values = with_data({**values, **named}, data, say)
        config = build_config(None, values)
        name = config.model.name if named or model is None else name_of(model)
        root = keywords.new_folder(run_dir, "run_dir") if run_dir is not None else new_root(config.mode.name, name)
        untrusted.check_folder(root, "run directory", print_line)
        check_unused(root)
        run = RunDir(Path(os.path.realpath(root)))
        if model is not None:
            values["model.name"] = write_network(model, run.code)
        # Relative paths of code start at the current folder, and this code may be run from now on.
        write_whole(run.code / SETTINGS, dump_yaml(trust_names(nested(values), Path.cwd())))
    argv = (*command, "run", "--config", str(run.code / SETTINGS), "--run-dir", str(run.root))
    try:
        _attend(argv, run, [listener(run) for listener in listeners], say)
    except UserError:
        if not run.config.is_file():  # the run has not begun: remove what was prepared for it
            shutil.rmtree(run.code, ignore_errors=True)
            with contextlib.suppress(OSError):  # the folder has other files in it
                run.root.rmdir()
        raise
    return Result(run.root)


def _attend(argv: Sequence[str], run: RunDir, listeners: Sequence[Listening], say: Notify) -> None:
    """Start a run and let the listeners follow it until it has ended."""
    with Program(argv, say) as program:
        program.attend(lambda: any(one.look() for one in listeners))
        program.check(run.launcher_log)
    for one in listeners:
        one.finish()


_OF_RESUME = ("epochs", "steps", "ps")  # keywords that may change when a run is resumed


def _resumed(
    folder: Path,
    model: Any,
    options: Mapping[str, Any],
    on_progress: OnProgress | None,
    on_evaluation: OnEvaluation | None,
    command: Sequence[str],
) -> Result:
    """Continue a run as `train` does. The arguments are those of `train`."""
    keywords.check_known(options, keywords.KEYWORDS)
    if others := [name for name in options if name not in _OF_RESUME]:
        raise UserError(f"{others[0]}: a run is resumed with its own settings; only {', '.join(_OF_RESUME)} may change")
    run = RunDir.open(folder)
    arguments = [f"--{name}={keywords.plain(value)}" for name, value in options.items() if value is not None]
    if file := _code_to_resume(run, model):
        arguments += ("--code", str(file))
    listener = Listener(run, on_progress=on_progress, on_evaluation=on_evaluation)
    listener.skip()
    _attend((*command, "run", "--resume", str(run.root), *arguments), run, [listener], print_line)
    return Result(run.root)


def _code_to_resume(run: RunDir, model: Any) -> Path | None:
    """Return the file of the network that the caller allows to be run; None if the run needs no code for it."""
    begun = flat(read_yaml(run.config)).get("model.name")
    code = NETWORKS.code_of(begun) if isinstance(begun, str) else None
    if code is None and model is None:
        return None
    if model is None:
        raise UserError(f"resume: the network of '{run.root}' is code, '{begun}': give it again, as model=…")
    with untrusted.writing_alone(), tempfile.TemporaryDirectory(prefix="ps-cluster-resume-") as temporary:
        name = write_network(model, Path(temporary))
        written = Path(name.rpartition(":")[0] or name)
        name = NETWORKS.trust_name(name, Path.cwd()).replace(f"{temporary}{os.sep}", f"{run.code}{os.sep}")
        if name != begun:
            raise UserError(
                f"model: the run in '{run.root}' was begun with another network, '{begun}': give that one, or start a new run"
            )
        if code is not None and written.is_relative_to(temporary):
            shutil.copyfile(written, code)  # so the caller's code is run, whoever has written into the folder
    return code


# Call the caller's functions with the rows that a run has written since the last look.


class Wish(Enum):
    """The answers that a callback may return."""

    STOP = "stop"

    def __repr__(self) -> str:
        return f"ps_cluster.{self.name}"


STOP = Wish.STOP
"""Returned by a callback: end the training early. The steps under way are finished, the last checkpoint is scored."""

OnProgress = Callable[[ProgressRow], object]
OnEvaluation = Callable[[EvaluationRow], object]


class Listener:
    """Hands the rows of a run to the caller's functions, in the order in which they were written."""

    def __init__(self, run_dir: RunDir, *, on_progress: OnProgress | None, on_evaluation: OnEvaluation | None):
        self._work = run_dir.work
        self._progress = (RowTail(run_dir.progress, ProgressRow), on_progress)
        self._evaluation = (RowTail(run_dir.evaluation, EvaluationRow), on_evaluation)
        self._later: list[tuple[float, Callable[[], object]]] = []

    def skip(self) -> None:
        """Skip the rows that exist already, which are from an earlier session of the run."""
        for rows, _ in (self._progress, self._evaluation):
            rows.new_rows()

    def look(self) -> bool:
        """Call the functions with the new rows until one returns STOP. Return whether one did."""
        return any(call() is STOP for call in self._calls())

    def finish(self) -> None:
        """Do nothing, because all rows have been handed over."""

    def _calls(self) -> list[Callable[[], object]]:
        # Rows that are written while the two files are read wait for the next look, because an earlier row may be missing.
        until, found = time.time(), self._later
        rows, on_progress = self._progress
        if on_progress:
            # Rows before the first update say nothing, and a run that is stopped then has trained nothing. Rows of a save
            # repeat the row before.
            found += [
                (row.time, partial(on_progress, row))
                for row in with_work(self._work, rows.new_rows())
                if row.applied and row.phase != "saving"
            ]
        scores, on_evaluation = self._evaluation
        if on_evaluation:
            found += [(score.time, partial(on_evaluation, score)) for score in scores.new_rows()]
        in_order = sorted(found, key=itemgetter(0))
        self._later = [one for one in in_order if one[0] >= until]
        return [call for written, call in in_order if written < until]
