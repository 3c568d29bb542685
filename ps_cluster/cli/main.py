"""The command line: `ps-cluster run --workers 3 --ps 1`; every command has --help."""

from __future__ import annotations

import os
from importlib import import_module

import click
from click.shell_completion import get_completion_class

from ps_cluster import __version__
from ps_cluster.cli.command_line import COMPLETE, OneLineErrors, OneOf, command, examples
from ps_cluster.report.terminal import print_line
from ps_cluster.system.environment import die_with_caller

# The module of each command. The core knows the tools by this table alone.
COMMANDS = {
    "run": "cli.run",
    "scale": "cli.runs",
    "evaluate": "cli.trained",
    "predict": "cli.trained",
    "export": "cli.trained",
    "compare": "tools.compare.command",
    "sweep": "tools.sweep.command",
    "ensemble": "tools.sweep.command",
    "simulate": "tools.simulate.command",
    "chaos": "tools.chaos.command",
    "bench": "tools.bench.command",
    "data": "cli.data",
    "runs": "cli.runs",
    "cluster": "cli.runs",
    "task": "cli.task",
    "health": "cli.runs",
    "k8s": "tools.deploy.kubernetes",
    "slurm": "tools.deploy.slurm_command",
    "doctor": "tools.doctor.command",
    "completion": "cli.main",
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


SHELLS = ("bash", "zsh", "fish")
_INSTALLED = "ps-cluster"  # a shell completes programs, and `python cli.py` is none


@command(epilog=examples(*(f"completion {shell}" for shell in SHELLS)))
@click.argument("shell", type=OneOf(SHELLS), metavar="|".join(SHELLS))
@click.pass_context
def completion(context: click.Context, /, shell: str) -> None:
    """Print what lets a shell complete commands, options, settings and names of the installed program ps-cluster.

    \b
    bash: eval "$(ps-cluster completion bash)"         in ~/.bashrc
    zsh:  eval "$(ps-cluster completion zsh)"          in ~/.zshrc
    fish: ps-cluster completion fish | source          in ~/.config/fish/config.fish
    """
    kind = get_completion_class(shell)
    assert kind is not None  # click has all three
    for line in kind(context.find_root().command, {}, _INSTALLED, COMPLETE).source().splitlines():
        print_line(line)
