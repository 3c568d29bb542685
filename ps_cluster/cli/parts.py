"""Parts of several commands: write to a file or to standard output; options of `task`; ask a question."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from ps_cluster.cli.options import Body, Number, OneOf, OutputPath, Whole, option
from ps_cluster.config import LONGEST_SECONDS
from ps_cluster.config.options import CONFIG_OPTIONS
from ps_cluster.errors import UserError
from ps_cluster.files.writing import check_file
from ps_cluster.runs.logs import FORMATS, LOG_FORMAT, TEXT

STDOUT = Path("-")
# Options for settings, of a command that writes `task` commands: --min-workers is that of `task`, and only a `run` scales.
OPTIONS_OF_TASKS = tuple(name for name in CONFIG_OPTIONS if name not in ("--min-workers", "--max-workers"))


class FileOrStdout(OutputPath):
    """A parameter type: a file to write, or - for standard output."""

    def convert(self, value: Any, parameter: click.Parameter | None, context: click.Context | None) -> Path:
        return STDOUT if str(value) == "-" else super().convert(value, parameter, context)


TEXT_FILE = JSON_FILE = FileOrStdout(check_file)


def write_json_to(file: Path, content: Any) -> bool:
    """Write content to a file of `FileOrStdout`. Return whether it was standard output."""
    from ps_cluster.files.writing import write_json

    if file == STDOUT:
        print(json.dumps(content, indent=1))
        return True
    write_json(file, content)
    return False


def write_text_to(file: Path, content: str) -> None:
    """Write lines to a file of `FileOrStdout`."""
    from ps_cluster.files.writing import write_whole

    if file == STDOUT:
        print(content, end="")
    else:
        write_whole(file, content)


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


def confirmed(question: str) -> bool:
    """Ask, and return whether the answer was yes. Raises UserError, which names --yes, where nobody answers."""
    try:
        return click.confirm(question)
    except click.Abort as error:
        raise UserError("--yes: nobody has answered, and nothing was removed: give --yes to remove unasked") from error


# Options of several commands for those who watch a run: the format of its lines, its metrics.

LARGEST_PORT, LOOPBACK = 65_535, "127.0.0.1"
METRICS_OPTIONS = ("metrics_port", "metrics_host")


def log_format_option(command: Body) -> Body:
    """Add --log-format to a command. It counts from here on, also for the processes that the command starts."""

    def choose(context: click.Context, parameter: click.Parameter, name: str) -> None:
        os.environ[LOG_FORMAT] = name

    text = "How lines are written: json is one object a line, for programs; also in logs/."
    kind = OneOf(tuple(FORMATS))
    return option(
        "--log-format", type=kind, default=TEXT.name, is_eager=True, expose_value=False, callback=choose, help=text
    )(command)


def metrics_options(command: Body) -> Body:
    """Add --metrics-port and --metrics-host to a command, for `progress.with_metrics`."""
    where = "The address for --metrics-port. Whoever reaches it can read the metrics."
    add = option("--metrics-host", default=LOOPBACK, help=where)
    text = "Serve metrics for Prometheus at this port; 0: any that is free."
    return option("--metrics-port", type=Whole(0, LARGEST_PORT), help=text)(add(command))
