"""Show a cluster to a person: its jobs, tasks, addresses and devices as a table, and TF_CONFIG to copy."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib import resources
from typing import Any

from jinja2 import Environment, StrictUndefined
from rich.console import Console
from rich.table import Table
from rich.text import Text

from ps_cluster.config.modes import CHIEF, EVALUATOR, PS, WORKER, Flow, Task

NONE = "–"
_COLOURS = {"running": "green", "stopped": "yellow", "gone": "dim", "planned": "default", "elsewhere": "dim"}


@dataclass(frozen=True)
class TaskView:
    """A task, as it is shown.

    Attributes:
      state: "planned" without a run; else "running", "stopped" by SIGSTOP, or "gone".
      devices: as `tf.device` takes them.
      tf_config: the value of TF_CONFIG; None for a task that is no longer a member of the cluster.
    """

    task: Task
    state: str
    pid: int | None
    address: str | None
    devices: tuple[str, ...]
    tf_config: str | None

    @property
    def name(self) -> str:
        return f"{self.task.type} {self.task.index}"


@dataclass(frozen=True)
class ClusterView:
    """A cluster: what it is, what its tasks send to each other, and the tasks."""

    title: str
    note: str
    flows: tuple[Flow, ...]
    tasks: tuple[TaskView, ...]

    def of_type(self, kind: str) -> list[TaskView]:
        """Return the tasks of one type."""
        return [task for task in self.tasks if task.task.type == kind]

    def to_json(self) -> dict[str, Any]:
        """Return all of it for other programs."""
        return {
            "title": self.title,
            "note": self.note,
            "flows": [flow._asdict() for flow in self.flows],
            "tasks": [
                {
                    "job": task.task.type,
                    "index": task.task.index,
                    "state": task.state,
                    "pid": task.pid,
                    "address": task.address,
                    "devices": list(task.devices),
                    "tf_config": None if task.tf_config is None else json.loads(task.tf_config),
                }
                for task in self.tasks
            ],
        }


def print_cluster(view: ClusterView, console: Console) -> None:
    """Print a row for each task, and what it sends to whom."""
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    for heading in ("task", "state"):
        table.add_column(heading, no_wrap=True)
    table.add_column("pid", justify="right", no_wrap=True)
    table.add_column("address", no_wrap=True)
    table.add_column("devices", overflow="fold")
    for task in view.tasks:
        state, pid = Text(task.state, _COLOURS[task.state]), str(task.pid or NONE)
        table.add_row(task.name, state, pid, task.address or NONE, "\n".join(task.devices) or NONE)
    console.print(view.title, style="bold", highlight=False, soft_wrap=True)
    console.print(table)
    for flow in view.flows:
        console.print(f"{flow.sender} → {flow.receiver}: {flow.what}", highlight=False, soft_wrap=True)
    console.print(view.note, style="dim", highlight=False, soft_wrap=True)


def lines_of_tf_config(tasks: Sequence[TaskView]) -> Iterator[str]:
    """Yield two lines for each member of the cluster: its name, and a shell's command that sets TF_CONFIG."""
    for task in tasks:
        if task.tf_config is not None:
            yield f"# {task.name}"
            yield f"export TF_CONFIG='{task.tf_config}'"


# Draw a cluster as SVG: a row of boxes for each job, and arrows for what its tasks send to each other.

_ROWS = (CHIEF, WORKER, PS)  # workers are in the middle: both others talk to them only
_LEFT, _TOP, _WIDTH, _HEIGHT, _GAP, _BETWEEN = 150, 56, 190, 76, 36, 74  # user units of the SVG
_ASIDE = 7  # two arrows between the same boxes lie so far from the middle


