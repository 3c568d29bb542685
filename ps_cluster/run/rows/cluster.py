"""cluster.json, which lists the tasks, and the file in which a task records its fatal error."""

from __future__ import annotations

from typing import Literal

from ps_cluster.run.rows.base import Index, Number, Pid, Row, Text, Word

TaskType = Literal["chief", "ps", "worker", "evaluator"]


class Launcher(Row):
    """The process that started the tasks. `life`: its unique id, as that of a row of progress."""

    pid: Pid
    life: Word | None = None


class TaskRow(Row):
    """The newest process of a task.

    Attributes:
      pid: None for one on another machine that has done no work yet: its work tells it.
      address: host:port; None for a task without a server.
      absent: it was stopped or given up, and nobody starts it again by itself.
    """

    type: TaskType
    index: Index
    pid: Pid | None = None
    address: Word | None = None
    absent: bool = False


class TaskFile(TaskRow):
    """A task of `task`, in its own folder. `host`: of its machine or container. `leads`: it writes the rows.

    `life`: the unique id of the process."""

    host: Word
    leads: bool
    life: Word


class ClusterFile(Row):
    """The launcher and all tasks.

    Attributes:
      launcher: None where each task was started by itself; their processes are on machines of their own.
      isolated: the ports are in a private network.
    """

    launcher: Launcher | None = None
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
