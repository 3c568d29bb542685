"""Define commands with one-line errors and grouped help. This module imports few others, so that help is quick."""

from __future__ import annotations

import errno
import json
import os
import sys
import textwrap
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, TypeAlias, TypedDict, TypeVar, Unpack

import click
from click.core import ParameterSource

from ps_cluster.cli.value_types import PRINTED_FILE, STDOUT, NameOf
from ps_cluster.errors import BAD_INPUT, FAILED, INTERRUPTED, RETRY, RunFailed, TemporaryFailure, UserError
from ps_cluster.files.writing import write_json, write_whole
from ps_cluster.installation import PROGRAM

if TYPE_CHECKING:
    from ps_cluster.files.json_files import Json

COMPLETE = "_PS_CLUSTER_COMPLETE"  # environment variable: set by a shell that asks for completions
EXAMPLE_WIDTH = 95  # columns; a backslash and click's indentation take two more each, and a terminal has 100

WORDS = "ps_cluster.words"  # key in the context of a command: the words that the user wrote after the command's name

# The groups of options in the help of a command.
OWN, OF_SETTINGS, OUTPUT = "Options", ("Cluster", "Mode", "Data", "Network", "Training"), "Settings and output"


class HelpByGroups(click.Command):
    """A command whose help shows the options in groups. Only --help-all shows rare options."""

    def __init__(self, *args: Any, **more: Any):
        super().__init__(*args, **more)
        if any(_is_rare(one) for one in self.params):
            self.params.append(_HELP_ALL)

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        ctx.meta[WORDS] = tuple(args)
        return super().parse_args(ctx, args)

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the command's own options, and then the options for settings, in groups.

        If a command has no options of its own, the settings that are used most come first.
        """
        options = [one for one in self.get_params(ctx) if ctx.meta.get(_ALL) or not _is_rare(one)]
        ours = [one for one in options if isinstance(one, SingleValueOption)]  # all but click's, such as --help
        has_own = any(one.group == OWN and not one.rare for one in ours)
        has_settings = any(one.group in OF_SETTINGS for one in ours)
        groups: dict[str, list[tuple[str, str]]] = {name: [] for name in (OWN, *OF_SETTINGS, OUTPUT)}
        for one in options:
            if record := one.get_help_record(ctx):
                group, usual = (one.group, one.usual) if isinstance(one, SingleValueOption) else (OUTPUT, False)
                comes_first = not has_settings or (usual and not has_own)
                groups[OWN if comes_first else group].append(record)
        for name, records in groups.items():
            if records:
                with formatter.section(name):
                    formatter.write_dl(records)


def _open_standard_files() -> None:
    """Open /dev/null as standard input, output or error if the parent process has closed it.

    Otherwise the next file or socket would get one of the file descriptors 0 to 2, and printed lines would be
    written into it.
    """
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # the system gives it the lowest free number, which is `number`
    sys.stdout = sys.stdout or os.fdopen(1, "w")
    sys.stderr = sys.stderr or os.fdopen(2, "w")


class OneLineCommand(click.Command):
    """A command that exits with the code that it returns, and prints errors on one line (exit code 2 for bad input)."""

    def main(self, *args: Any, **extra: Any) -> NoReturn:
        _open_standard_files()
        message: str | None = None
        try:
            code = super().main(*args, **(extra | {"standalone_mode": False, "complete_var": COMPLETE}))
        except click.exceptions.NoArgsIsHelpError as error:
            error.show()
            code = BAD_INPUT
        except click.ClickException as error:
            code, message = BAD_INPUT, error.format_message()
        except UserError as error:
            code, message = BAD_INPUT, str(error)
        except RunFailed as error:
            code, message = RETRY if isinstance(error, TemporaryFailure) else FAILED, str(error)
        except OSError as error:  # a full disk, a removed directory, or a path that no disk can have
            where = f": '{error.filename}'" if error.filename else ""
            code = BAD_INPUT if error.errno in (errno.ENAMETOOLONG, errno.ELOOP) else FAILED
            message = f"{error.strerror or error}{where}"
        except (click.Abort, KeyboardInterrupt):
            code, message = INTERRUPTED, "interrupted"
        if message is not None:
            from ps_cluster.report.terminal import print_error

            print_error(message)
        sys.exit(code)


class OneLineErrors(OneLineCommand, click.Group):
    """A group whose commands return exit codes, and whose errors are one line."""

    command_class = HelpByGroups


class SingleValueOption(click.Option):
    """An option that refuses a second, different value, where click would use the last value.

    An option with `multiple=True` accepts several values.

    Attributes:
      group: the heading of the option in the help.
      rare: whether only --help-all shows the option.
      usual: whether the option is listed among the first in the help of a command without options of its own.
    """

    def __init__(self, *args: Any, group: str = OWN, rare: bool = False, usual: bool = False, **more: Any):
        super().__init__(*args, **more)
        self.group, self.rare, self.usual = group, rare, usual

    def get_help_record(self, ctx: click.Context) -> tuple[str, str] | None:
        """Return the syntax and the help of the option. If its type is `NameOf`, the help lists the names."""
        record = super().get_help_record(ctx)
        if record is None or not isinstance(self.type, NameOf):
            return record
        return record[0], f"{record[1]} {self.type.choices(explained=bool(ctx.meta.get(_ALL)))}"

    def get_help_extra(self, ctx: click.Context) -> Any:
        """Return the default and the range, for the help. The range of a setting is shown only by --help-all."""
        extra = super().get_help_extra(ctx)
        if self.group in OF_SETTINGS and not ctx.meta.get(_ALL):
            extra.pop("range", None)
        return extra

    def add_to_parser(self, parser: Any, ctx: click.Context) -> None:
        """Let click's parser collect all values of the option. Otherwise it would keep only the last one."""
        multiple, self.multiple = self.multiple, True
        super().add_to_parser(parser, ctx)
        self.multiple = multiple

    def consume_value(self, ctx: click.Context, opts: Mapping[str, Any]) -> tuple[Any, ParameterSource]:
        given = () if self.multiple else opts.get(self.name, ())
        if not self.is_flag and isinstance(self.flag_value, str):  # the option may be given without a value
            given = tuple(value if isinstance(value, str) else self.flag_value for value in given)
        if given:
            first, *more = given
            for other in more:
                if other != first:
                    got = "both" if self.is_flag else f"{first!r:.80} and {other!r:.80}"
                    raise UserError(f"{'/'.join((*self.opts, *self.secondary_opts))}: got {got}: give only one of them")
            opts = {**opts, self.name: first}
        return super().consume_value(ctx, opts)


