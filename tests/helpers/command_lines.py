"""Read command lines of documents without carrying them out."""

from __future__ import annotations

from collections.abc import Sequence

import click
from click.testing import CliRunner

from ps_cluster.cli.main import main


def assert_sound(words: Sequence[str]) -> None:
    """Assert that the program takes these words and, of a command with --dry-run, that its configuration is valid."""
    context = _read(words)
    options = {parameter.name for parameter in context.command.params}
    if "dry_run" in options and not context.params.get("runs"):
        result = CliRunner().invoke(main, [*words, *([] if "--dry-run" in words else ["--dry-run"])])
        assert result.exit_code == 0 and "nothing was started" in result.stdout, result.output


def _read(words: Sequence[str]) -> click.Context:
    """Return the context of a command line that was read and not carried out."""
    context = main.make_context("ps-cluster", list(words))
    while isinstance(context.command, click.Group):
        name, command, rest = context.command.resolve_command(context, [*context._protected_args, *context.args])
        assert command is not None, name
        context = command.make_context(name, rest, parent=context)
    return context
