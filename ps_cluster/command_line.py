"""The common parts of all commands: errors on one line, and options that set values of the configuration."""

from __future__ import annotations

import errno
import itertools
import os
import sys
import textwrap
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, NoReturn, TypeVar, cast

import click
from click.core import ParameterSource

from ps_cluster.catalogue import doors
from ps_cluster.config import Resolved, RunConfig, parse_assignment, resolve
from ps_cluster.config.isolations import joined
from ps_cluster.config.options import CONFIG_OPTIONS, settings_of
from ps_cluster.config.schema import PAGE
from ps_cluster.config.user_layers import NamedLayer, settings_of_environment
from ps_cluster.errors import RunFailed, UserError
from ps_cluster.installation import PROGRAM
from ps_cluster.parameter_types import FOLDER, Assignment, type_of_setting
from ps_cluster.reporting.terminal import print_error

COMPLETE = "_PS_CLUSTER_COMPLETE"  # environment variable: set by a shell that asks for completions
FAILED, BAD_INPUT, INTERRUPTED = 1, 2, 130
EXAMPLE_WIDTH = 95  # with two more for a backslash, click indents them by two in a terminal of 100 columns

Body = TypeVar("Body", bound=Callable[..., Any])  # of a command


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


class OneValue(click.Option):
    """An option that refuses two different values, where click takes the last one. `multiple` ones take all."""

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


def examples(*commands: str) -> str:
    """Return the end of a help text: commands, each on its line, a long one on several as a shell takes them."""
    lines = (
        " \\\n".join(
            textwrap.wrap(
                f"{PROGRAM} {command}",
                EXAMPLE_WIDTH,
                initial_indent="  ",
                subsequent_indent="      ",
                break_long_words=False,
                break_on_hyphens=False,
            )
        )
        for command in commands
    )
    return "\n".join(["\b", "Examples:", *lines])


def trusted_code(command: Body) -> Body:
    """Add --code to a command: files named by a run directory that may be run."""

    def trust(context: click.Context, parameter: click.Parameter, files: tuple[Path, ...]) -> None:
        for file in files:
            doors.trust(Path(os.path.expanduser(file)))

    text = "Allow this Python file, which a run directory names, to be run; repeatable."
    return option("--code", type=FOLDER, multiple=True, expose_value=False, callback=trust, help=text)(command)


tensorboard_option = option(
    "--tensorboard", is_flag=True, help="Run TensorBoard beside the training, and print the link to it."
)


def config_options(*names: str) -> Callable[[Body], Body]:
    """Add these options, or all of CONFIG_OPTIONS, to a command. It gets them as the `options` of `overrides`.

    Their choices and ranges come from the configuration.
    """

    def add(command: Body) -> Body:
        for name in reversed(names or tuple(CONFIG_OPTIONS)):
            key, text = CONFIG_OPTIONS[name]
            command = option(name, _parameter(key), type=type_of_setting(key), default=None, help=text)(command)
        return command

    return add


def set_option(command: Body) -> Body:
    """Add --set to a command, for `layered_config`."""
    text = f"Any setting of {PAGE}; repeatable."
    return option("--set", "assignments", type=Assignment(), multiple=True, metavar="KEY=VALUE", help=text)(command)


def config_layers(command: Body) -> Body:
    """Add --config and --set to a command, for `layered_config`."""
    add = option("--config", "file", type=click.Path(path_type=Path), help="A YAML file of settings.")
    return add(set_option(command))


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