def _is_rare(one: click.Parameter) -> bool:
    return isinstance(one, SingleValueOption) and one.rare


OptionType: TypeAlias = click.ParamType[Any] | type
Body = TypeVar("Body", bound=Callable[..., object])  # the function of a command


class OptionArguments(TypedDict, total=False):
    """The arguments of `click.Option` that the options here use."""

    type: OptionType
    default: object
    help: str
    metavar: str
    required: bool
    multiple: bool
    is_flag: bool
    flag_value: str
    is_eager: bool
    expose_value: bool
    show_default: bool
    callback: Callable[[click.Context, click.Parameter, Any], object]


def option(
    *names: str, group: str = OWN, rare: bool = False, usual: bool = False, **more: Unpack[OptionArguments]
) -> Callable[[Body], Body]:
    """Return a decorator that adds an option to a command. All options of all commands are made by this function.

    Args:
      names: the names of the option, e.g. "--config". A name without dashes, e.g. "file", is the parameter of the
        command's function that gets the value; without it, click derives the parameter from the option's name.
      group, rare, usual: as in `SingleValueOption`.
    """
    return click.option(*names, cls=SingleValueOption, group=group, rare=rare, usual=usual, **more)


def command(*, epilog: str) -> Callable[[Callable[..., object]], click.Command]:
    """Return a decorator that turns a function into a command. `epilog`: examples for the end of the command's help."""
    return click.command(cls=HelpByGroups, epilog=epilog)


_ALL = "ps_cluster.help_all"  # key in the context of a command: True if its help shows rare options too


def _show_all(context: click.Context, _: click.Parameter, asked: bool) -> None:
    if asked and not context.resilient_parsing:
        context.meta[_ALL] = True
        from ps_cluster.report.terminal import print_line

        for line in context.get_help().splitlines():
            print_line(line)
        context.exit()


_HELP_ALL = click.Option(
    ["--help-all"], is_flag=True, expose_value=False, is_eager=True, callback=_show_all, help="Also show rare options."
)


def examples(*commands: str) -> str:
    """Return example commands for the end of a help text, one on each line. A backslash continues a long command."""
    wrapper = textwrap.TextWrapper(
        EXAMPLE_WIDTH, initial_indent="  ", subsequent_indent="      ", break_long_words=False, break_on_hyphens=False
    )
    return "\n".join(["\b", "Examples:", *(" \\\n".join(wrapper.wrap(f"{PROGRAM} {one}")) for one in commands)])


def write_json_to(file: Path, content: Json) -> bool:
    """Write JSON to a file, or to standard output if `file` is `STDOUT`. Return whether it was standard output."""
    if file == STDOUT:
        print(json.dumps(content, indent=1))
        return True
    write_json(file, content)
    return False


def write_text_to(file: Path, content: str) -> None:
    """Write text to a file, or to standard output if `file` is `STDOUT`."""
    if file == STDOUT:
        print(content, end="")
    else:
        write_whole(file, content)


yes_option = option("--yes", is_flag=True, help="Remove without asking.")


def confirmed(count: int, what: str) -> bool:
    """Ask the user whether to remove `count` things. Return whether the answer was yes. `what`: e.g. "runs"."""
    try:
        answer = click.confirm(f"Remove {'it' if count == 1 else f'these {count} {what}'}?")
    except click.Abort as error:
        raise UserError(
            "--yes: there was no answer, so nothing was removed: give --yes to remove without asking"
        ) from error
    if not answer:
        from ps_cluster.report.terminal import print_line

        print_line("nothing was removed")
    return answer


def json_option(what: str) -> Callable[[Body], Body]:
    """Return the option --json of a command that can write `what`, e.g. "list", as JSON. See `write_json_to`."""
    text = f"Write the {what} to this file as JSON; -: print it."
    return option("--json", "json_file", type=PRINTED_FILE, metavar="FILE", help=text)


def is_given(context: click.Context, name: str) -> bool:
    """Return whether the user gave an option on the command line, even if the value is the default."""
    return context.get_parameter_source(name) == ParameterSource.COMMANDLINE
