"""The command line: `ps-cluster run --workers 3 --ps 1`; every command has --help."""

from __future__ import annotations

import os
from importlib import import_module

import click
from click.shell_completion import get_completion_class

from ps_cluster import __version__
from ps_cluster.cli.command_line import COMPLETE, OneLineErrors, OneOf, command, examples

# Group → command → its module and what it does. Only this table connects the core with the tools.
GROUPS: dict[str, dict[str, tuple[str, str]]] = {
    "Train": {
        "run": ("cli.run", "Train on a cluster of processes on this machine."),
        "scale": ("cli.runs", "Start or stop workers of a run while it trains."),
        "task": ("cli.task_command", "Run one task of a cluster on several machines."),
    },
    "Use a trained network": {
        "evaluate": ("cli.trained", "Score each new checkpoint until training has ended."),
        "predict": ("cli.trained", "Predict with the best model of a run."),
        "export": ("cli.trained", "Write the best model for other programs."),
    },
    "Look at runs, data and machine": {
        "runs": ("cli.runs", "List, compare, show and remove runs."),
        "health": ("cli.runs", "Tell whether a run is alive and makes progress."),
        "cluster": ("cli.runs", "Show the tasks of a cluster."),
        "data": ("cli.data", "List, fetch, verify, show and remove data sets."),
        "doctor": ("tools.doctor.command", "Check whether this machine can train."),
    },
    "Compare and measure": {
        "compare": ("tools.compare.command", "Train several modes on the same work, with a report."),
        "sweep": ("tools.sweep.command", "Search for good settings."),
        "ensemble": ("tools.sweep.command", "Train several networks, and join them into one."),
        "chaos": ("tools.chaos.command", "Inject faults into a run, and compare it with undisturbed runs."),
        "bench": ("tools.bench.command", "Measure throughput."),
        "simulate": ("tools.simulate.command", "Predict the throughput of a cluster before you build it."),
    },
    "For other programs": {
        "k8s": ("tools.deploy.kubernetes_command", "Write manifests for Kubernetes."),
        "slurm": ("tools.deploy.slurm_command", "Write a script for Slurm."),
        "completion": ("cli.main", "Print the script with which a shell completes commands."),
    },
}
COMMANDS = {name: module for group in GROUPS.values() for name, (module, _) in group.items()}


class LazyCommands(OneLineErrors):
    """A group that imports the module of a command only when the command is called."""

    def list_commands(self, context: click.Context) -> list[str]:
        return list(COMMANDS)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the commands by groups. The table has all texts, so no command is imported."""
        for heading, group in GROUPS.items():
            with formatter.section(heading):
                formatter.write_dl([(f"{name:10}", says) for name, (_, says) in group.items()])

    def resolve_command(
        self, context: click.Context, words: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        try:
            return super().resolve_command(context, words)
        except click.exceptions.NoSuchCommand as error:  # click suggests only commands that are imported
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
    from ps_cluster.system.lifetime import die_with_caller

    die_with_caller()
    os.umask(os.umask(0o022) | 0o022)  # only the user may write to the files of a command


SHELLS = ("bash", "zsh", "fish")
_INSTALLED = "ps-cluster"  # shells complete programs, but not `python cli.py`


@command(epilog=examples(*(f"completion {shell}" for shell in SHELLS)))
@click.argument("shell", type=OneOf(SHELLS), metavar="|".join(SHELLS))
@click.pass_context
def completion(context: click.Context, /, shell: str) -> None:
    """Print the script with which a shell completes commands, options, settings and names of the program ps-cluster.

    \b
    bash: eval "$(ps-cluster completion bash)"         in ~/.bashrc
    zsh:  eval "$(ps-cluster completion zsh)"          in ~/.zshrc
    fish: ps-cluster completion fish | source          in ~/.config/fish/config.fish
    """
    from ps_cluster.report.terminal import print_line

    kind = get_completion_class(shell)
    assert kind is not None  # click has all three
    for line in kind(context.find_root().command, {}, _INSTALLED, COMPLETE).source().splitlines():
        print_line(line)
