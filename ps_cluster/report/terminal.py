"""Print to a terminal or pipe that may be closed at any time. Closing it does not change the exit code of a run."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable, Iterable, Iterator
from typing import IO, Any, TypedDict, cast

from rich.console import Console, ConsoleOptions, JustifyMethod, OverflowMethod, RenderableType
from rich.measure import Measurement
from rich.segment import Segment
from rich.table import Table
from rich.text import Text

from ps_cluster.files.values import one_line, printable
from ps_cluster.notices import Line
from ps_cluster.runs import logs
from ps_cluster.runs.logs import ERROR, ERROR_PREFIX

_WIDEST_IN_A_PIPE = 10_000  # characters
_ASCII = str.maketrans({"·": "|", "–": "-", "━": "-"})


def make_console() -> SafeConsole:
    """Return a console on standard output that survives a closed terminal and shows any text literally.

    The console prints nothing if the command prints its lines as JSON, because a console's output is for people.
    """
    return SafeConsole(Output(sys.stdout), quiet=not logs.chosen().is_text)


def print_line(line: Line) -> None:
    """Write a line to standard output, in the format of this command's lines (text or JSON). Ignore a closed output."""
    print(logs.chosen().line(line), file=Output(sys.stdout), flush=True)


def print_note(line: Line) -> None:
    """Write a line to standard error, so that it is not part of the output. Control characters become `?`."""
    print(printable(str(line)), file=Output(sys.stderr), flush=True)


def print_error(message: str) -> None:
    """Write `Error: message` to standard error, on one line of less than 2,000 characters. Ignore a closed output."""
    print(logs.chosen().line(ERROR(one_line(message)), ERROR_PREFIX), file=Output(sys.stderr), flush=True)


class SafeConsole(Console):
    """A console that can print untrusted text: brackets are not markup, and escape sequences in the text do nothing."""

    def __init__(self, file: Output, *, highlight: bool = True, quiet: bool = False):
        # `Output` has all that rich needs: write, flush, encoding, fileno and isatty.
        super().__init__(file=cast(IO[str], file), markup=False, emoji=False, highlight=highlight, quiet=quiet)

    @property
    def can_redraw(self) -> bool:
        """True if the reader is a terminal that can move its cursor."""
        return cast(Output, self.file).isatty() and self.is_terminal and not self.is_dumb_terminal

    def print(self, *objects: Any, **options: Any) -> None:
        """Print as rich does.

        If the output is not a terminal, a table is as wide as its contents, so that names are not broken into lines.
        """
        before = self.width
        if len(objects) == 1 and isinstance(objects[0], Table) and not self.is_terminal and "COLUMNS" not in os.environ:
            wide = self.options.update(max_width=_WIDEST_IN_A_PIPE)
            self.width = max(before, Measurement.get(self, wide, objects[0]).maximum)
        try:
            super().print(*objects, **options)
        finally:
            self.width = before

    def render_str(self, text: str, **options: Any) -> Text:
        return super().render_str(_printable_lines(text), **options)  # make it printable before its width is measured

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterator[Segment]:
        for segment in super().render(renderable, options):
            yield segment if segment.control else segment._replace(text=_printable_lines(segment.text))


class ColumnOptions(TypedDict, total=False):
    """The options that this package gives to columns of tables. They are options of the library Rich."""

    no_wrap: bool
    justify: JustifyMethod
    overflow: OverflowMethod
    ratio: int
    max_width: int


LEFT: ColumnOptions = {"no_wrap": True}
RIGHT: ColumnOptions = {"no_wrap": True, "justify": "right"}
FOLD: ColumnOptions = {"overflow": "fold"}


def plain_table(**columns: ColumnOptions) -> Table:
    """Return a table without borders. `columns`: the options of each column, e.g. `RIGHT`, by its heading."""
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    for heading, options in columns.items():
        table.add_column(heading, **options)
    return table


def facts_table(rows: Iterable[tuple[str, RenderableType]]) -> Table:
    """Return a table with a row for each label and its value."""
    table = Table.grid(padding=(0, 2))
    table.add_column(style="dim", no_wrap=True)
    table.add_column(**FOLD)
    for label, value in rows:
        table.add_row(label, value)
    return table


def megabytes(size: int) -> str:
    """Return a size as text, e.g. "184 MB"."""
    return f"{size / 1e6:,.0f} MB" if size >= 1e7 else f"{size / 1e6:.1f} MB" if size >= 1e5 else f"{size:,} B"


def _printable_lines(text: str) -> str:
    return "\n".join(map(printable, text.split("\n")))


class Output:
    """A text stream that ignores writes once its reader has gone, and replaces characters that its encoding lacks."""

    def __init__(self, stream: IO[str]):
        self._stream = stream
        self._gone = False
        self.encoding = getattr(stream, "encoding", None) or "utf-8"

    def write(self, text: str) -> int:
        try:
            text.encode(self.encoding)
        except UnicodeEncodeError:
            text = text.translate(_ASCII).encode(self.encoding, "replace").decode(self.encoding)
        self._try(lambda: self._stream.write(text))
        return len(text)

    def flush(self) -> None:
        self._try(self._stream.flush)

    def isatty(self) -> bool:
        return not self._gone and self._stream.isatty()

    def fileno(self) -> int:
        return self._stream.fileno()

    def _try(self, action: Callable[[], Any]) -> None:
        if self._gone:
            return
        try:
            action()
        except (OSError, ValueError):  # a broken pipe, a terminal that was closed, a closed file
            self._gone = True
            # Drop the buffered text. Otherwise the interpreter would raise an error when it flushes the output at exit.
            with contextlib.suppress(OSError, ValueError):
                nowhere = os.open(os.devnull, os.O_WRONLY)
                os.dup2(nowhere, self._stream.fileno())
                os.close(nowhere)
