"""The common parts of all commands: errors on one line, help by groups, options for settings, and types of values."""

from __future__ import annotations

import errno
import itertools
import json
import os
import re
import sys
import textwrap
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, Literal, NoReturn, TypeVar, cast, get_args, get_origin

import click
from click.core import ParameterSource
from click.shell_completion import CompletionItem
from pydantic import BaseModel
from pydantic.fields import FieldInfo

from ps_cluster.config import LONGEST_SECONDS, Resolved, RunConfig, parse_assignment, registry, resolve
from ps_cluster.config.cluster_settings import joined
from ps_cluster.config.layers import NamedLayer, known_keys, settings_of_environment
from ps_cluster.config.modes import EVALUATOR, TRAINING_TYPES
from ps_cluster.config.options import CONFIG_OPTIONS, GROUPS, RARE, settings_of
from ps_cluster.config.registry import Named, Registry
from ps_cluster.config.schema import PAGE, sections
from ps_cluster.config.sections import CHOSEN
from ps_cluster.errors import BAD_INPUT, FAILED, INTERRUPTED, RunFailed, UserError, did_you_mean
from ps_cluster.files.values import Malformed, decimal, whole
from ps_cluster.files.writing import check_file, check_folder, write_json, write_whole
from ps_cluster.installation import PROGRAM
from ps_cluster.report.terminal import print_error, print_line
from ps_cluster.runs.logs import FORMATS, LOG_FORMAT, TEXT

COMPLETE = "_PS_CLUSTER_COMPLETE"  # environment variable: set by a shell that asks for completions
EXAMPLE_WIDTH = 95  # with two more for a backslash, click indents them by two in a terminal of 100 columns

Body = TypeVar("Body", bound=Callable[..., Any])  # of a command


OUTPUT = "Settings and output"  # the last group of options in the help of a command


