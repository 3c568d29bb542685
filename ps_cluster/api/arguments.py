"""Turn keyword arguments into settings, with the names, types and ranges that the commands' options have."""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from ps_cluster.command_line import overrides
from ps_cluster.config.options import CONFIG_OPTIONS
from ps_cluster.config.trees import flat, nested
from ps_cluster.config.user_layers import trusted
from ps_cluster.errors import UserError, did_you_mean
from ps_cluster.files.writing import write_whole
from ps_cluster.files.yaml_files import dump_yaml

_BY_OTHER_NAMES = ("data.dataset", "model.name")  # the arguments `data` and `model`


def _keyword(option: str) -> str:
    """Return "batch_size" for "--batch-size", "evaluator" for "--evaluator/--no-evaluator"."""
    return option.partition("/")[0].removeprefix("--").replace("-", "_")


KEYWORDS = {_keyword(option): key for option, (key, _) in CONFIG_OPTIONS.items() if key not in _BY_OTHER_NAMES}
"""Keyword → dotted key of its setting, for all options of the command `run` that are settings."""


def values_of(
    options: Mapping[str, Any], settings: Mapping[str, Any] | None, known: Iterable[str] = KEYWORDS
) -> dict[str, Any]:
    """Return dotted key → value of keyword arguments, and under them of `settings`, as on the command line.

    Args:
      options: keyword → value; None counts as not given.
      settings: dotted keys or sections → values, any setting of docs/configuration.md.
      known: the keywords that are taken.
    Raises:
      UserError: a keyword is unknown.
    """
    check_known(options, known)
    named = {KEYWORDS[name].replace(".", "__"): plain(value) for name, value in options.items()}
    return flat(plain(settings or {})) | overrides((), named)


def check_known(options: Iterable[str], known: Iterable[str]) -> None:
    """Raise UserError for the first of the keywords `options` that is not `known`."""
    for name in options:
        if name not in known:
            hint = did_you_mean(name, known)
            raise UserError(
                f"{name}: there is no such argument: {hint}any setting goes into settings={{'section.key': …}}"
            )


def plain(value: Any) -> Any:
    """Return a value as YAML has it: paths as text, tuples as lists, numbers of NumPy as Python's."""
    if isinstance(value, Mapping):
        return {str(key): plain(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [plain(one) for one in value]
    if isinstance(value, np.generic):
        return value.item()
    return os.fspath(value) if isinstance(value, os.PathLike) else value


def write_settings(file: Path, values: Mapping[str, Any]) -> None:
    """Write a file for --config. Relative paths of code are as seen from the current folder, and may be run now."""
    write_whole(file, dump_yaml(trusted(nested(values), Path.cwd())))


def show_keywords(function: Callable[..., Any], known: Iterable[str] = KEYWORDS) -> None:
    """Show `help()` and editors the keywords that `function` takes as `**options`."""
    signature = inspect.signature(function)
    named = [one for one in signature.parameters.values() if one.kind is not inspect.Parameter.VAR_KEYWORD]
    taken = {one.name for one in named}
    more = [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None) for name in known if name not in taken
    ]
    function.__signature__ = signature.replace(parameters=[*named, *more])  # type: ignore[attr-defined]
