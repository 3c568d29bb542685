"""Check command lines in documents without running them."""

from __future__ import annotations

from collections.abc import Sequence

import click
from click.testing import CliRunner

from ps_cluster.cli.main import main


def assert_sound(words: Sequence[str]) -> None:
    """Assert that the program accepts these words and, if there is a --dry-run, that the configuration is valid."""
    context = _read(words)
    options = {parameter.name for parameter in context.command.params}
    if "dry_run" in options and not context.params.get("runs"):
        result = CliRunner().invoke(main, [*words, *([] if "--dry-run" in words else ["--dry-run"])])
        assert result.exit_code == 0 and "nothing was started" in result.stdout, result.output


def _read(words: Sequence[str]) -> click.Context:
    """Parse a command line without running it, and return its context."""
    context = main.make_context("ps-cluster", list(words))
    while isinstance(context.command, click.Group):
        name, command, rest = context.command.resolve_command(context, [*context._protected_args, *context.args])
        assert command is not None, name
        context = command.make_context(name, rest, parent=context)
    return context
