"""The command line: `ps-cluster run --workers 3 --ps 1`; every command has --help."""

from __future__ import annotations

import os
from importlib import import_module

import click

from ps_cluster import __version__
from ps_cluster.command_line import OneLineErrors
from ps_cluster.processes.lifeline import die_with_caller

COMMANDS = ("run", "evaluate", "compare", "simulate", "chaos", "bench", "data", "task")


class LazyCommands(OneLineErrors):
    """A group that imports a command when it is called, from the module of the same name."""

    def list_commands(self, context: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, context: click.Context, name: str) -> click.Command | None:
        return getattr(import_module(f"ps_cluster.commands.{name}"), name) if name in COMMANDS else None


@click.group(cls=LazyCommands, context_settings={"max_content_width": 120, "show_default": True})
@click.version_option(__version__, prog_name="ps-cluster")
def main() -> None:
    """Asynchronous parameter-server training that you can run, break and measure on one machine."""
    die_with_caller()
    os.umask(os.umask(0o022) | 0o022)  # only the user may write to the files of a command
