"""Show a cluster to a person: its jobs, tasks, addresses and devices as a table, and TF_CONFIG to copy."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from ps_cluster.catalogue.modes import Flow
from ps_cluster.catalogue.task_types import Task

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
