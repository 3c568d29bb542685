"""Parts of several commands: write to a file or to standard output; ask a question."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click

from ps_cluster.errors import UserError
from ps_cluster.files.places import check_file
from ps_cluster.parameter_types import OutputPath

STDOUT = Path("-")


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


def confirmed(question: str) -> bool:
    """Ask, and return whether the answer was yes. Raises UserError, which names --yes, where nobody answers."""
    try:
        return click.confirm(question)
    except click.Abort as error:
        raise UserError("--yes: nobody has answered, and nothing was removed: give --yes to remove unasked") from error
