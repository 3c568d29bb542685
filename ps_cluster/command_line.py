"""The common parts of all commands: errors on one line, and options that set values of the configuration."""

from __future__ import annotations

import itertools
import os
import sys
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, Literal, NoReturn, TypeVar, cast, get_args, get_origin

import click
from click.core import ParameterSource
from pydantic.fields import FieldInfo

from ps_cluster.catalogue import doors
from ps_cluster.catalogue.kinds import Kinds, Named
from ps_cluster.catalogue.modes import MODES
from ps_cluster.config import MOST_PARAMETER_SERVERS, MOST_WORKERS, RunConfig, build_config, parse_assignment
from ps_cluster.config.schema import sections
from ps_cluster.config.sections import CHOSEN, own_settings
from ps_cluster.errors import RunFailed, UserError
from ps_cluster.files.malformed import Malformed
from ps_cluster.files.places import check_file, check_folder
from ps_cluster.files.plain_numbers import decimal, whole
from ps_cluster.reporting.terminal import print_error


def _options_of_modes() -> dict[str, tuple[str, str]]:
    """Return the options for settings of single modes, e.g. `--max-staleness` for `mode.max_staleness`."""
    found: dict[str, tuple[str, str]] = {}
    for mode in MODES:
        for name in own_settings("mode", mode):
            option = f"--{name.replace('_', '-')}"
            said = f"Mode {mode.name}: {mode.Settings.model_fields[name].description or 'no description'}"
            _, before = found.get(option, ("", ""))  # of another mode with a setting of this name
            found[option] = (f"mode.{name}", f"{before} {said}".strip())
    return found


CONFIG_OPTIONS = {
    "--workers": ("cluster.workers", f"Worker processes; on one machine at most {MOST_WORKERS}."),
    "--ps": (
        "cluster.parameter_servers",
        f"Parameter server processes; on one machine at most {MOST_PARAMETER_SERVERS}.",
    ),
    "--mode": (
        "mode.name",
        f"How gradients become updates: {'; '.join(f'{mode.name}: {mode.says}' for mode in MODES)}.",
    ),
    **_options_of_modes(),
    "--staleness-method": ("staleness.method", "Mode async: how stale gradients are corrected."),
    "--straggler": ("cluster.straggler", "Make workers slow: 2:5x, 1:+0.2s, several joined by ';', or random:gamma."),
    "--dataset": (
        "data.dataset",
        "The data set, or the path of your own data; auto: CIFAR-10 if it can be had, else the generated one.",
    ),
    "--data-dir": ("data.data_dir", "The data set: its archive, its unpacked folder, or a folder that holds either."),
    "--target": ("data.target", "A table's column to predict."),
    "--image-size": (
        "data.image_size",
        "Size of pictures, 64 or 48x64 (height x width): they are resized and cropped.",
    ),
    "--skip-bad/--no-skip-bad": ("data.skip_bad", "Go on without pictures that can't be read."),
    "--model": ("model.name", "The network."),
    "--epochs": ("training.epochs", "Passes over the training images."),
    "--steps": ("training.steps", "Updates of the whole run, in place of --epochs."),
    "--batch-size": ("training.batch_size_per_worker", "Images of one step of one worker."),
    "--precision": (
        "model.precision",
        "Dtype of the computation; auto: bfloat16 where the processor has instructions for it.",
    ),
    "--evaluator/--no-evaluator": ("cluster.evaluator", "Score every checkpoint in a process of its own."),
    "--isolation": ("cluster.isolation", "Use a network that nobody else reaches; auto: where the system allows it."),
    "--seed": ("training.seed", "Seed of batches, augmentation and initial weights."),
}
FAILED, BAD_INPUT, INTERRUPTED = 1, 2, 130
MOST_OF_A_LIST = 100  # values in a CommaList

Body = TypeVar("Body", bound=Callable[..., Any])  # of a command


class CommaList(click.ParamType[tuple[Any, ...]]):
    """A parameter type: a tuple of values of one type, separated by commas."""

    name = "list"

    def __init__(self, one: click.ParamType[Any] = click.STRING):
        self.one = one

    def convert(self, value: Any, parameter: click.Parameter | None, context: click.Context | None) -> tuple[Any, ...]:
        if isinstance(value, tuple):
            return value  # click converts a default twice
        parts = value.split(",")
        if len(parts) > MOST_OF_A_LIST:
            self.fail(f"{len(parts):,} values are more than the {MOST_OF_A_LIST} that are taken.", parameter, context)
        return tuple(self.one.convert(part.strip(), parameter, context) for part in parts)


