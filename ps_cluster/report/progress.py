"""Show a run while it goes on: a live view on a terminal, plain lines elsewhere. No TensorFlow."""

from __future__ import annotations

import math
import sys
import textwrap
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, TextIO

from rich.console import Console, Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from ps_cluster.config import RunConfig, rate_origin
from ps_cluster.config.objectives import OBJECTIVES
from ps_cluster.config.tasks import WORKER
from ps_cluster.data.packed import PackedDataset
from ps_cluster.errors import UserError
from ps_cluster.files.values import counted, printable
from ps_cluster.installation import to_install
from ps_cluster.report.terminal import LEFT, RIGHT, Output, SafeConsole, plain_table
from ps_cluster.runs import logs
from ps_cluster.runs.logs import GENERATED_DATA, PROGRESS, SCORE, TEXT, Line, LogFormat, Notify
from ps_cluster.runs.result_rows import EvaluationRow
from ps_cluster.runs.run_dir import RunDir

# The state of a run as its files tell it, and how it looks.

_STATE_COLOURS = {"running": "green", "starting": "cyan", "restarting": "yellow", "ended": "dim", "failed": "bold red"}
_BAR_WIDTH = 20

Row = dict[str, Any]

SYNTHETIC = "synthetic"  # the data set that stands in for CIFAR-10


@dataclass
class RunState:
    """The newest values of everything reported about a run. `predicts`: what the network predicts, in words."""

    config: RunConfig
    run_dir: RunDir
    dataset: PackedDataset
    tasks: list[Row] = field(default_factory=list)
    row: Row = field(default_factory=dict)
    last_score: EvaluationRow | None = None
    best_score: EvaluationRow | None = None
    predicts: str = ""

    @property
    def phase(self) -> str:
        return str(self.row.get("phase", "starting"))

    @property
    def total(self) -> int:
        return self.row.get("total") or self.config.total_updates(self.dataset.train_examples)

    @property
    def applied(self) -> int:
        return int(self.row.get("applied", 0))

    @property
    def seconds_left(self) -> float | None:
        """Seconds left at the speed of the last seconds; None while no speed is known."""
        speed: float | None = self.row.get("examples_per_second")
        if not speed:
            return None
        left = self.config.schedule.left(self.applied / self.total) * self.total
        # As many as so far: rounds and periods may have more or fewer than the settings say.
        examples = self.row["examples"] / self.applied if self.applied else self.config.examples_per_update
        return left * examples / speed

    def score(self, row: EvaluationRow) -> None:
        if self.best_score is None or row.merit > self.best_score.merit:
            self.best_score = row
        self.last_score = row  # set last, since another thread may draw the view at any moment


def synthetic_notice(dataset: PackedDataset) -> str:
    """Return two sentences that nobody shall miss."""
    instead = real(dataset.name)
    return f"SYNTHETIC DATA: generated {dataset.spec.unit}, not {instead}. No number of this run says anything about {instead}."


def real(dataset: str | None) -> str:
    """Return what a generated data set is not."""
    return "CIFAR-10" if dataset == SYNTHETIC else "real ones"


def headline(state: RunState) -> str:
    config = state.config
    dataset = "synthetic data" if state.dataset.kind == "synthetic" else f"{state.dataset.name} (real)"
    return " · ".join((dataset, config.model.name, config.model.precision, config.mode.name, _crew(config)))


def task_line(state: RunState) -> str:
    """Return what is learned, and by which rule, rate and length, e.g. "10 classes · adam, learning rate 0.001"."""
    config, spec = state.config, state.dataset.spec
    rate = f"{config.optimizer.rule}, learning rate {config.optimizer.learning_rate:g} ({config.schedule.kind})"
    training = config.training
    length = counted(training.epochs, "epoch") if training.steps is None else counted(state.total, "update")
    smoothing = training.label_smoothing
    return " · ".join(
        (
            state.predicts or OBJECTIVES[spec.objective].task(spec.outputs),
            rate,
            f"batch {config.training.batch_size_per_worker}",
            length,
            *([f"label smoothing {smoothing:g}"] if smoothing else []),
            *_image_sizes(state),
        )
    )


def rate_line(state: RunState) -> str:
    """Return where the learning rate is from: without it two runs with other rates look alike."""
    return f"learning rate {state.config.optimizer.learning_rate:g}: {rate_origin(state.config)}"


def few_updates(state: RunState) -> str | None:
    """Return what to do about epochs of a few updates; None where they have enough."""
    return state.config.few_updates(state.dataset.train_examples)


def _image_sizes(state: RunState) -> list[str]:
    """Return how small images are at first, which is why scores, of whole ones, are low then; [] if they are whole."""
    sides = [field.shape[:2] for field in state.dataset.spec.inputs.values() if field.is_image]
    scales = state.config.schedule.image_scales
    if not sides or not scales:
        return []
    sizes = (f"{scale.side(sides[0][0])}x{scale.side(sides[0][1])} until {scale.until:.0%}" for scale in scales)
    return [f"images {', '.join(sizes)} (scores are of whole ones)"]


