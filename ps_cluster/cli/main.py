"""The command line: `ps-cluster run --workers 3 --ps 1`; every command has --help."""

from __future__ import annotations

import os

import click
from click.shell_completion import get_completion_class

from ps_cluster import __version__
from ps_cluster.cli.command_line import COMPLETE, OneLineErrors, command, examples
from ps_cluster.cli.value_types import OneOf

# For each group of commands: the name of each command, and what it does.
GROUPS: dict[str, dict[str, str]] = {
    "Train": {
        "run": "Train on a cluster of processes on this machine.",
        "scale": "Start or stop workers of a run while it trains.",
        "task": "Run one task of a cluster that spans several machines.",
    },
    "Use a trained network": {
        "evaluate": "Score each new checkpoint until training has ended.",
        "predict": "Predict with the best model of a run.",
        "export": "Write the best model for other programs.",
    },
    "Look at runs, data and machine": {
        "runs": "List, compare, show and remove runs.",
        "health": "Tell whether a run is alive and makes progress.",
        "cluster": "Show the tasks of a cluster.",
        "data": "List, fetch, verify, show and remove data sets.",
        "doctor": "Check whether this machine can train.",
    },
    "Compare and measure": {
        "compare": "Train several modes on the same work, and write a report.",
        "sweep": "Search for good settings.",
        "ensemble": "Train several networks, and join them into one.",
        "chaos": "Inject faults into a run, and compare it with undisturbed runs.",
        "bench": "Measure throughput.",
        "simulate": "Predict the throughput of a cluster before you build it.",
    },
    "For other programs": {
        "k8s": "Write manifests for Kubernetes.",
        "slurm": "Write a script for Slurm.",
        "completion": "Print the script with which a shell completes commands.",
    },
}
COMMANDS = [name for group in GROUPS.values() for name in group]


class LazyCommands(OneLineErrors):
    """A group that imports the module of a command only when that command is looked up, so that `--help` stays fast."""

    def list_commands(self, context: click.Context) -> list[str]:
        return COMMANDS

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the names and descriptions of all commands, in the groups of `GROUPS`, without importing a command."""
        for heading, group in GROUPS.items():
            with formatter.section(heading):
                formatter.write_dl([(f"{name:10}", does) for name, does in group.items()])

    def resolve_command(
        self, context: click.Context, words: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        try:
            return super().resolve_command(context, words)
        except click.exceptions.NoSuchCommand as error:  # click suggests only commands that are imported
            raise click.exceptions.NoSuchCommand(error.command_name, possibilities=COMMANDS, ctx=context) from error

    def get_command(self, context: click.Context, name: str) -> click.Command | None:
        """Import and return the command with this name, or return None if there is none."""
        found: click.Command  # besides `compare` in api/, only this method imports modules of ps_cluster/tools/
        match name:
            case "run":
                from ps_cluster.cli.run import run as found
            case "scale":
                from ps_cluster.cli.runs import scale as found
            case "task":
                from ps_cluster.cli.task_command import task as found
            case "evaluate":
                from ps_cluster.cli.trained import evaluate as found
            case "predict":
                from ps_cluster.cli.trained import predict as found
            case "export":
                from ps_cluster.cli.trained import export as found
            case "runs":
                from ps_cluster.cli.runs import runs as found
            case "health":
                from ps_cluster.cli.runs import health as found
            case "cluster":
                from ps_cluster.cli.runs import cluster as found
            case "data":
                from ps_cluster.cli.data import data as found
            case "doctor":
                from ps_cluster.tools.doctor.command import doctor as found
            case "compare":
                from ps_cluster.tools.compare.command import compare as found
            case "sweep":
                from ps_cluster.tools.sweep.command import sweep as found
            case "ensemble":
                from ps_cluster.tools.sweep.command import ensemble as found
            case "chaos":
                from ps_cluster.tools.chaos.command import chaos as found
            case "bench":
                from ps_cluster.tools.bench.command import bench as found
            case "simulate":
                from ps_cluster.tools.simulate.command import simulate as found
            case "k8s":
                from ps_cluster.tools.deploy.kubernetes_command import k8s as found
            case "slurm":
                from ps_cluster.tools.deploy.slurm_command import slurm as found
            case "completion":
                found = completion
            case _:
                return None
        return found


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
