"""Keep the state of a run as its files tell it; draw it or format it as a line. No TensorFlow, clock or output."""

from __future__ import annotations

import math
import textwrap
from dataclasses import dataclass, field
from typing import Any

from rich.console import Group
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from ps_cluster.config import RunConfig
from ps_cluster.config.modes import WORKER
from ps_cluster.config.objectives import OBJECTIVES
from ps_cluster.data.packed import PackedDataset
from ps_cluster.runs.result_rows import EvaluationRow
from ps_cluster.runs.run_dir import RunDir

_STATE_COLOURS = {"running": "green", "starting": "cyan", "restarting": "yellow", "ended": "dim", "failed": "bold red"}
_BAR_WIDTH = 20

Row = dict[str, Any]

SYNTHETIC = "synthetic"  # the data set that stands in for CIFAR-10


@dataclass
class RunState:
    """The newest values of everything reported about a run."""

    config: RunConfig
    run_dir: RunDir
    dataset: PackedDataset
    tasks: list[Row] = field(default_factory=list)
    row: Row = field(default_factory=dict)
    last_score: EvaluationRow | None = None
    best_score: EvaluationRow | None = None

    @property
    def phase(self) -> str:
        phase: str = self.row.get("phase", "starting")
        return phase

    @property
    def total(self) -> int:
        told: int | None = self.row.get("total")
        return told or self.config.total_updates(self.dataset.train_examples)

    @property
    def applied(self) -> int:
        applied: int = self.row.get("applied", 0)
        return applied

    @property
    def seconds_left(self) -> float | None:
        """Seconds left at the speed of the last seconds; None while no speed is known."""
        speed: float | None = self.row.get("examples_per_second")
        if not speed:
            return None
        return (self.total - self.applied) * self.config.examples_per_update / speed

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
    length = f"{config.training.epochs:g} epochs" if config.training.steps is None else f"{state.total:,} updates"
    smoothing = config.training.label_smoothing
    return " · ".join(
        (
            OBJECTIVES[spec.objective].task(spec.outputs),
            rate,
            f"batch {config.training.batch_size_per_worker}",
            length,
            *([f"label smoothing {smoothing:g}"] if smoothing else []),
        )
    )


def progress_line(state: RunState) -> str:
    """Return a row of progress as a line for logs."""
    share = f"{state.applied:,}/{state.total:,} updates ({state.applied / state.total:.0%})"
    return " · ".join((state.phase, share, *_numbers(state), *_time_left(state)))


def score_line(row: EvaluationRow) -> str:
    """Return a score as a line, for logs."""
    loss = f", loss {row.test_loss:.3f}" if row.test_loss is not None else ""
    return f"step {row.step:,}: test {row.test}{loss}{', best so far' * row.best}"


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
        text = Text("test ").append(last.test, "bold green").append(f" at step {last.step:,}", "default")
        if best is not last:
            text.append(f" · best {best.test} at step {best.step:,}", "default")
        parts += [Text(), text]
    return Group(*parts)


def clock(seconds: float) -> str:
    """Return seconds as `m:ss` or `h:mm:ss`."""
    minutes, second = divmod(max(0, round(seconds)), 60)
    hours, minute = divmod(minutes, 60)
    return f"{hours}:{minute:02}:{second:02}" if hours else f"{minute}:{second:02}"


def _crew(config: RunConfig) -> str:
    if WORKER not in config.mode_kind.tasks:
        return "1 process"
    workers = f"{config.cluster.workers} worker{'s' * (config.cluster.workers > 1)}"
    return f"{workers} + {config.cluster.parameter_servers} ps" if config.on_parameter_servers else workers


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
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    for heading in ("task", "pid", "state", "updates", state.dataset.spec.unit):
        table.add_column(heading, justify="left" if heading in ("task", "state") else "right", no_wrap=True)
    table.add_column("share of the updates" if roomy else "share", no_wrap=True)
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
