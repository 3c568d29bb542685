"""Train from a script or a notebook: the command `run` as a function."""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Unpack

from ps_cluster.api import keywords
from ps_cluster.api.data import with_data
from ps_cluster.api.listener import Listener, OnEvaluation, OnProgress, RunFollower
from ps_cluster.api.networks import name_of, write_network
from ps_cluster.api.program import COMMAND, refuse_within_a_run, run_program
from ps_cluster.api.result import Result
from ps_cluster.cli.options import CHANGEABLE
from ps_cluster.config import build_config
from ps_cluster.config.lazy import keras
from ps_cluster.config.networks import NETWORKS
from ps_cluster.config.sections import flat, nested
from ps_cluster.config.user_settings import trust_names
from ps_cluster.errors import UserError
from ps_cluster.files import untrusted
from ps_cluster.files.writing import write_whole
from ps_cluster.files.yaml_files import dump_yaml, read_yaml
from ps_cluster.launch.local_run import new_root
from ps_cluster.notices import Notify
from ps_cluster.report.terminal import print_line
from ps_cluster.runs.run_dir import RunDir, check_unused

SETTINGS = "settings.yaml"  # the file, in the folder of the code, that has the settings chosen by the caller


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
    **options: Unpack[keywords.RunOptions],
) -> Result:
    """Train on a cluster of processes on this machine, as `ps-cluster run` does, and return when all processes have ended.

    Args:
      model: the name of a network, "file.py:name", a .keras file or a Keras model to continue from, or a function
        build(examples, settings) or build() that returns a Keras model; None: the default network.
      data: the name of a data set, the path of files of your own, "file.py:name", {x_train, y_train, x_test, y_test},
        (x_train, y_train), ((x_train, y_train), (x_test, y_test)), a `ps_cluster.config.datasets.Contents`, or a
        function that returns data in one of the last four formats; None: the data set that the settings choose, by
        default CIFAR-10 if it is available, else a generated data set.
      run_dir: a new folder for all files of the run; None: a new one in runs/.
      resume: the folder of an earlier run to continue, e.g. `result.run_dir`. `epochs` or `steps` make it longer,
        `max_seconds` changes its time limit, `ps` changes the number of parameter servers, and `isolation` changes the
        setting `cluster.isolation`. All other settings stay. If the network is code, give it again as `model`.
      settings: any settings of docs/configuration.md, e.g. {"optimizer.rule": "adam"}.
      on_progress: called with each progress row during the training (`row.applied`, `row.loss`, …).
      on_evaluation: called with each score (`row.step`, `row.test_accuracy`, …). If this function or `on_progress`
        returns `ps_cluster.STOP`, the training ends early.
      callbacks: Keras callbacks, which are called in this process at the end of each scored epoch (docs/python-api.md).
      command: the words that start the program `ps-cluster`, before its arguments.
      options: the options of `ps-cluster run`: workers, ps, mode, epochs, steps, batch_size, seed, …

    Raises:
      UserError: the input is bad. The message is one line that says what to do.
      TrainingFailed: the training failed.
      KeyboardInterrupt, and whatever a callback raises: raised after a clean stop. The run directory is complete.
    """
    refuse_within_a_run("train")
    if resume is not None:
        others = {"data": data, "run_dir": run_dir, "settings": settings, "callbacks": callbacks}
        if given := [name for name, value in others.items() if value is not None]:
            raise UserError(
                f"{given[0]}: a run is resumed with its own data and settings, in its own folder, and without Keras callbacks: "
                "leave this argument out"
            )
        return _resumed(Path(resume), model, options, on_progress, on_evaluation, command)
    values = keywords.values_of(options, settings)
    listeners: list[Callable[[RunDir], RunFollower]] = [
        partial(Listener, on_progress=on_progress, on_evaluation=on_evaluation)
    ]
    if callbacks is not None:
        from ps_cluster.api.keras_callbacks import check_callbacks
        from ps_cluster.api.run_callbacks import RunCallbacks, with_epochs_scored

        values = with_epochs_scored(values)
        own = model if isinstance(model, keras.Model) else None
        listeners.append(partial(RunCallbacks, callbacks=check_callbacks(callbacks), model=own))
    return train_new(model, data, values, run_dir=run_dir, listeners=listeners, command=command)


keywords.show_keywords(train, keywords.RunOptions)