def draw_cluster(view: ClusterView) -> str:
    """Return the picture of a cluster, an SVG file's content."""
    rows = [kind for kind in _ROWS if view.of_type(kind)]
    columns = max((len(view.of_type(kind)) for kind in rows), default=1)
    boxes = {kind: _row(view.of_type(kind), row, columns) for row, kind in enumerate(rows)}
    outside = _row(view.of_type(EVALUATOR), len(rows), columns)
    below = _TOP + len(rows) * (_HEIGHT + _BETWEEN)
    labels: list[tuple[int, int, str, str]] = [
        (24, _y_of(row) + 20, f"job {kind}", "job") for row, kind in enumerate(rows)
    ]
    labels += _flow_labels(view.flows, rows)
    for box in outside:
        labels += [
            (24, box["y"] + 20, "not in the cluster:", "quiet"),
            (24, box["y"] + 36, "reads checkpoints", "quiet"),
        ]
    template = resources.files(__package__).joinpath("templates/cluster.svg").read_text(encoding="utf-8")
    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    return environment.from_string(template).render(
        title=view.title,
        width=max(_LEFT + columns * (_WIDTH + _GAP), 24 + 8 * len(view.title)),
        height=below + (_HEIGHT + 16 if outside else 0),
        frame_width=_LEFT + columns * (_WIDTH + _GAP) - 16,
        frame_height=below - 40 - _BETWEEN // 2,
        box_width=_WIDTH,
        box_height=_HEIGHT,
        boxes=[box for own in boxes.values() for box in own] + outside,
        arrows=[arrow for flow in view.flows for arrow in _arrows(flow, boxes)],
        labels=labels,
    )


def _y_of(row: int) -> int:
    """Return where the boxes of a row begin."""
    return _TOP + row * (_HEIGHT + _BETWEEN)


def _row(tasks: list[TaskView], row: int, columns: int) -> list[dict[str, Any]]:
    """Return the boxes of a row, in the middle of a picture with so many columns."""
    left = _LEFT + (columns - len(tasks)) * (_WIDTH + _GAP) / 2
    return [
        {
            "x": left + column * (_WIDTH + _GAP),
            "y": _y_of(row),
            "state": task.state,
            "lines": [
                f"{task.name} · {task.state}",
                task.address or "no address",
                *(task.devices[:1] or (NONE,)),
                *([] if task.pid is None else [f"pid {task.pid}"]),
            ],
        }
        for column, task in enumerate(tasks)
    ]


def _arrows(flow: Flow, boxes: dict[str, list[dict[str, Any]]]) -> Iterator[tuple[float, float, float, float]]:
    """Yield (x1, y1, x2, y2) from each sender to each receiver; between tasks of one type to the next one."""
    senders, receivers = boxes.get(flow.sender, []), boxes.get(flow.receiver, [])
    if flow.sender == flow.receiver:
        for one, other in zip(senders, senders[1:]):
            yield one["x"] + _WIDTH, one["y"] + _HEIGHT / 2, other["x"], other["y"] + _HEIGHT / 2
        return
    for sender, receiver in ((sender, receiver) for sender in senders for receiver in receivers):
        down = sender["y"] < receiver["y"]
        aside = _WIDTH / 2 + (-_ASIDE if down else _ASIDE)
        ends = (sender["y"] + _HEIGHT, receiver["y"]) if down else (sender["y"], receiver["y"] + _HEIGHT)
        yield sender["x"] + aside, ends[0], receiver["x"] + aside, ends[1]


def _flow_labels(flows: tuple[Flow, ...], rows: list[str]) -> Iterator[tuple[int, int, str, str]]:
    """Yield x, y, text and style of the names of flows, each below the upper one of its two rows."""
    used = dict.fromkeys(rows, 0)
    for flow in flows:
        upper = min(flow.sender, flow.receiver, key=rows.index)
        sign = "→" if flow.sender == flow.receiver else "↓" if flow.sender == upper else "↑"
        used[upper] += 1
        yield 24, _y_of(rows.index(upper)) + _HEIGHT - 17 + 17 * used[upper], f"{sign} {flow.what}", "quiet"