def progress_line(state: RunState) -> str:
    """Return a row of progress as a line for logs."""
    share = f"{state.applied:,}/{state.total:,} updates ({state.applied / state.total:.0%})"
    return " · ".join((state.phase, share, *_numbers(state), *_time_left(state)))


def score_line(row: EvaluationRow) -> str:
    """Return a score as a line, for logs. The first part is the score that the best model is chosen by."""
    losses = [row.test_loss] if row.validation is None else [row.validation_loss, row.test_loss]
    parts = [f"{score}{'' if loss is None else f', loss {loss:.3f}'}" for score, loss in zip(row.scores, losses)]
    parts[0] += ", best so far" * row.best
    return f"step {row.step:,}: {' · '.join(parts)}"


def draw(state: RunState, width: int, seconds: float) -> Group:
    """Return the live view.

    Args:
      width: columns of the terminal.
      seconds: since the run started.
    """
    parts: list[Any] = [Text(), Text(headline(state), "bold", overflow="ellipsis", no_wrap=True)]
    parts.append(Text(task_line(state), overflow="ellipsis", no_wrap=True))
    parts.append(Text(str(state.run_dir.root), "dim", overflow="ellipsis", no_wrap=True))
    if state.dataset.kind == "synthetic":
        parts.append(Text(f" {synthetic_notice(state.dataset)} ", "bold black on yellow"))
    parts += [Text(), _bar(state, seconds)]
    # Lines are broken only between two measures.
    unbreakable = " · ".join(measure.replace(" ", "\N{NO-BREAK SPACE}") for measure in _numbers(state))
    lines = textwrap.fill(unbreakable.replace(" ·", "\N{NO-BREAK SPACE}·"), width)
    parts.append(Text(lines.replace("\N{NO-BREAK SPACE}", " ")))
    parts += [Text(), _task_table(state, width)]
    if state.last_score and state.best_score:
        last, best = state.last_score, state.best_score
        chosen_by, *others = last.scores
        text = Text(chosen_by, "bold green").append(f" at step {last.step:,}", "default")
        if best is not last:
            text.append(f" · best {best.scores[0].split(' ', 1)[1]} at step {best.step:,}", "default")
        parts += [Text(), text.append("".join(f" · {other}" for other in others), "default")]
    return Group(*parts)


def clock(seconds: float) -> str:
    """Return seconds as `m:ss` or `h:mm:ss`."""
    minutes, second = divmod(max(0, round(seconds)), 60)
    hours, minute = divmod(minutes, 60)
    return f"{hours}:{minute:02}:{second:02}" if hours else f"{minute}:{second:02}"


def _crew(config: RunConfig) -> str:
    if WORKER not in config.mode_kind.cluster.tasks:
        return "1 process"
    workers = f"{config.cluster.workers} worker{'s' * (config.cluster.workers > 1)}"
    return f"{workers} + {config.cluster.parameter_servers} ps" if config.mode_kind.has_parameter_servers else workers


def _numbers(state: RunState) -> list[str]:
    """Return the measures that have a value, as `name value`."""
    formats = {
        "examples_per_second": f"{{:,.0f}} {state.dataset.spec.unit}/s",
        "loss": "loss {:.3f}",
        "accuracy": "accuracy {:.1%}",
        "error": "error {:.4g}",
        "staleness_mean": "staleness {:.2f}",
        "learning_rate": "learning rate {:.3g}",
        "epoch": "epoch {:.2f}",
    }
    if not state.applied:
        return ["no update yet"]
    dropped = state.row.get("dropped")
    return [
        *(text.format(state.row[name]) for name, text in formats.items() if state.row.get(name) is not None),
        *([f"{dropped:,} gradients dropped"] if dropped else []),
    ]


def _time_left(state: RunState) -> list[str]:
    left = state.seconds_left
    return [f"{clock(left)} left"] if left is not None and state.phase == "training" else []


def _bar(state: RunState, seconds: float) -> Table:
    grid = Table.grid(padding=(0, 1), expand=True)
    for _ in range(3):
        grid.add_column(no_wrap=True)
    grid.columns[1].ratio = 1
    moving = not state.row
    bar = ProgressBar(total=state.total, completed=state.applied, pulse=moving, animation_time=seconds)
    after = f"{state.applied:,}/{state.total:,}  {state.applied / state.total:4.0%}  {clock(seconds)}"
    grid.add_row(Text(state.phase, "bold cyan"), bar, Text(" · ".join((after, *_time_left(state)))))
    return grid


