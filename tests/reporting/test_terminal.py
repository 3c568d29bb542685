"""What is printed for a person, when nobody is there any more."""

import os
import pty
import subprocess
import sys
from pathlib import Path

import pytest

PROJECT = Path(__file__).parents[2]


@pytest.mark.parametrize(
    "command",
    [
        "from ps_cluster.reporting.terminal import make_console as m; m().print('a table'); m().print('and another')",
        "from ps_cluster.reporting.terminal import print_error as p; p('a mistake'); p('and another')",
        "from ps_cluster.reporting.progress import make_view; make_view().notice('a line')",
    ],
)
def test_a_program_whose_terminal_was_closed_ends_as_if_it_were_there(command):
    """With 0, where Python itself would say 120: it can't flush what is left in standard output."""
    terminal, end = pty.openpty()
    code = f"input(); {command}"
    process = subprocess.Popen(
        [sys.executable, "-c", code], cwd=PROJECT, stdin=subprocess.PIPE, stdout=end, stderr=end, start_new_session=True
    )
    os.close(end)
    os.close(terminal)
    process.communicate(b"\n", timeout=60)
    assert process.returncode == 0


def test_a_command_whose_terminal_was_closed_says_bad_input_all_the_same():
    terminal, end = pty.openpty()
    os.close(terminal)
    command = [sys.executable, "cli.py", "run", "--workers", "0"]
    assert subprocess.run(command, cwd=PROJECT, stdin=end, stdout=end, stderr=end, timeout=60).returncode == 2
    os.close(end)
