"""Show a run while it goes on: a live view on a terminal, plain lines elsewhere. No TensorFlow."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Protocol, TextIO

from rich.console import Console
from rich.live import Live
from rich.text import Text

from ps_cluster.config import RunConfig
from ps_cluster.data.packed import PackedDataset
from ps_cluster.errors import UserError
from ps_cluster.files.values import printable
from ps_cluster.installation import to_install
from ps_cluster.report import dashboard
from ps_cluster.report.dashboard import Row, RunState
from ps_cluster.report.terminal import Output, SafeConsole
from ps_cluster.runs import logs
from ps_cluster.runs.logs import GENERATED_DATA, PROGRESS, SCORE, TEXT, LogFormat
from ps_cluster.runs.result_rows import EvaluationRow
from ps_cluster.runs.run_dir import RunDir

LINE_EVERY_S = 5.0
REDRAWS_PER_SECOND = 3
_MEASURES = ("loss", "accuracy", "error", "staleness_mean", "learning_rate")
_TOLD = ("phase", "total", "examples", "examples_per_second", "epoch", *_MEASURES)  # beside `step`, as fields of a line


def make_view(stream: TextIO | None = None, clock: Callable[[], float] = time.monotonic) -> ProgressView:
    """Return a live view if `stream` (standard output) is a terminal that can move its cursor, else lines.

    Where the command's lines are JSON, there is no live view.
    """
    console = SafeConsole(Output(stream or sys.stdout), highlight=False)
    redraws = console.can_redraw and logs.chosen().is_text
    return LiveView(console, clock) if redraws else make_lines(stream, clock)


def make_lines(stream: TextIO | None = None, clock: Callable[[], float] = time.monotonic) -> ProgressView:
    """Return a view of lines on `stream` (standard output), in the format of this command."""
    return PlainView(Output(stream or sys.stdout), clock, logs.chosen())


class Lines(Protocol):
    """A destination of plain lines: an `Output` or any text stream."""

    def write(self, text: str, /) -> int: ...

    def flush(self) -> None: ...


class ProgressView:
    """Takes in the events of a run. Its methods don't fail when the reader is gone."""

    def __init__(self, clock: Callable[[], float]):
        self._clock = clock
        self._started_s = clock()
        self._state: RunState | None = None

    def start(self, config: RunConfig, run_dir: RunDir, dataset: PackedDataset) -> None:
        """Take the run's configuration; nothing runs yet."""
        self._started_s = self._clock()
        self._state = RunState(config, run_dir, dataset)
        self._begin(self._state)

    def _begin(self, state: RunState) -> None:
        """Show what is known before anything runs."""

    def notice(self, line: str) -> None:
        """Show one line that stays."""
        raise NotImplementedError

    def tasks(self, tasks: list[dict[str, Any]]) -> None:
        """Take all processes, each `{"type", "index", "pid", "state"}`."""
        if self._state:
            self._state.tasks = tasks

    def progress(self, row: Row) -> None:
        """Take a row of metrics/progress.jsonl."""
        if self._state:
            # A row between two updates has none of these values: keep the last ones.
            known = {name: self._state.row.get(name) for name in _MEASURES if row.get(name) is None}
            lost = {"loss": math.nan} if row.get("diverged") else {}
            self._state.row = {**row, **known, **lost}

    def evaluation(self, row: EvaluationRow) -> None:
        """Take a row of metrics/evaluation.jsonl."""
        if self._state:
            self._state.score(row)

    def close(self) -> None:
        """Restore the terminal. May be called twice."""

    def _seconds(self) -> float:
        return self._clock() - self._started_s