def _task_table(state: RunState, width: int) -> Table:
    """Return a table with a row per process and, with enough room, a bar of each worker's share of the updates."""
    roomy = width >= 76
    last = {state.dataset.spec.unit: RIGHT, "share of the updates" if roomy else "share": LEFT}
    table = plain_table(task=LEFT, pid=RIGHT, state=LEFT, updates=RIGHT, **last)
    work, trainer = _work(state), state.config.mode_kind.trainer_type
    all_updates = sum(row["updates"] for row in work.values())
    for task in sorted(state.tasks, key=lambda task: (task["type"] != trainer, task["type"], task["index"])):
        done = work.get(task["index"]) if task["type"] == trainer else None
        counts = (f"{done['updates']:,}", f"{done['examples']:,}") if done else ("", "")
        share = _share(done["updates"] / all_updates, roomy) if done and all_updates else ""
        name = f"{task['type']} {task['index']}" if task["type"] in ("worker", "ps") else task["type"]
        style = _STATE_COLOURS.get(task["state"], "default")
        table.add_row(name, str(task.get("pid") or "–"), Text(task["state"], style), *counts, share)
    return table


def _work(state: RunState) -> dict[int, Row]:
    """Return worker index → updates and examples of all its processes."""
    work: dict[int, Row] = {}
    for row in state.row.get("workers", []):
        sums = work.setdefault(row["index"], {"updates": 0, "examples": 0})
        for name in sums:
            sums[name] += row[name]
    return work


def _share(share: float, roomy: bool) -> Text:
    text = Text(f"{share:4.0%}")
    if roomy:
        text.append(" " + "━" * math.ceil(share * _BAR_WIDTH), "green")
    return text


# The views: each takes in the events of a run.

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


class ProgressView:
    """Takes in the events of a run. Its methods don't fail when the reader is gone."""

    def __init__(self, clock: Callable[[], float]):
        self._clock = clock
        self._started_s = clock()
        self._state: RunState | None = None

    def start(self, config: RunConfig, run_dir: RunDir, dataset: PackedDataset, predicts: str = "") -> None:
        """Take the run's configuration; nothing runs yet. `predicts`: what the network predicts; "": as the objective says."""
        self._started_s = self._clock()
        self._state = RunState(config, run_dir, dataset, predicts=predicts)
        self._begin(self._state)

    def _begin(self, state: RunState) -> None:
        """Show what is known before anything runs."""

    def notice(self, line: Line) -> None:
        """Show one line that stays."""

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

    def __init__(self, output: Output | TextIO, clock: Callable[[], float], lines: LogFormat = TEXT):
        super().__init__(clock)
        self._output = output
        self._lines = lines
        self._last_line_s = -LINE_EVERY_S
        self._shown: Row = {}

    def _begin(self, state: RunState) -> None:
        warn_of_generated(state.dataset, self.notice)
        self.notice(headline(state))
        self.notice(task_line(state))
        self.notice(rate_line(state))
        if few := few_updates(state):
            self.notice(few)
        self.notice(f"run directory {state.run_dir.root}")

    def notice(self, line: Line) -> None:
        self._output.write(self._lines.line(line, f"[{clock(self._seconds()):>5}] ") + "\n")
        self._output.flush()

    def progress(self, row: Row) -> None:
        super().progress(row)
        due = self._clock() - self._last_line_s >= LINE_EVERY_S
        if self._state and (due or row["phase"] != self._shown.get("phase")):
            self._show(self._state)

    def evaluation(self, row: EvaluationRow) -> None:
        super().evaluation(row)
        self.notice(SCORE(score_line(row), **row.fields))

    def close(self) -> None:
        """Show the last row, if it was held back so far."""
        if self._state and self._state.row != self._shown:
            self._show(self._state)

    def _show(self, state: RunState) -> None:
        self._shown = state.row
        self._last_line_s = self._clock()
        told = {name: state.row[name] for name in _TOLD if state.row.get(name) is not None}
        self.notice(PROGRESS(progress_line(state), step=state.applied, **told))


class LiveView(ProgressView):
    """A view that redraws itself. Notices and scores are printed above it and stay when it goes."""

    def __init__(self, console: Console, clock: Callable[[], float]):
        super().__init__(clock)
        self._console = console
        self._live: Live | None = None

    def _begin(self, state: RunState) -> None:
        if state.dataset.kind == "synthetic":
            self._console.print(*(Text(line, "bold black on yellow") for line in _banner(state.dataset)), sep="\n")
        self._console.print(Text(rate_line(state)))
        if few := few_updates(state):
            self._console.print(Text(few, "yellow"))
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
        self.notice(score_line(row))

    def close(self) -> None:
        if self._live:
            self._live.stop()
            self._live = None


def warn_of_generated(dataset: PackedDataset, notify: Notify) -> None:
    """Say, so that nobody misses it, that a data set is generated, if it is."""
    if dataset.kind == "synthetic":
        for line in _banner(dataset) if logs.chosen().is_text else [synthetic_notice(dataset)]:
            notify(GENERATED_DATA(line))


def _banner(dataset: PackedDataset) -> list[str]:
    edge, notice = "!" * 60, synthetic_notice(dataset)
    return [edge, *(f"!!  {sentence.rstrip('.')}." for sentence in notice.split(". ")), edge]


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
    metered = metrics.RunMetrics(view, task)
    with metrics.serving(host, port, metered):
        yield metered
