"""Draw a cluster as SVG: a row of boxes for each job, and arrows for what its tasks send to each other."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass

from ps_cluster.config.modes import Flow
from ps_cluster.config.tasks import CHIEF, EVALUATOR, PS, WORKER
from ps_cluster.launch.overview import NONE, ClusterView, TaskView
from ps_cluster.report.pages import rendered

_ROWS = (CHIEF, WORKER, PS)  # workers are in the middle, because chief and ps talk only to workers
_LEFT, _TOP, _WIDTH, _HEIGHT, _GAP, _BETWEEN = 210, 56, 190, 76, 36, 74  # user units of the SVG
_ASIDE = 7  # distance of each of two opposite arrows from the middle of their boxes


@dataclass(frozen=True)
class Box:
    """The box of a task. `x`, `y`: its upper left corner. `lines`: its text."""

    x: float
    y: int
    state: str
    lines: tuple[str, ...]


def draw_cluster(view: ClusterView) -> str:
    """Return the picture of a cluster as the content of an SVG file."""
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
        labels += [(24, box.y + 20, "not in the cluster:", "quiet"), (24, box.y + 36, "reads checkpoints", "quiet")]
    return rendered(
        "ps_cluster.report",
        "cluster.svg",
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
    return _TOP + row * (_HEIGHT + _BETWEEN)


def _row(tasks: list[TaskView], row: int, columns: int) -> list[Box]:
    """Return the boxes of a row, centred in a picture with `columns` columns."""
    left = _LEFT + (columns - len(tasks)) * (_WIDTH + _GAP) / 2
    return [
        Box(left + column * (_WIDTH + _GAP), _y_of(row), task.state, _lines(task)) for column, task in enumerate(tasks)
    ]


def _lines(task: TaskView) -> tuple[str, ...]:
    lines = (f"{task.name} · {task.state}", task.address or "no address", ", ".join(task.devices) or NONE)
    return lines if task.pid is None else (*lines, f"pid {task.pid}")


def _arrows(flow: Flow, boxes: dict[str, list[Box]]) -> Iterator[tuple[float, float, float, float]]:
    """Yield an arrow (x1, y1, x2, y2) from each sender of a flow to each receiver.

    If senders and receivers are of the same type, yield an arrow from each task to the next task of this type.
    """
    senders, receivers = boxes.get(flow.sender, []), boxes.get(flow.receiver, [])
    if flow.sender == flow.receiver:
        for one, other in itertools.pairwise(senders):
            yield one.x + _WIDTH, one.y + _HEIGHT / 2, other.x, other.y + _HEIGHT / 2
        return
    for sender, receiver in ((sender, receiver) for sender in senders for receiver in receivers):
        down = sender.y < receiver.y
        aside = _WIDTH / 2 + (-_ASIDE if down else _ASIDE)
        ends = (sender.y + _HEIGHT, receiver.y) if down else (sender.y, receiver.y + _HEIGHT)
        yield sender.x + aside, ends[0], receiver.x + aside, ends[1]


def _flow_labels(flows: tuple[Flow, ...], rows: list[str]) -> Iterator[tuple[int, int, str, str]]:
    """Yield x, y, text and style of each flow's label.

    The label is below the row of the flow's senders or below that of its receivers, whichever is higher.
    """
    used = dict.fromkeys(rows, 0)
    for flow in flows:
        upper = min(flow.sender, flow.receiver, key=rows.index)
        sign = "→" if flow.sender == flow.receiver else "↓" if flow.sender == upper else "↑"
        used[upper] += 1
        yield 24, _y_of(rows.index(upper)) + _HEIGHT - 17 + 17 * used[upper], f"{sign} {flow.what}", "quiet"
