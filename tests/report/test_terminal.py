"""What is printed for a person: when nobody is there any more, and when the text is from somebody who means harm."""

import io
import os
import pty
import re
import subprocess
import sys
from pathlib import Path

import pytest
from rich.live import Live
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from ps_cluster.report.progress import PlainView
from ps_cluster.report.terminal import Output, SafeConsole, print_error, print_line
from tests.helpers.real_cluster import start_in_session

pytestmark = pytest.mark.slow

PROJECT = Path(__file__).parents[2]


@pytest.mark.parametrize(
    "command",
    [
        "from ps_cluster.report.terminal import make_console as m; m().print('a table'); m().print('and another')",
        "from ps_cluster.report.progress import make_view; make_view().notice('a line')",
    ],
)
def test_a_program_whose_terminal_was_closed_ends_as_if_it_were_there(command):
    """With 0, where Python itself would say 120: it can't flush what is left in standard output."""
    terminal, end = pty.openpty()
    code = f"input(); {command}"
    process = start_in_session([sys.executable, "-c", code], cwd=PROJECT, stdin=subprocess.PIPE, stdout=end, stderr=end)
    os.close(end)
    os.close(terminal)
    process.communicate("\n", timeout=60)
    assert process.returncode == 0


def test_a_command_whose_terminal_was_closed_says_bad_input_all_the_same():
    terminal, end = pty.openpty()
    os.close(terminal)
    command = [sys.executable, "cli.py", "run", "--workers", "0"]
    assert subprocess.run(command, cwd=PROJECT, stdin=end, stdout=end, stderr=end, timeout=60).returncode == 2
    os.close(end)


NASTY = "[bold]x[/bold] :smile: \x1b[2J\x9b1A\u202e"  # (rich itself drops \a \b \v \f \r)
HARMLESS = "[bold]x[/bold] :smile: ?[2J?1A?"
STYLES = re.compile(r"\x1b\[[0-9;]*m")


class Terminal(io.StringIO):
    """What a terminal gets. It says that it is one."""

    encoding = "utf-8"

    def isatty(self):
        return True


def shown(*renderables):
    """What a console writes to a terminal of 80 columns for these, without its own styles."""
    terminal = Terminal()
    console = SafeConsole(Output(terminal))
    console.width = 80
    for renderable in renderables:
        console.print(renderable)
    return STYLES.sub("", terminal.getvalue())


def test_a_console_shows_brackets_escapes_and_controls_as_text():
    assert shown(NASTY) == HARMLESS + "\n"
    assert shown(Text(NASTY, "bold")) == HARMLESS + "\n"


def test_tables_and_all_that_is_inside_others_show_them_as_text_too():
    table = Table(title=NASTY)
    table.add_column(NASTY, no_wrap=True)
    table.add_row(NASTY)
    text = shown(Padding(table, 1))
    assert text.count(HARMLESS) == 3 and "\x1b" not in text and "\x9b" not in text


def test_a_live_view_shows_them_as_text_and_still_moves_the_cursor_itself(monkeypatch):
    monkeypatch.setenv("TERM", "xterm")
    terminal = Terminal()
    console = SafeConsole(Output(terminal))
    console.width = 80
    with Live(Text(NASTY), console=console, auto_refresh=False, transient=True) as live:
        live.refresh()
        console.print(NASTY)
    text = terminal.getvalue()
    assert HARMLESS in text and "\x1b[2J" not in text and "\x9b" not in text
    assert "\x1b[?25l" in text, "the view hides the cursor: nothing was drawn at all"


@pytest.mark.parametrize(
    ("say", "stream"),
    [
        (print_line, "stdout"),
        (print_error, "stderr"),
        (lambda line: PlainView(Output(sys.stdout), lambda: 0.0).notice(line), "stdout"),
    ],
)
def test_lines_for_a_person_are_one_line_without_escapes(monkeypatch, say, stream):
    terminal = Terminal()
    monkeypatch.setattr(sys, stream, terminal)
    say(f"first {NASTY}\nsecond")
    (line,) = terminal.getvalue().splitlines()
    assert HARMLESS in line and line.isprintable() and line.endswith("second")


def test_an_error_is_shorter_than_2000_characters(monkeypatch):
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    print_error("x" * 100_000)
    assert len(terminal.getvalue()) < 2000


def test_no_other_console_is_made_and_no_other_print_is_used_where_text_from_elsewhere_is_said():
    files = [PROJECT / "cli.py", *(PROJECT / "ps_cluster").rglob("*.py"), *(PROJECT / "benchmarks").glob("*.py")]
    makes = re.compile(r"(?<![A-Za-z_])Console\(|click\.s?echo\(|notify=(print|click\.echo)\b|Console\(.*markup=True")
    found = [
        f"{file.relative_to(PROJECT)}: {line.strip()}"
        for file in files
        for line in file.read_text().splitlines()
        if makes.search(line) and not line.startswith("class SafeConsole(Console)")
    ]
    assert found == []


def test_a_real_terminal_gets_no_escape_of_a_path(tmp_path):
    """The terminal's side of a pseudo-terminal is what would obey."""
    (tmp_path / "file").write_text("in the way")
    terminal, end = pty.openpty()
    path = f"{tmp_path}/file/\x1b[2J[bold red]x[/bold red]\x07"
    command = [sys.executable, "cli.py", "run", "--dataset", "cifar10", "--run-dir", path]
    subprocess.run(command, cwd=PROJECT, stdin=end, stdout=end, stderr=end, timeout=60)
    os.close(end)
    seen = os.read(terminal, 100_000)
    os.close(terminal)
    assert b"?[2J[bold red]x[/bold red]?" in seen and b"\x1b" not in seen and b"\x07" not in seen
