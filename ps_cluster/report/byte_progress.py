"""Show the progress of a download or of reading a file: a bar on a terminal, else a line after each tenth."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TimeRemainingColumn

from ps_cluster.data.download import OnBytes
from ps_cluster.notices import Notify
from ps_cluster.report.terminal import print_line


@contextmanager
def byte_progress(console: Console, *, lines: bool = True) -> Iterator[tuple[Notify, OnBytes]]:
    """Yield two functions: the first prints a line that stays visible, and the second shows progress.

    Args:
      lines: whether to show progress as lines if there is no terminal.
    """
    if not console.is_terminal or console.is_dumb_terminal:
        yield print_line, every_tenth(print_line) if lines else lambda done_bytes, total_bytes: None
        return
    columns = (BarColumn(), DownloadColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True) as progress:
        bar = progress.add_task("", visible=False)  # until there is progress to show

        def show(done_bytes: int, total_bytes: int | None) -> None:
            progress.update(bar, completed=done_bytes, total=total_bytes, visible=True)

        yield lambda line: console.print(line, soft_wrap=True, highlight=False), show


def every_tenth(notify: Notify) -> OnBytes:
    """Return a function that takes the progress of a download, and calls `notify` whenever another tenth is done."""
    shown = 0

    def progress(done_bytes: int, total_bytes: int | None) -> None:
        nonlocal shown
        tenths = 10 * done_bytes // total_bytes if total_bytes else 0
        if tenths > shown:
            shown = tenths
            notify(f"downloaded {tenths * 10} % of {(total_bytes or 0) / 1e6:.0f} MB")

    return progress
