"""The command line: `ps-cluster run --workers 3 --ps 1`; every command has --help."""

from __future__ import annotations

import os
from importlib import import_module

import click

from ps_cluster import __version__
from ps_cluster.cli.options import OneLineErrors, examples
from ps_cluster.system.environment import die_with_caller

# The module of each command. The core knows the tools by this table alone.
COMMANDS = {
    "run": "cli.run",
    "scale": "cli.scale",
    "evaluate": "cli.evaluate",
    "predict": "cli.predict",
    "export": "cli.export",
    "compare": "tools.compare.command",
    "sweep": "tools.sweep.command",
    "ensemble": "tools.sweep.command",
    "simulate": "tools.simulate.command",
    "chaos": "tools.chaos.command",
    "bench": "tools.bench.command",
    "data": "cli.data",
    "runs": "cli.runs",
    "cluster": "cli.cluster",
    "task": "cli.task",
    "health": "cli.health",
    "k8s": "tools.deploy.k8s_command",
    "slurm": "tools.deploy.slurm_command",
    "doctor": "tools.doctor.command",
    "completion": "cli.completion",
}


class LazyCommands(OneLineErrors):
    """A group that imports a command when it is called."""

    def list_commands(self, context: click.Context) -> list[str]:
        return list(COMMANDS)

    def resolve_command(
        self, context: click.Context, words: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        try:
            return super().resolve_command(context, words)
        except click.exceptions.NoSuchCommand as error:  # click looks for the nearest name among what is imported
            raise click.exceptions.NoSuchCommand(
                error.command_name, possibilities=list(COMMANDS), ctx=context
            ) from error

    def get_command(self, context: click.Context, name: str) -> click.Command | None:
        return getattr(import_module(f"ps_cluster.{COMMANDS[name]}"), name) if name in COMMANDS else None


@click.group(
    cls=LazyCommands,
    context_settings={"max_content_width": 120, "show_default": True},
    epilog=examples("doctor", "run --workers 3 --ps 1", "compare --modes async,sync --seeds 1"),
)
@click.version_option(__version__, prog_name="ps-cluster")
def main() -> None:
    """Asynchronous parameter-server training that you can run, break and measure on one machine."""
    die_with_caller()
    os.umask(os.umask(0o022) | 0o022)  # only the user may write to the files of a command
