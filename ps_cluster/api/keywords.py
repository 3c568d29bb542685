"""Turn keyword arguments into settings, with the names, types and ranges of the commands' options."""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, Literal, TypedDict, get_type_hints

import numpy as np

from ps_cluster.cli.options import CONFIG_OPTIONS, settings_of
from ps_cluster.config.sections import flat
from ps_cluster.errors import UserError, did_you_mean
from ps_cluster.files.values import Malformed, one_line
from ps_cluster.files.writable import check_folder

KEYWORDS = {
    option.partition("/")[0].removeprefix("--").replace("-", "_"): key
    for option, key in CONFIG_OPTIONS.items()
    if key not in ("data.dataset", "model.name")  # set by the arguments `data` and `model`
}
"""The dotted key of the setting that each keyword sets. There is a keyword for each option of the command `run` that
sets a setting, e.g. "batch_size" for --batch-size and "evaluator" for --evaluator/--no-evaluator."""


class SharedOptions(TypedDict, total=False):
    """The keywords that `fit`, `train` and `compare` all take. Any keyword that is None counts as not given."""

    workers: int | None
    min_workers: int | None
    max_workers: int | None
    ps: int | None
    simulate_workers: int | None
    max_staleness: int | None
    max_clock_lag: int | None
    local_steps: int | None
    outer_rate: float | None
    outer_momentum: float | None
    dynamic_steps: bool | None
    fragments: bool | None
    momentum_every: int | None
    momentum_spread: float | None
    beta: float | None
    log_placement: bool | None
    placement: str | None
    micro_batches: int | None
    backup_workers: int | None
    grace_seconds: float | None
    least_units: int | None
    staleness_method: str | None
    gpus: Literal["none", "auto"] | None
    data_dir: str | os.PathLike[str] | None
    target: str | None
    image_size: int | str | None
    skip_bad: bool | None
    augment: str | Mapping[str, object] | None
    max_seconds: float | None
    optimizer: str | None
    weight_decay: float | None
    precision: Literal["auto", "bfloat16", "float32"] | None
    monitor: str | None
    patience: int | None
    evaluator: bool | None
    isolation: str | None


class FitOptions(SharedOptions, total=False):
    """The keywords of `fit` that `Model.fit` does not have."""

    mode: str | None
    straggler: str | None
    learning_rate: float | None
    seed: int | None


class RunOptions(FitOptions, total=False):
    """The keywords of `train` that set options of the command `ps-cluster run`."""

    epochs: float | None
    steps: int | None
    batch_size: int | None


def values_of(options: Mapping[str, object], settings: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return settings by dotted key. Keyword arguments take precedence over `settings`, as on the command line.

    Args:
      options: the values of keywords; None counts as not given.
      settings: the values of any settings of docs/configuration.md, by their dotted keys or in their sections.
    """
    check_known(options, KEYWORDS)
    if not isinstance(options.get("optimizer"), str | None):
        raise UserError("optimizer: give the name of a rule, e.g. 'adam', or compile() the model with this optimizer")
    if settings is not None and not isinstance(settings, Mapping):
        raise UserError(
            f"settings: got {one_line(repr(settings), 100)}: give a mapping, e.g. {{'optimizer.rule': 'adam'}}"
        )
    named = {KEYWORDS[name]: plain(value) for name, value in options.items() if value is not None}
    return flat(plain(settings or {})) | settings_of(named)


# For each argument of Keras's `compile` or `fit`: what to do in `train` instead. (`ps_cluster.fit` takes those of
# `fit`.)
_OF_KERAS = {
    "validation_data": "give the examples to test on with the data: data=((x_train, y_train), (x_test, y_test))",
    "validation_split": "settings={'data.held_out': 0.1} sets the share that is held out if the data has no test examples",
    "x": "give the data as data=(x_train, y_train)",
    "y": "give the data as data=(x_train, y_train)",
    "sample_weight": "give weights with the data: data={'x_train': …, 'y_train': …, 'weight_train': …}",
    "class_weight": "give settings={'training.class_weights': {'name of a class': 2.0}}",
    "loss": "compile() the model in your function with this loss",
    "metrics": "compile() the model in your function with these metrics",
    "lr": "here the argument is called learning_rate",
    "steps_per_epoch": "steps=… is the number of all updates; an epoch is one pass over the training examples",
    "initial_epoch": "resume=RUN_DIR continues an earlier run",
    "shuffle": "examples are always shuffled; seed=… decides the order",
    "verbose": "training runs in a separate program, and its progress lines are always printed; use "
    "contextlib.redirect_stdout to redirect them",
}


def check_known(options: Iterable[str], known: Iterable[str]) -> None:
    """Raise UserError if a keyword of `options` is not in `known`. The error names the first such keyword."""
    for name in options:
        if name not in known:
            if name in _OF_KERAS:
                raise UserError(f"{name}: Keras has this argument, but it is unknown here: {_OF_KERAS[name]}")
            hint = did_you_mean(name, known)
            raise UserError(
                f"{name}: there is no such argument: {hint}any setting goes into settings={{'section.key': …}}"
            )


def plain(value: Any) -> Any:
    """Convert a value for YAML: paths to text, tuples to lists, NumPy's numbers to Python's."""
    if isinstance(value, Mapping):
        return {str(key): plain(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [plain(one) for one in value]
    if isinstance(value, np.generic):
        return value.item()
    return os.fspath(value) if isinstance(value, os.PathLike) else value


def new_folder(path: str | os.PathLike[str], keyword: str) -> Path:
    """Return the path of a folder to write. Raises UserError if it can't be written."""
    try:
        folder = Path(path)
        check_folder(folder)
    except (TypeError, Malformed) as error:
        why = "is not a path" if isinstance(error, TypeError) else error
        raise UserError(f"{keyword}: {one_line(repr(path), 100)} {why}: give a folder that can be written") from None
    return folder


def show_keywords(function: Callable[..., object], options: type) -> None:
    """Make `help()` and `inspect.signature` show the keywords of `function`, which the TypedDict `options` defines.

    Keywords that set no setting of the run come first. The others follow in the order of KEYWORDS in this module.
    """
    kinds, order = get_type_hints(options), list(KEYWORDS)
    names = sorted(kinds, key=lambda name: order.index(name) if name in order else -1)
    signature = inspect.signature(function)
    named = [one for one in signature.parameters.values() if one.kind is not inspect.Parameter.VAR_KEYWORD]
    more = [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=kinds[name]) for name in names
    ]
    function.__signature__ = signature.replace(parameters=[*named, *more])  # type: ignore[attr-defined]
