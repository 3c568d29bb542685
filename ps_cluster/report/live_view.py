"""Draw the live view of a run for a terminal. Imports no TensorFlow."""

from __future__ import annotations

import math
import textwrap
from collections import Counter

from rich.console import Group, RenderableType
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from ps_cluster.config.tasks import PS, WORKER
from ps_cluster.files.values import with_noun
from ps_cluster.report.run_state import RunState, clock_text, synthetic_notice
from ps_cluster.report.terminal import LEFT, RIGHT, plain_table

_BAR_WIDTH = 20  # columns of the longest bar
_ROOMY = 76  # the fewest columns of a terminal that has room for bars


def draw(state: RunState, width: int, seconds: float) -> Group:
    """Return the live view of a run.

    `width`: the number of columns of the terminal. `seconds`: the time since the run started.
    """
    parts: list[RenderableType] = [Text()]
    for line, style in ((state.headline, "bold"), (state.task_line, ""), (str(state.run_dir.root), "dim")):
        parts.append(Text(line, style, overflow="ellipsis", no_wrap=True))
    if state.dataset.kind == "synthetic":
        parts.append(Text(f" {synthetic_notice(state.dataset)} ", "bold black on yellow"))
    # Break lines only between two measures.
    unbreakable = " · ".join(measure.replace(" ", "\N{NO-BREAK SPACE}") for measure in state.measures)
    lines = textwrap.fill(unbreakable.replace(" ·", "\N{NO-BREAK SPACE}·"), width)
    parts += [Text(), _bar(state, seconds), Text(lines.replace("\N{NO-BREAK SPACE}", " ")), Text()]
    parts.append(_task_table(state, width))
    if state.last_score and state.best_score:
        last, best, monitor = state.last_score, state.best_score, state.monitor
        chosen_by = monitor.words(last)
        others = [score for score in last.scores if score != chosen_by]
        text = Text(chosen_by, "bold green").append(f" at step {last.step:,}", "default")
        if best is not last:
            text.append(f" · best {monitor.text(best)} at step {best.step:,}", "default")
        parts += [Text(), text.append("".join(f" · {other}" for other in others), "default")]
    elif state.applied:
        parts += [Text(), Text("no checkpoint has been scored on the test set yet", "dim")]
    return Group(*parts)


def _bar(state: RunState, seconds: float) -> Table:
    grid = Table.grid(padding=(0, 1), expand=True)
    for _ in range(3):
        grid.add_column(no_wrap=True)
    grid.columns[1].ratio = 1
    bar = ProgressBar(total=1.0, completed=state.share_done, pulse=state.row is None, animation_time=seconds)
    after = f"{state.done}  {state.share_done:4.0%}  {clock_text(seconds)}"
    grid.add_row(Text(state.phase, "bold cyan"), bar, Text(" · ".join((after, *state.time_left))))
    return grid


def _task_table(state: RunState, width: int) -> Table:
    """Return a table with a row for each process and, if there is room, a bar for each worker's share of updates."""
    roomy = width >= _ROOMY
    last = {state.dataset.spec.unit: RIGHT, "share of the updates" if roomy else "share": LEFT}
    table = plain_table(task=LEFT, pid=RIGHT, state=LEFT, updates=RIGHT, **last)
    updates: Counter[int] = Counter()  # by worker, over all of its processes
    examples: Counter[int] = Counter()
    for row in state.row.workers if state.row else ():
        updates[row.index] += row.updates
        examples[row.index] += row.examples
    trainer = state.config.chosen_mode.trainer_type
    for task, pid, how, restarts in sorted(
        state.tasks, key=lambda one: (one.task.type != trainer, one.task.type, one.task.index)
    ):
        cells: list[str | Text] = ["", "", ""]
        if task.type == trainer and task.index in updates:
            cells = [f"{updates[task.index]:,}", f"{examples[task.index]:,}", ""]
            if all_updates := updates.total():
                cells[2] = _share(updates[task.index] / all_updates, roomy)
        name = f"{task.type} {task.index}" if task.type in (WORKER, PS) else task.type
        shown = Text(how, "green" if how == "running" else "default")
        if restarts:
            shown.append(f", {with_noun(restarts, 'restart')}", "yellow")
        table.add_row(name, str(pid or "–"), shown, *cells)
    return table


def _share(share: float, roomy: bool) -> Text:
    text = Text(f"{share:4.0%}")
    if roomy:
        text.append(" " + "━" * math.ceil(share * _BAR_WIDTH), "green")
    return text
