"""Show a run while it trains: a live view on a terminal, plain lines elsewhere. Imports no TensorFlow."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable, Sequence
from typing import TextIO

from rich.console import Console
from rich.live import Live
from rich.text import Text

from ps_cluster.config import RunConfig
from ps_cluster.data.packed import PackedDataset
from ps_cluster.files.values import printable
from ps_cluster.notices import Line
from ps_cluster.report.closing_table import RUN_DIRECTORY
from ps_cluster.report.live_view import draw
from ps_cluster.report.run_state import (
    RunState,
    TaskState,
    clock_text,
    score_line,
    synthetic_banner,
    warn_of_generated,
)
from ps_cluster.report.terminal import Output, SafeConsole
from ps_cluster.runs import logs
from ps_cluster.runs.logs import PROGRESS, SCORE, TEXT, LogFormat
from ps_cluster.runs.monitor import Monitor
from ps_cluster.runs.result_rows import EvaluationRow, ProgressRow
from ps_cluster.runs.run_dir import RunDir

LINE_EVERY_S = 5.0
REDRAWS_PER_SECOND = 3
_MEASURES = {"loss", "accuracy", "error", "staleness_mean", "learning_rate"}


def make_view(stream: TextIO | None = None, clock: Callable[[], float] = time.monotonic) -> ProgressView:
    """Return a live view if `stream` is a terminal that can move its cursor, else a view that writes plain lines.

    There is no live view if the command prints its lines as JSON. `stream`: standard output by default.
    """
    console = SafeConsole(Output(stream or sys.stdout), highlight=False)
    redraws = console.can_redraw and logs.chosen().is_text
    return LiveView(console, clock) if redraws else make_lines(stream, clock)


def make_lines(stream: TextIO | None = None, clock: Callable[[], float] = time.monotonic) -> ProgressView:
    """Return a view that writes lines to `stream`, as text or as JSON, whichever this command prints.

    `stream`: standard output by default.
    """
    return PlainView(Output(stream or sys.stdout), clock, logs.chosen())


class ProgressView:
    """A view that receives the events of a run and shows them. Its methods do not fail after the output was closed."""

    def __init__(self, clock: Callable[[], float]):
        self._clock = clock
        self._started_s = clock()
        self._state: RunState | None = None

    def start(self, config: RunConfig, run_dir: RunDir, dataset: PackedDataset, predicts: str = "") -> None:
        """Receive the configuration of the run, before anything runs.

        `predicts`: what the network predicts, in words; if it is empty, the words of the objective are shown.
        """
        self._started_s = self._clock()
        self._state = RunState(config, run_dir, dataset, predicts=predicts)
        self._begin(self._state)

    def _begin(self, state: RunState) -> None:
        """Show what is known before anything runs."""

    def notice(self, line: Line) -> None:
        """Show a line that stays visible when the view is redrawn or closed."""

    def tasks(self, tasks: Sequence[TaskState]) -> None:
        """Receive the states of all processes."""
        if self._state:
            self._state.tasks = tasks

    def progress(self, row: ProgressRow) -> None:
        """Receive a row of metrics/progress.jsonl."""
        if self._state:
            # A row without new updates has none of these values, so the last ones are kept.
            before = self._state.row.model_dump(include=_MEASURES) if self._state.row else {}
            lost = {"loss": math.nan} if row.diverged else {}
            new = row.model_dump(include=_MEASURES, exclude_none=True)
            self._state.row = row.model_copy(update=before | new | lost)

    def evaluation(self, row: EvaluationRow) -> None:
        """Receive a row of metrics/evaluation.jsonl."""
        if self._state:
            self._state.score(row)

    @property
    def _monitor(self) -> Monitor:
        return self._state.monitor if self._state else Monitor()

    def close(self) -> None:
        """Restore the terminal. May be called twice."""

    def _seconds(self) -> float:
        return self._clock() - self._started_s


class PlainView(ProgressView):
    """A view that writes a line for each phase, score and notice, and every few seconds a line about the progress."""

    def __init__(self, output: Output | TextIO, clock: Callable[[], float], lines: LogFormat = TEXT):
        super().__init__(clock)
        self._output = output
        self._lines = lines
        self._last_line_s = -LINE_EVERY_S
        self._shown: ProgressRow | None = None

    def _begin(self, state: RunState) -> None:
        warn_of_generated(state.dataset, self.notice)
        for line in (state.headline, state.task_line, state.rate_line, state.few_updates):
            if line is not None:
                self.notice(line)
        self.notice(f"{RUN_DIRECTORY} {state.run_dir.root}")

    def notice(self, line: Line) -> None:
        self._output.write(self._lines.line(line, f"[{clock_text(self._seconds()):>5}] ") + "\n")
        self._output.flush()

    def progress(self, row: ProgressRow) -> None:
        super().progress(row)
        is_due = self._clock() - self._last_line_s >= LINE_EVERY_S
        if self._state and (is_due or self._shown is None or row.phase != self._shown.phase):
            self._show(self._state)

    def evaluation(self, row: EvaluationRow) -> None:
        super().evaluation(row)
        self.notice(SCORE(score_line(row, self._monitor), **row.fields))

    def close(self) -> None:
        """Show the last row, unless a line has shown it already."""
        if self._state and self._state.row != self._shown:
            self._show(self._state)

    def _show(self, state: RunState) -> None:
        self._shown = state.row
        self._last_line_s = self._clock()
        fields = state.row.fields if state.row else {}
        self.notice(PROGRESS(state.progress_line, step=state.applied, **fields))


class LiveView(ProgressView):
    """A view that redraws itself. Notices and scores are printed above it, and stay when it is closed."""

    def __init__(self, console: Console, clock: Callable[[], float]):
        super().__init__(clock)
        self._console = console
        self._live: Live | None = None

    def _begin(self, state: RunState) -> None:
        if state.dataset.kind == "synthetic":
            banner = synthetic_banner(state.dataset)
            self._console.print(*(Text(line, "bold black on yellow") for line in banner), sep="\n")
        self._console.print(Text(state.rate_line))
        if state.few_updates:
            self._console.print(Text(state.few_updates, "yellow"))
        self._live = Live(
            get_renderable=lambda: draw(state, self._console.width, self._seconds()),
            console=self._console,
            refresh_per_second=REDRAWS_PER_SECOND,
            transient=True,  # the closing table repeats it all
            redirect_stdout=False,
            redirect_stderr=False,
        )
        self._live.start()

    def notice(self, line: Line) -> None:
        self._console.print(Text(printable(str(line))))

    def evaluation(self, row: EvaluationRow) -> None:
        super().evaluation(row)
        self.notice(score_line(row, self._monitor))

    def close(self) -> None:
        if self._live:
            self._live.stop()
            self._live = None