def train_new(
    model: Any,
    data: Any,
    values: Mapping[str, Any],
    *,
    run_dir: str | os.PathLike[str] | None,
    listeners: Sequence[Callable[[RunDir], RunFollower]],
    command: Sequence[str],
    notify: Notify = print_line,
) -> Result:
    """Write the caller's network, data and settings to a new run directory, and train there.

    Args:
      model, data, run_dir, command: as for `train`.
      values: the settings, by dotted key.
      listeners: each is called with the run directory before the training begins.
      notify: called with each line of the launcher.
    """
    named = {"model.name": os.fspath(model)} if isinstance(model, str | os.PathLike) else {}
    with untrusted.owner_only_writes():
        values = with_data({**values, **named}, data, notify)
        config = build_config(None, values)
        name = config.model.name if named or model is None else name_of(model)
        root = keywords.new_folder(run_dir, "run_dir") if run_dir is not None else new_root(config.mode.name, name)
        untrusted.check_folder(root, "run directory", print_line)  # a warning about security is printed in any case
        check_unused(root)
        run = RunDir(Path(os.path.realpath(root)))
        if model is not None:
            values["model.name"] = write_network(model, run.code)
        # Make paths of code absolute, from the current folder, and permit running this code from now on.
        write_whole(run.code / SETTINGS, dump_yaml(trust_names(nested(values), Path.cwd())))
    argv = (*command, "run", "--config", str(run.code / SETTINGS), "--run-dir", str(run.root))
    try:
        _attend(argv, run, [listener(run) for listener in listeners], notify)
    except UserError:
        if not run.config.is_file():  # the run has not begun: remove what was prepared for it
            shutil.rmtree(run.code, ignore_errors=True)
            with contextlib.suppress(OSError):  # the folder is not empty, so it stays
                run.root.rmdir()
        raise
    return Result(run.root)


def _attend(argv: Sequence[str], run: RunDir, listeners: Sequence[RunFollower], notify: Notify) -> None:
    """Start a run and let the listeners follow it until it has ended."""
    run_program(argv, run.launcher_log, lambda: any(one.poll() for one in listeners), notify=notify)
    for one in listeners:
        one.finish()


_OF_RESUME = [name for name, key in keywords.KEYWORDS.items() if key in CHANGEABLE]


def _resumed(
    folder: Path,
    model: Any,
    options: keywords.RunOptions,
    on_progress: OnProgress | None,
    on_evaluation: OnEvaluation | None,
    command: Sequence[str],
) -> Result:
    """Continue a run as `train` does. The arguments are those of `train`."""
    keywords.check_known(options, keywords.KEYWORDS)
    given = {name: keywords.plain(value) for name, value in options.items() if value is not None}
    if others := [name for name in given if name not in _OF_RESUME]:
        raise UserError(f"{others[0]}: a run is resumed with its own settings; only {', '.join(_OF_RESUME)} may change")
    run = RunDir.open(folder)
    arguments = [f"--{name.replace('_', '-')}={value}" for name, value in given.items()]
    if file := _code_to_resume(run, model):
        arguments += ("--code", str(file))
    listener = Listener(run, on_progress=on_progress, on_evaluation=on_evaluation)
    listener.skip()
    _attend((*command, "run", "--resume", str(run.root), *arguments), run, [listener], print_line)
    return Result(run.root)


def _code_to_resume(run: RunDir, model: Any) -> Path | None:
    """Return the file in the run directory that holds the network's code; None if the network needs no code.

    By passing `model`, the caller allows this code to run.
    """
    begun = flat(read_yaml(run.config)).get("model.name")
    code = NETWORKS.code_of(begun) if isinstance(begun, str) else None
    if code is None and model is None:
        return None
    if model is None:
        raise UserError(f"resume: the network of '{run.root}' is your code, '{begun}': give it again, as model=…")
    with untrusted.owner_only_writes(), tempfile.TemporaryDirectory(prefix="ps-cluster-resume-") as temporary:
        name = write_network(model, Path(temporary))
        written = NETWORKS.code_of(name)
        name = NETWORKS.allow_code_of(name, Path.cwd()).replace(f"{temporary}{os.sep}", f"{run.code}{os.sep}")
        if name != begun:
            raise UserError(
                f"model: the run in '{run.root}' was begun with another network, '{begun}': give that one, or start a new run"
            )
        if code is not None and written is not None and written.is_relative_to(temporary):
            shutil.copyfile(written, code)  # so that the caller's code is run, even if somebody has changed the file
    return code