class Whole(click.IntRange):
    """A parameter type: a whole number in plain digits; click also takes `1_000`, `010` and full-width digits."""

    def convert(self, value: Any, parameter: click.Parameter | None, context: click.Context | None) -> int:
        return super().convert(_plain(whole, value, self, parameter, context), parameter, context)


class Number(click.FloatRange):
    """A parameter type: a finite number in plain digits; click takes "nan" to be in every range."""

    def convert(self, value: Any, parameter: click.Parameter | None, context: click.Context | None) -> float:
        return super().convert(_plain(decimal, value, self, parameter, context), parameter, context)


def _plain(
    read: Callable[[str], Any],
    value: Any,
    kind: click.ParamType[Any],
    parameter: click.Parameter | None,
    context: click.Context | None,
) -> Any:
    try:
        return read(value) if isinstance(value, str) else value  # a default is already a number
    except Malformed as error:
        kind.fail(f"{value!r:.80} {error}.", parameter, context)


class NameOf(click.ParamType[str]):
    """A parameter type: a name in the catalogue, or path/to/file.py:name. The configuration checks the object."""

    name = "name"

    def __init__(self, kinds: Kinds[Named]):
        self._kinds = kinds

    def get_metavar(self, param: click.Parameter, ctx: click.Context) -> str:
        return f"[{'|'.join(self._kinds.names)}|FILE.py:NAME]"

    def convert(self, value: Any, parameter: click.Parameter | None, context: click.Context | None) -> str:
        try:
            return self._kinds.check_name(self._kinds.named_by_user(value, Path.cwd()))
        except ValueError as error:
            self.fail(f"{value!r:.80}: {error}.", parameter, context)


class OutputPath(click.Path):
    """A parameter type: a file or folder to write at the end. One that can't be written is refused at once."""

    def __init__(self, check: Callable[[Path], None]):
        super().__init__(path_type=Path)
        self._check = check

    def convert(self, value: Any, parameter: click.Parameter | None, context: click.Context | None) -> Path:
        path = Path(os.fsdecode(super().convert(value, parameter, context)))
        try:
            self._check(path)
        except Malformed as error:
            self.fail(f"'{path}' {error}.", parameter, context)
        return path


OUTPUT_FILE, OUTPUT_FOLDER = OutputPath(check_file), OutputPath(check_folder)
FOLDER = click.Path(path_type=Path)  # a folder to read
LIST = CommaList()


class OneLineCommand(click.Command):
    """A command that exits with the code that it returns, and prints errors on one line (exit code 2 for bad input)."""

    def main(self, *args: Any, **extra: Any) -> NoReturn:
        try:
            code = super().main(*args, **(extra | {"standalone_mode": False}))
        except click.exceptions.NoArgsIsHelpError as error:
            error.show()
            code = BAD_INPUT
        except (click.ClickException, UserError) as error:
            message = error.format_message() if isinstance(error, click.ClickException) else str(error)
            print_error(message)
            code = BAD_INPUT
        except RunFailed as error:
            print_error(str(error))
            code = FAILED
        except OSError as error:  # a full disk, a directory that went away
            where = f": '{error.filename}'" if error.filename else ""
            print_error(f"{error.strerror or error}{where}")
            code = FAILED
        except (click.Abort, KeyboardInterrupt):
            print_error("interrupted")
            code = INTERRUPTED
        sys.exit(code)


class OneLineErrors(OneLineCommand, click.Group):
    """A group whose commands return exit codes, and whose errors are one line."""


class OneValue(click.Option):
    """An option that refuses two different values, where click takes the last one. `multiple` ones take all."""

    def add_to_parser(self, parser: Any, ctx: click.Context) -> None:
        super().add_to_parser(cast(Any, _Collecting(parser)), ctx)

    def consume_value(self, ctx: click.Context, opts: Mapping[str, Any]) -> tuple[Any, ParameterSource]:
        given = () if self.multiple else opts.get(self.name, ())
        if given:
            first, *more = given
            for other in more:
                if other != first:
                    got = "both" if self.is_flag else f"{first!r:.80} and {other!r:.80}"
                    raise UserError(f"{'/'.join((*self.opts, *self.secondary_opts))}: got {got}: give one of them")
            opts = {**opts, self.name: first}
        return super().consume_value(ctx, opts)


class _Collecting:
    """Passes options on to click's parser, so that it collects all values of each instead of storing the last."""

    def __init__(self, parser: Any):
        self._parser = parser

    def add_option(self, *, action: str, **more: Any) -> None:
        self._parser.add_option(action=action.replace("store", "append"), **more)


option = partial(click.option, cls=OneValue)
"""Add an option to a command; all options of all commands are made by it."""


