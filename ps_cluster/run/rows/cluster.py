"""cluster.json, which lists the tasks, and the file in which a task records its fatal error."""

from __future__ import annotations

from typing import Literal

from ps_cluster.run.rows.base import Index, Number, Pid, Row, Text, Word

TaskType = Literal["chief", "ps", "worker", "evaluator"]


class Launcher(Row):
    """The process that started the tasks."""

    pid: Pid


class TaskRow(Row):
    """The newest process of a task. `address`: host:port; None for a task without a server."""

    type: TaskType
    index: Index
    pid: Pid
    address: Word | None = None


class ClusterFile(Row):
    """The launcher and all tasks. `isolated`: the ports are in a private network."""

    launcher: Launcher
    isolated: bool | None = None
    tasks: list[TaskRow]


class TaskError(Row):
    """The error that ended a task, in errors/<type>-<index>.json.

    Attributes:
      time: unix seconds. message: one line.
      user_error: bad input that only the task could see. final: restarting the task would not help.
    """

    time: Number = 0.0
    type: Word | None = None
    index: Index | None = None
    pid: Pid | None = None
    message: Text = ""
    traceback: str = ""
    user_error: bool = False
    final: bool = False
