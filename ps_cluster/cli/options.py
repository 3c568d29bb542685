"""Define the options that set values of the configuration, and other options that several commands share."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import wraps
from pathlib import Path
from typing import Annotated, Any, Concatenate, Literal, ParamSpec, TypeVar, get_args, get_origin

import click
from annotated_types import Ge, Gt, Le, Lt
from click.shell_completion import CompletionItem
from pydantic import BaseModel
from pydantic.fields import FieldInfo

from ps_cluster.cli.command_line import OUTPUT, Body, OptionType, is_given, option
from ps_cluster.cli.value_types import INPUT_PATH, Integer, NameOf, Number, OneOf, completions
from ps_cluster.config import LONGEST_SECONDS, Resolved, parse_assignment, resolve, user_code
from ps_cluster.config.augmentation import NO_VARIATION, VARIATIONS, read_variations
from ps_cluster.config.modes import MODES
from ps_cluster.config.schema import PAGE, known_keys, section_classes
from ps_cluster.config.sections import CHOICE_BY_SECTION, CHOICE_BY_SETTING, ISOLATION_KEY, flat, joined, own_settings
from ps_cluster.config.tasks import EVALUATOR, TRAINING_TYPES
from ps_cluster.config.user_settings import SettingsSource, settings_of_environment
from ps_cluster.errors import UserError
from ps_cluster.process_variables import set_log_format
from ps_cluster.runs.logs import FORMATS, TEXT

Parameters = ParamSpec("Parameters")
Returned = TypeVar("Returned")

# The options for settings: name and dotted key. Text, type and range are those of the setting.

AUGMENTATION = "data.augmentation"


def _options_of_modes() -> dict[str, str]:
    """Return the options for settings that only some modes have, e.g. `--max-staleness` for `mode.max_staleness`."""
    fields = {name: mode.Settings.model_fields[name] for mode in MODES for name in own_settings("mode", mode)}
    spelled = {name: name.replace("_", "-") for name in fields}
    return {
        f"--{spelled[name]}/--no-{spelled[name]}" if field.annotation is bool else f"--{spelled[name]}": f"mode.{name}"
        for name, field in fields.items()
    }


CONFIG_OPTIONS = {
    "--workers": "cluster.workers",
    "--min-workers": "cluster.min_workers",
    "--max-workers": "cluster.max_workers",
    "--ps": "cluster.parameter_servers",
    "--mode": "mode.name",
    **_options_of_modes(),
    "--staleness-method": "staleness.method",
    "--straggler": "cluster.straggler",
    "--gpus": "cluster.gpus",
    "--dataset": "data.dataset",
    "--data-dir": "data.data_dir",
    "--target": "data.target",
    "--image-size": "data.image_size",
    "--skip-bad/--no-skip-bad": "data.skip_bad",
    "--augment": AUGMENTATION,
    "--model": "model.name",
    "--epochs": "training.epochs",
    "--steps": "training.steps",
    "--max-seconds": "training.max_seconds",
    "--batch-size": "training.batch_size_per_worker",
    "--optimizer": "optimizer.rule",
    "--learning-rate": "optimizer.learning_rate",
    "--weight-decay": "optimizer.weight_decay",
    "--precision": "model.precision",
    "--monitor": "evaluation.monitor",
    "--patience": "evaluation.patience",
    "--evaluator/--no-evaluator": "cluster.evaluator",
    "--isolation": "cluster.isolation",
    "--seed": "training.seed",
}

CHANGEABLE = ("training.epochs", "training.steps", "training.max_seconds", "cluster.parameter_servers", ISOLATION_KEY)
"""The settings that a resumed run can change."""


# For each section: the group in which the help of a command shows the options for the section's settings.
GROUPS = {
    "cluster": "Cluster", "mode": "Mode", "staleness": "Mode", "data": "Data", "model": "Network", "training": "Training",
    "optimizer": "Training", "evaluation": "Training",
}  # fmt: skip
# Few users need these, so only --help-all shows them.
RARE = frozenset(_options_of_modes()) | {
    "--min-workers", "--max-workers", "--straggler", "--staleness-method", "--isolation", "--target", "--image-size",
    "--skip-bad/--no-skip-bad", "--weight-decay", "--max-seconds",
}  # fmt: skip
# The options that a newcomer uses first. They come first in the help of `run`.
USUAL = frozenset(("--workers", "--ps", "--mode", "--dataset", "--model", "--epochs", "--learning-rate"))


def settings_of(given: Mapping[str, Any]) -> dict[str, Any]:
    """Convert the values of options to settings, e.g. the short form of --augment to the settings of the augmentation.

    Args:
      given: the values of the options, by the dotted keys of their settings.
    Returns:
      The settings, by dotted key.
    """
    values = dict(given)
    if "training.epochs" in values:
        if "training.steps" in values:
            raise UserError("--epochs and --steps both set the length of the training: give only one of them")
        values["training.steps"] = None  # else a file's steps would win over these epochs
    if isinstance(text := values.get(AUGMENTATION), str):
        try:
            values[AUGMENTATION] = read_variations(text)
        except ValueError as error:
            raise UserError(f"--augment: got {text!r:.200}: {error}") from error
    return flat(values)


class OfTypes(click.ParamType[tuple[str | None, Any]]):
    """A parameter type: VALUE, or TYPE=VALUE for the tasks of one type. Converts it to (type or None, value)."""

    name = "[TYPE=]VALUE"

    def __init__(self, one: click.ParamType[Any]):
        self.one = one

    def convert(
        self, value: Any, parameter: click.Parameter | None, context: click.Context | None
    ) -> tuple[str | None, Any]:
        kind, given, rest = value.rpartition("=")
        if given:
            _TASK_TYPE.convert(kind, parameter, context)
        return kind or None, self.one.convert(rest, parameter, context)


class Assignment(click.ParamType[str]):
    """A parameter type: KEY=VALUE. A shell completes the key; the configuration checks key and value."""

    name = "KEY=VALUE"

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        return completions((key for key in known_keys() if "." in key), incomplete)


_TASK_TYPE = OneOf((*TRAINING_TYPES, EVALUATOR))


def type_of_setting(key: str) -> OptionType:
    """Return the type of the option that sets a setting, with the choices or the range that the setting allows.

    `key`: the dotted key of the setting.
    """
    if key in CHOICE_BY_SETTING:
        return NameOf(CHOICE_BY_SETTING[key].kinds)
    field = _field(*key.split("."))
    if get_origin(field.annotation) is Literal:
        return OneOf(get_args(field.annotation))
    kind = next(kind for kind in (*get_args(field.annotation), field.annotation) if kind is not type(None))
    if get_origin(kind) is Literal:
        return OneOf(get_args(kind))  # a setting that also accepts a text has a separate option for the text
    if get_origin(kind) is Annotated:
        kind = get_args(kind)[0]  # without the checks of a type such as PathFromText
    if kind in (int, float):
        limits: dict[str, Any] = {}
        for bound in field.metadata:
            match bound:
                case Ge(low) | Gt(low):
                    limits |= {"min": low, "min_open": isinstance(bound, Gt)}
                case Le(high) | Lt(high):
                    limits |= {"max": high, "max_open": isinstance(bound, Lt)}
        return (Integer if kind is int else Number)(**limits)
    if issubclass(kind, BaseModel):
        return click.STRING  # a short form of several settings (`settings_of`)
    return click.Path(path_type=Path) if kind is Path else kind


def _text(key: str) -> str:
    """Return the description of a setting. If only some modes have the setting, the text begins with their names."""
    if key == AUGMENTATION:
        forms = ", ".join(one.form for one in VARIATIONS.values())
        return (
            f"How training images are varied: one or more of {forms}, separated by commas. {NO_VARIATION}: not at all."
        )
    section, name = key.split(".")
    if section != "mode" or name in section_classes()[section].model_fields:
        return _field(section, name).description or ""
    modes_of: dict[str, list[str]] = {}  # the modes whose setting has each description
    for mode in MODES:
        if name in mode.Settings.model_fields:
            modes_of.setdefault(mode.Settings.model_fields[name].description or "", []).append(mode.name)
    return " ".join(
        f"Mode{'s' * (len(modes) > 1)} {', '.join(modes)}: {description}" for description, modes in modes_of.items()
    )


def _field(section: str, name: str) -> FieldInfo:
    fields = section_classes()[section].model_fields
    if name in fields:
        return fields[name]
    known = (kind.Settings.model_fields for kind in CHOICE_BY_SECTION[section].kinds.with_settings)
    found: FieldInfo = next(fields[name] for fields in known if name in fields)
    return found


# Options that several commands have.


def _trust(context: click.Context, parameter: click.Parameter, files: tuple[Path, ...]) -> None:
    for file in files:
        user_code.trust(Path(os.path.expanduser(file)))


trusted_code = option(
    "--code", type=INPUT_PATH, multiple=True, expose_value=False, callback=_trust, rare=True,
    help="Allow this Python file to be run if a run directory names it; repeatable.",
)  # fmt: skip
tensorboard_option = option(
    "--tensorboard", is_flag=True, group=OUTPUT, help="Run TensorBoard during the training, and print the link to it."
)


@dataclass(frozen=True)
class GivenSettings:
    """The settings that the user has given to a command.

    Attributes:
      file: the file of --config, or None without this option.
      assignments: the texts of --set.
      values: the values of the options for individual settings (`CONFIG_OPTIONS`), by the settings' dotted keys.
    """

    file: Path | None
    assignments: tuple[str, ...]
    values: Mapping[str, Any]

    def with_values(self, more: Mapping[str, Any]) -> GivenSettings:
        """Return these settings with the additional values `more`, as if the user had given them as options."""
        return replace(self, values={**self.values, **more})

    def overrides(self) -> dict[str, Any]:
        """Return the settings of --set and of the options, by dotted key. Options win. Bad input raises UserError."""
        return _assigned(self.assignments) | settings_of(self.values)

    def overrides_of_all(self) -> dict[str, Any]:
        """Return the settings of the environment variables and the `overrides`, by dotted key.

        The `overrides` win over the environment variables, except that the stricter `cluster.isolation` wins.
        Commands that start several runs use this method.
        """
        return joined([settings_of_environment(os.environ), self.overrides()])

    def resolved(self, size: SettingsSource | None = None) -> Resolved:
        """Merge the file, the environment and the `overrides`. Raises UserError for bad input.

        Args:
          size: the numbers of workers and parameter servers of a cluster on several machines. They win over all other
            sources, and are not refused if the mode does not use them.
        """
        return resolve(self.file, self.overrides(), size, os.environ)


def config_options(
    *names: str,
) -> Callable[[Callable[Concatenate[GivenSettings, Parameters], Returned]], Callable[Parameters, Returned]]:
    """Return a decorator that adds the options `names` to a command, or all of CONFIG_OPTIONS if there are no `names`.

    The options have the choices and ranges of their settings. The first argument of the command's function becomes a
    `GivenSettings` with the values of these options, of --config and of --set.
    """

    def add(body: Callable[Concatenate[GivenSettings, Parameters], Returned]) -> Callable[Parameters, Returned]:
        @wraps(body)
        def command(*args: Parameters.args, **values: Parameters.kwargs) -> Returned:
            file, assignments = values.pop("file", None), values.pop("assignments", ())
            assert file is None or isinstance(file, Path)
            assert isinstance(assignments, tuple)
            options = {key: values.pop(parameter_of(key), None) for key in CONFIG_OPTIONS.values()}
            by_key = {key: value for key, value in options.items() if value is not None}
            return body(GivenSettings(file, assignments, by_key), *args, **values)

        for name in reversed(names or tuple(CONFIG_OPTIONS)):
            key = CONFIG_OPTIONS[name]
            option(
                name, parameter_of(key), default=None, type=type_of_setting(key), help=_text(key),
                group=GROUPS[key.partition(".")[0]], rare=name in RARE, usual=name in USUAL,
            )(command)  # fmt: skip
        return command

    return add


set_option = option(
    "--set", "assignments", type=Assignment(), multiple=True, metavar="KEY=VALUE", group=OUTPUT,
    help=f"Give a value to any setting of {PAGE}; repeatable.",
)  # fmt: skip


def config_and_set_options(command: Body) -> Body:
    """Add --config and --set to a command that has `config_options`."""
    add = option("--config", "file", type=INPUT_PATH, group=OUTPUT, help="A YAML file of settings.")
    return add(set_option(command))


# The options for settings in commands that write `task` commands. `task` has another --min-workers, and no scaling.
OPTIONS_OF_TASKS = tuple(name for name in CONFIG_OPTIONS if name not in ("--min-workers", "--max-workers"))


def waiting_options(wait_seconds: float | None = None) -> Callable[[Body], Body]:
    """Return a decorator that adds the options --wait-seconds and --min-workers of `task` to a command.

    Args:
      wait_seconds: the default of --wait-seconds, or None if the default of `task` applies.
    """

    def add(command: Body) -> Body:
        limit = "End after waiting this many seconds for the other tasks."
        command = option("--wait-seconds", type=Number(0, LONGEST_SECONDS), default=wait_seconds, help=limit)(command)
        least = "Begin as soon as this many workers answer, in modes whose number of workers can change"
        default = "default: begin when all answer, or after a minute with those workers that answer."
        return option("--min-workers", type=Integer(1), help=f"{least}; {default}")(command)

    return add


def waiting_words(wait_seconds: float | None, min_workers: int | None) -> tuple[str, ...]:
    """Return --wait-seconds and --min-workers with these values, as words of a command line.

    An option whose value is None is left out.
    """
    seconds = () if wait_seconds is None else ("--wait-seconds", f"{wait_seconds:.15g}")
    return (*seconds, *(() if min_workers is None else ("--min-workers", str(min_workers))))


LARGEST_PORT = 65_535
METRICS_OPTIONS = ("metrics_port", "metrics_host")


log_format_option = option(
    "--log-format", type=OneOf(tuple(FORMATS)), default=TEXT.name, is_eager=True, expose_value=False, group=OUTPUT,
    callback=lambda context, parameter, name: set_log_format(name),
    help="Format of all lines, printed or in logs/. json: one object per line, for programs.",
)  # fmt: skip
"""The format applies as soon as the option is read, also to the processes that the command starts."""


def metrics_options(command: Body) -> Body:
    """Add --metrics-port and --metrics-host to a command, for `report.metrics_server.with_metrics`."""
    where = "The address at which --metrics-port serves. Everybody who can reach it can read the metrics."
    add = option("--metrics-host", default="127.0.0.1", group=OUTPUT, rare=True, help=where)
    text = "Serve metrics for Prometheus at this port; 0: any free port."
    return option("--metrics-port", type=Integer(0, LARGEST_PORT), group=OUTPUT, rare=True, help=text)(add(command))


def _assigned(assignments: tuple[str, ...]) -> dict[str, Any]:
    values: dict[str, Any] = {}
    for key, value in map(parse_assignment, assignments):
        known = values.setdefault(key, value)
        if known is not value and known != value:  # NaN is not equal to itself
            raise UserError(f"--set {key}: got {values[key]!r:.80} and {value!r:.80}: give only one of them")
    for key, inner in itertools.permutations(values, 2):
        if inner.startswith(f"{key}."):
            both = f"got {values[key]!r:.80}, and {inner} {values[inner]!r:.80}"
            raise UserError(f"--set {key}: {both}: give only one of them")
    return values


def refuse_others(context: click.Context, *allowed: str, because: str) -> None:
    """Raise UserError if the user has given an option that is not in `allowed`.

    Options that are not passed to the command's function, such as --code and --log-format, are always allowed.

    Args:
      allowed: names of parameters of the command.
      because: the beginning of the message.
    """
    parameters = {one.name: one for one in context.command.params if one.expose_value}
    assert parameters.keys() >= {*allowed}, f"{context.command.name} has no {sorted({*allowed} - parameters.keys())}"
    for name, parameter in parameters.items():
        if name not in allowed and is_given(context, name):
            raise UserError(f"{because}: leave {parameter.opts[0]} out")


def parameter_of(key: str) -> str:
    """Return the name of the parameter for the option that sets the setting `key`: `mode__name` for `mode.name`."""
    return key.replace(".", "__")