class PlainView(ProgressView):
    """Lines for a log: one per phase, score and notice, and at most one of progress every few seconds."""

    def __init__(self, output: Lines, clock: Callable[[], float], lines: LogFormat = TEXT):
        super().__init__(clock)
        self._output = output
        self._lines = lines
        self._last_line_s = -LINE_EVERY_S
        self._shown: Row = {}

    def _begin(self, state: RunState) -> None:
        warn_of_generated(state.dataset, self.notice)
        self.notice(dashboard.headline(state))
        self.notice(dashboard.task_line(state))
        self.notice(f"run directory {state.run_dir.root}")

    def notice(self, line: str) -> None:
        self._output.write(self._lines.line(line, f"[{dashboard.clock(self._seconds()):>5}] ") + "\n")
        self._output.flush()

    def progress(self, row: Row) -> None:
        super().progress(row)
        due = self._clock() - self._last_line_s >= LINE_EVERY_S
        if self._state and (due or row["phase"] != self._shown.get("phase")):
            self._show(self._state)

    def evaluation(self, row: EvaluationRow) -> None:
        super().evaluation(row)
        self.notice(SCORE(dashboard.score_line(row), **row.fields))

    def close(self) -> None:
        """Show the last row, if it was held back so far."""
        if self._state and self._state.row != self._shown:
            self._show(self._state)

    def _show(self, state: RunState) -> None:
        self._shown = state.row
        self._last_line_s = self._clock()
        told = {name: state.row[name] for name in _TOLD if state.row.get(name) is not None}
        self.notice(PROGRESS(dashboard.progress_line(state), step=state.applied, **told))


class LiveView(ProgressView):
    """A view that redraws itself. Notices and scores are printed above it and stay when it goes."""

    def __init__(self, console: Console, clock: Callable[[], float]):
        super().__init__(clock)
        self._console = console
        self._live: Live | None = None

    def _begin(self, state: RunState) -> None:
        if state.dataset.kind == "synthetic":
            self._console.print(*(Text(line, "bold black on yellow") for line in _banner(state.dataset)), sep="\n")
        self._live = Live(
            get_renderable=lambda: dashboard.draw(state, self._console.width, self._seconds()),
            console=self._console,
            refresh_per_second=REDRAWS_PER_SECOND,
            transient=True,  # the closing table repeats it all
            redirect_stdout=False,
            redirect_stderr=False,
        )
        self._live.start()

    def notice(self, line: str) -> None:
        self._console.print(Text(printable(line)))

    def evaluation(self, row: EvaluationRow) -> None:
        super().evaluation(row)
        self.notice(dashboard.score_line(row))

    def close(self) -> None:
        if self._live:
            self._live.stop()
            self._live = None


def warn_of_generated(dataset: PackedDataset, notify: Callable[[str], None]) -> None:
    """Say, so that nobody misses it, that a data set is generated, if it is."""
    if dataset.kind == "synthetic":
        for line in _banner(dataset) if logs.chosen().is_text else [dashboard.synthetic_notice(dataset)]:
            notify(GENERATED_DATA(line))


def _banner(dataset: PackedDataset) -> list[str]:
    edge, notice = "!" * 60, dashboard.synthetic_notice(dataset)
    return [edge, *(f"!!  {sentence.rstrip('.')}." for sentence in notice.split(". ")), edge]


class SeveralViews(ProgressView):
    """Passes every event on to each view, in their order."""

    def __init__(self, *views: ProgressView):
        super().__init__(time.monotonic)
        self._views = views

    def start(self, config: RunConfig, run_dir: RunDir, dataset: PackedDataset) -> None:
        for view in self._views:
            view.start(config, run_dir, dataset)

    def notice(self, line: str) -> None:
        for view in self._views:
            view.notice(line)

    def tasks(self, tasks: list[Row]) -> None:
        for view in self._views:
            view.tasks(tasks)

    def progress(self, row: Row) -> None:
        for view in self._views:
            view.progress(row)

    def evaluation(self, row: EvaluationRow) -> None:
        for view in self._views:
            view.evaluation(row)

    def close(self) -> None:
        for view in self._views:
            view.close()


@contextmanager
def with_metrics(view: ProgressView, port: int | None, host: str, task: str) -> Iterator[ProgressView]:
    """Yield the view to use within the block: `view` alone or, with a port, one that also serves metrics.

    Args:
      port: to listen at; 0: any that is free; None: serve nothing.
      host: the address to listen at.
      task: the name of this process in the run.
    Raises:
      UserError: prometheus_client is not installed, or nothing can listen there.
    """
    if port is None:
        yield view
        return
    try:
        from ps_cluster.report import metrics  # needs a package of its own
    except ImportError as error:
        needs = f"--metrics-port needs prometheus_client ({error})"
        raise UserError(f"{needs}: {to_install('metrics')}; or leave it out") from error
    seen = metrics.RunMetrics()
    with metrics.serving(host, port, seen) as server:
        yield SeveralViews(view, seen, metrics.Link(view, server.url, task))