class HelpByGroups(click.Command):
    """A command whose help shows its options by groups. Rare ones are shown by --help-all alone."""

    def __init__(self, *args: Any, **more: Any):
        super().__init__(*args, **more)
        if any(getattr(one, "rare", False) for one in self.params):
            self.params.append(_HELP_ALL)

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write its own options, then those of settings by groups, without rare ones unless --help-all asks for them."""
        groups: dict[str, list[tuple[str, str]]] = {name: [] for name in ("Options", *GROUPS.values(), OUTPUT)}
        for parameter in self.get_params(ctx):
            record = parameter.get_help_record(ctx)
            if record and record[1] and (ctx.meta.get(_ALL) or not getattr(parameter, "rare", False)):
                groups[getattr(parameter, "group", OUTPUT)].append(record)
        if not any(groups[name] for name in GROUPS.values()):
            groups["Options"] += groups.pop(OUTPUT)
        for name, records in groups.items():
            if records:
                with formatter.section(name):
                    formatter.write_dl(records)


class OneLineCommand(click.Command):
    """A command that exits with the code that it returns, and prints errors on one line (exit code 2 for bad input)."""

    def main(self, *args: Any, **extra: Any) -> NoReturn:
        try:
            code = super().main(*args, **(extra | {"standalone_mode": False, "complete_var": COMPLETE}))
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
        except OSError as error:  # a full disk, a directory that went away; or a path that no disk can have
            where = f": '{error.filename}'" if error.filename else ""
            print_error(f"{error.strerror or error}{where}")
            code = BAD_INPUT if error.errno in (errno.ENAMETOOLONG, errno.ELOOP) else FAILED
        except (click.Abort, KeyboardInterrupt):
            print_error("interrupted")
            code = INTERRUPTED
        sys.exit(code)


class OneLineErrors(OneLineCommand, click.Group):
    """A group whose commands return exit codes, and whose errors are one line."""

    command_class = HelpByGroups


class OneValue(click.Option):
    """An option that refuses two different values, where click takes the last one. `multiple` ones take all.

    Attributes:
      group: its heading in the help. rare: shown by --help-all only.
    """

    def __init__(self, *args: Any, group: str = "Options", rare: bool = False, **more: Any):
        super().__init__(*args, **more)
        self.group, self.rare = group, rare

    def add_to_parser(self, parser: Any, ctx: click.Context) -> None:
        super().add_to_parser(cast(Any, _Collecting(parser)), ctx)

    def consume_value(self, ctx: click.Context, opts: Mapping[str, Any]) -> tuple[Any, ParameterSource]:
        given = () if self.multiple else opts.get(self.name, ())
        if not self.is_flag and isinstance(self.flag_value, str):  # its value may be left out
            given = tuple(value if isinstance(value, str) else self.flag_value for value in given)
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
command = partial(click.command, cls=HelpByGroups)


_ALL = "ps_cluster.help_all"  # in the context of a command: its help shows rare options too


def _show_all(context: click.Context, _: click.Parameter, asked: bool) -> None:
    if asked and not context.resilient_parsing:
        context.meta[_ALL] = True
        for line in context.get_help().splitlines():
            print_line(line)
        context.exit()


_HELP_ALL = click.Option(
    ["--help-all"], is_flag=True, expose_value=False, is_eager=True, callback=_show_all, help="Also show rare options."
)


# The types of values on the command line: strict numbers, lists, names of the catalogue, files to write.

MOST_OF_A_LIST = 100  # values in a CommaList


def completions(names: Iterable[str], incomplete: str) -> list[CompletionItem]:
    """Return the names that begin so, for the completion of a shell."""
    return [CompletionItem(name) for name in names if name.startswith(incomplete)]


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

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        before, comma, last = incomplete.rpartition(",")
        return [CompletionItem(f"{before}{comma}{item.value}") for item in self.one.shell_complete(ctx, param, last)]


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

    def __init__(self, kinds: Registry[Named]):
        self._kinds = kinds

    def get_metavar(self, param: click.Parameter, ctx: click.Context) -> str:
        return f"[{'|'.join(self._kinds.names)}|FILE.py:NAME]"

    def convert(self, value: Any, parameter: click.Parameter | None, context: click.Context | None) -> str:
        try:
            return self._kinds.check_name(self._kinds.named_by_user(value, Path.cwd()))
        except ValueError as error:
            self.fail(f"{value!r:.80}: {error}.", parameter, context)

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        return completions(self._kinds.names, incomplete)


class OneOf(click.Choice[str]):
    """A parameter type: one of some words. The error names the one that is nearest."""

    def get_invalid_choice_message(self, value: Any, ctx: click.Context | None) -> str:
        return f"'{value:.200}': {did_you_mean(str(value), self.choices)}There are {', '.join(self.choices)}."


class Matching(click.ParamType[str]):
    """A parameter type: text of a form, which `says` describes."""

    name = "text"

    def __init__(self, pattern: str, says: str):
        self._pattern, self._says = re.compile(pattern), says

    def convert(self, value: Any, parameter: click.Parameter | None, context: click.Context | None) -> str:
        if self._pattern.fullmatch(value):
            return str(value)
        self.fail(f"{value!r:.80} is not {self._says}.", parameter, context)


class OfTypes(click.ParamType[tuple[str | None, Any]]):
    """A parameter type: VALUE, or TYPE=VALUE for the tasks of one type. It becomes (type or None, value)."""

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
    """A parameter type: KEY=VALUE, whose keys a shell completes. The configuration checks it."""

    name = "KEY=VALUE"

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        return completions((key for key in known_keys() if "." in key), incomplete)


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


class FileOrStdout(OutputPath):
    """A parameter type: a file to write, or - for standard output."""

    def convert(self, value: Any, parameter: click.Parameter | None, context: click.Context | None) -> Path:
        return STDOUT if str(value) == "-" else super().convert(value, parameter, context)


_TASK_TYPE = OneOf((*TRAINING_TYPES, EVALUATOR))
OUTPUT_FILE, OUTPUT_FOLDER = OutputPath(check_file), OutputPath(check_folder)
FOLDER = click.Path(path_type=Path)  # a folder to read
TEXT_FILE = JSON_FILE = FileOrStdout(check_file)
STDOUT = Path("-")
LIST = CommaList()


def type_of_setting(key: str) -> click.ParamType[Any] | type:
    """Return the type of an option for the setting of a dotted key: its choices and range are those of the setting."""
    section, name = key.split(".")
    if section in CHOSEN and name == CHOSEN[section].key:
        return NameOf(CHOSEN[section].kinds)
    field = _field(section, name)
    if get_origin(field.annotation) is Literal:
        return OneOf(get_args(field.annotation))
    kind = next(kind for kind in (*get_args(field.annotation), field.annotation) if kind is not type(None))
    if get_origin(kind) is Literal:
        return OneOf(get_args(kind))  # a setting that also takes a text has an option of its own for it
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
    if issubclass(kind, BaseModel):
        return click.STRING  # a short form of several settings (config/options.py)
    return click.Path(path_type=Path) if kind is Path else kind


def _field(section: str, name: str) -> FieldInfo:
    fields = sections()[section].model_fields
    if name in fields:
        return fields[name]
    known = (kind.Settings.model_fields for kind in CHOSEN[section].kinds.with_settings)
    found: FieldInfo = next(fields[name] for fields in known if name in fields)
    return found


# Options that several commands have.


def examples(*commands: str) -> str:
    """Return the end of a help text: commands, each on its line, a long one on several as a shell takes them."""
    wrapper = textwrap.TextWrapper(
        EXAMPLE_WIDTH, initial_indent="  ", subsequent_indent="      ", break_long_words=False, break_on_hyphens=False
    )
    return "\n".join(["\b", "Examples:", *(" \\\n".join(wrapper.wrap(f"{PROGRAM} {one}")) for one in commands)])


def _trust(context: click.Context, parameter: click.Parameter, files: tuple[Path, ...]) -> None:
    for file in files:
        registry.trust(Path(os.path.expanduser(file)))


trusted_code = option(
    "--code", type=FOLDER, multiple=True, expose_value=False, callback=_trust, rare=True,
    help="Allow this Python file, which a run directory names, to be run; repeatable.",
)  # fmt: skip
tensorboard_option = option(
    "--tensorboard", is_flag=True, group=OUTPUT, help="Run TensorBoard beside the training, and print the link to it."
)


def config_options(*names: str) -> Callable[[Body], Body]:
    """Add these options, or all of CONFIG_OPTIONS, to a command. It gets them as the `options` of `overrides`.

    Their choices and ranges come from the configuration.
    """

    def add(command: Body) -> Body:
        for name in reversed(names or tuple(CONFIG_OPTIONS)):
            key, text = CONFIG_OPTIONS[name]
            place, rare = GROUPS[key.partition(".")[0]], name in RARE
            kind = type_of_setting(key)
            add_one = option(name, _parameter(key), default=None, type=kind, help=text, group=place, rare=rare)
            command = add_one(command)
        return command

    return add


set_option = option(
    "--set", "assignments", type=Assignment(), multiple=True, metavar="KEY=VALUE", group=OUTPUT,
    help=f"Any setting of {PAGE}; repeatable.",
)  # fmt: skip


def config_layers(command: Body) -> Body:
    """Add --config and --set to a command, for `layered_config`."""
    add = option("--config", "file", type=FOLDER, group=OUTPUT, help="A YAML file of settings.")
    return add(set_option(command))


# Options for settings, of a command that writes `task` commands: --min-workers is that of `task`, and only a `run` scales.
OPTIONS_OF_TASKS = tuple(name for name in CONFIG_OPTIONS if name not in ("--min-workers", "--max-workers"))


def waiting_options(wait_seconds: float | None = None) -> Callable[[Body], Body]:
    """Add --wait-seconds and --min-workers of `task` to a command. `wait_seconds`: the default; None: not to be passed on."""

    def add(command: Body) -> Body:
        limit = "End after waiting so long for the other tasks."
        command = option("--wait-seconds", type=Number(0, LONGEST_SECONDS), default=wait_seconds, help=limit)(command)
        least = "Begin as soon as so many workers answer (modes async, bounded)"
        default = "default: all, or after a minute those there."
        return option("--min-workers", type=Whole(1), help=f"{least}; {default}")(command)

    return add


def waiting_words(wait_seconds: float | None, min_workers: int | None) -> tuple[str, ...]:
    """Return what of `waiting_options` was given, as words of a command line."""
    seconds = () if wait_seconds is None else ("--wait-seconds", f"{wait_seconds:.15g}")
    return (*seconds, *(() if min_workers is None else ("--min-workers", str(min_workers))))


LARGEST_PORT, LOOPBACK = 65_535, "127.0.0.1"
METRICS_OPTIONS = ("metrics_port", "metrics_host")


log_format_option = option(
    "--log-format", type=OneOf(tuple(FORMATS)), default=TEXT.name, is_eager=True, expose_value=False, group=OUTPUT,
    callback=lambda context, parameter, name: os.environ.update({LOG_FORMAT: name}),
    help="How lines are written: json is one object a line, for programs; also in logs/.",
)  # fmt: skip
"""It counts from here on, also for the processes that the command starts."""


def metrics_options(command: Body) -> Body:
    """Add --metrics-port and --metrics-host to a command, for `progress.with_metrics`."""
    where = "The address for --metrics-port. Whoever reaches it can read the metrics."
    add = option("--metrics-host", default=LOOPBACK, group=OUTPUT, help=where)
    text = "Serve metrics for Prometheus at this port; 0: any that is free."
    return option("--metrics-port", type=Whole(0, LARGEST_PORT), group=OUTPUT, help=text)(add(command))


def layered_config(
    file: Path | None, assignments: tuple[str, ...], options: dict[str, Any], size: NamedLayer | None = None
) -> RunConfig:
    """Return the configuration of `resolved_config`."""
    return resolved_config(file, assignments, options, size).config


def resolved_config(
    file: Path | None, assignments: tuple[str, ...], options: dict[str, Any], size: NamedLayer | None = None
) -> Resolved:
    """Merge a file, the environment, `--set` and the command's own options. Raises UserError for bad input.

    Args:
      size: as for `resolve`.
    """
    return resolve(file, overrides(assignments, options), size, os.environ)


def overrides(assignments: tuple[str, ...], options: dict[str, Any]) -> dict[str, Any]:
    """Return dotted key → value of `--set` and, over it, of the command's options. Raises UserError for bad input."""
    given = {name: value for name, value in options.items() if value is not None}
    values = {key: given[_parameter(key)] for key, _ in CONFIG_OPTIONS.values() if _parameter(key) in given}
    return _assigned(assignments) | settings_of(values)


def overrides_of_all(assignments: tuple[str, ...], options: dict[str, Any]) -> dict[str, Any]:
    """Return the same over the environment: for commands that start several runs. Raises UserError for bad input."""
    return joined([settings_of_environment(os.environ), overrides(assignments, options)])


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


def write_json_to(file: Path, content: Any) -> bool:
    """Write content to a file of `FileOrStdout`. Return whether it was standard output."""
    if file == STDOUT:
        print(json.dumps(content, indent=1))
        return True
    write_json(file, content)
    return False


def write_text_to(file: Path, content: str) -> None:
    """Write lines to a file of `FileOrStdout`."""
    if file == STDOUT:
        print(content, end="")
    else:
        write_whole(file, content)


def confirmed(question: str) -> bool:
    """Ask, and return whether the answer was yes. Raises UserError, which names --yes, where nobody answers."""
    try:
        return click.confirm(question)
    except click.Abort as error:
        raise UserError("--yes: nobody has answered, and nothing was removed: give --yes to remove unasked") from error