def trusted_code(command: Body) -> Body:
    """Add --code to a command: files named by a run directory that may be run."""

    def trust(context: click.Context, parameter: click.Parameter, files: tuple[Path, ...]) -> None:
        for file in files:
            doors.trust(file.expanduser())

    text = "Allow this Python file, which a run directory names, to be run; repeatable."
    return option("--code", type=FOLDER, multiple=True, expose_value=False, callback=trust, help=text)(command)


def config_options(*names: str) -> Callable[[Body], Body]:
    """Add these options, or all of CONFIG_OPTIONS, to a command. It gets them as the `options` of `overrides`.

    Their choices and ranges come from the configuration.
    """

    def add(command: Body) -> Body:
        for name in reversed(names or tuple(CONFIG_OPTIONS)):
            key, text = CONFIG_OPTIONS[name]
            command = option(name, _parameter(key), type=_click_type(key), default=None, help=text)(command)
        return command

    return add


def config_layers(command: Body) -> Body:
    """Add --config and --set to a command, for `layered_config`."""
    text = "Any setting of docs/settings.md; repeatable."
    command = option("--set", "assignments", multiple=True, metavar="KEY=VALUE", help=text)(command)
    return option("--config", "file", type=click.Path(path_type=Path), help="A YAML file of settings.")(command)


def layered_config(
    file: Path | None, assignments: tuple[str, ...], options: dict[str, Any], tf_config: dict[str, Any] | None = None
) -> RunConfig:
    """Return the configuration from a file, `--set` and the command's own options. Raises UserError for bad input.

    Args:
      tf_config: as for `build_config`.
    """
    return build_config(file, overrides(assignments, options), tf_config)


def overrides(assignments: tuple[str, ...], options: dict[str, Any]) -> dict[str, Any]:
    """Return dotted key → value of `--set` and, over it, of the command's options. Raises UserError for bad input."""
    given = {name: value for name, value in options.items() if value is not None}
    values = {key: given[_parameter(key)] for key, _ in CONFIG_OPTIONS.values() if _parameter(key) in given}
    if "training.epochs" in values:
        if "training.steps" in values:
            raise UserError("--epochs and --steps say the same thing twice: give one of them")
        values["training.steps"] = None  # else a file's steps would win over these epochs
    return _assigned(assignments) | values


def _assigned(assignments: tuple[str, ...]) -> dict[str, Any]:
    values: dict[str, Any] = {}
    for key, value in map(parse_assignment, assignments):
        if values.setdefault(key, value) != value:
            raise UserError(f"--set {key}: got {values[key]!r:.80} and {value!r:.80}: give one of them")
    for key, inner in itertools.permutations(values, 2):
        if inner.startswith(f"{key}."):
            both = f"got {values[key]!r:.80}, and {inner} {values[inner]!r:.80}"
            raise UserError(f"--set {key}: {both}: give one of them")
    return values


def refuse_others(context: click.Context, *allowed: str, because: str) -> None:
    """Raise UserError for options not in `allowed`, because the run's directory already has their values."""
    for parameter in context.command.params:
        if parameter.name not in (*allowed, "code") and is_given(context, parameter.name):
            raise UserError(f"{because} the run as it was: leave {parameter.opts[0]} out")


def is_given(context: click.Context, name: str) -> bool:
    """Return whether the user gave a value for this option, even if it is the default."""
    return context.get_parameter_source(name) == ParameterSource.COMMANDLINE


def _parameter(key: str) -> str:
    return key.replace(".", "__")


def _click_type(key: str) -> click.ParamType[Any] | type:
    section, name = key.split(".")
    if section in CHOSEN and name == CHOSEN[section].key:
        return NameOf(CHOSEN[section].kinds)
    field = _field(section, name)
    if get_origin(field.annotation) is Literal:
        return click.Choice(get_args(field.annotation))
    kind = next(kind for kind in (*get_args(field.annotation), field.annotation) if kind is not type(None))
    kind = getattr(kind, "__origin__", kind)  # of a type with checks, as PathFromText
    kinds_of_bound = ("ge", "gt", "le", "lt")
    bounds = {name: getattr(bound, name) for bound in field.metadata for name in kinds_of_bound if hasattr(bound, name)}
    if kind in (int, float):
        return (Whole if kind is int else Number)(
            min=bounds.get("ge", bounds.get("gt")),
            max=bounds.get("le", bounds.get("lt")),
            min_open="gt" in bounds,
            max_open="lt" in bounds,
        )
    return click.Path(path_type=Path) if kind is Path else kind


def _field(section: str, name: str) -> FieldInfo:
    fields = sections()[section].model_fields
    if name in fields:
        return fields[name]
    known = (kind.Settings.model_fields for kind in CHOSEN[section].kinds.with_settings)
    found: FieldInfo = next(fields[name] for fields in known if name in fields)
    return found
