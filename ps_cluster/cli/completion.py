"""The command `ps-cluster completion`."""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class

from ps_cluster.cli.options import COMPLETE, OneOf, examples
from ps_cluster.report.terminal import print_line

SHELLS = ("bash", "zsh", "fish")
_INSTALLED = "ps-cluster"  # a shell completes programs, and `python cli.py` is none


@click.command(epilog=examples(*(f"completion {shell}" for shell in SHELLS)))
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
