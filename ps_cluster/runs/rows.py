"""Define the base class of all rows, the types of their fields, and the rows of the tasks of a run."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, GetPydanticSchema, Strict

from ps_cluster.config.tasks import Task

MOST = 2**53  # above this a float64, as in the ledger, does not represent every integer
MOST_INDEX = 10_000

Count = Annotated[int, Field(ge=0, le=MOST)]
Index = Annotated[int, Field(ge=0, lt=MOST_INDEX)]  # the index of a task among those of its type
Pid = Annotated[int, Field(ge=0, lt=2**31)]
Number = Annotated[float, Field(ge=-1e15, le=1e15)]
Seconds = Annotated[float, Field(ge=0, le=1e15)]
Loss = Annotated[float, Field(ge=-1e300, le=1e300)]  # a diverging loss reaches float32's 3e38 before it becomes NaN
Share = Annotated[float, Field(ge=0, le=1)]
Word = Annotated[str, Field(max_length=200, pattern=r"^[^\x00-\x1f\x7f-\x9f]*$")]  # no control characters
Text = Annotated[str, Field(max_length=100_000)]
Histogram = dict[Annotated[str, Field(pattern=r"^[0-9]{1,15}$")], Count]
"""The number of steps with each staleness. The keys are staleness values as text, because JSON needs text."""
Pair = Annotated[tuple[Number, Number], Strict(False)]  # JSON has no tuples


class Row(BaseModel):
    """A row with strict types and finite numbers. Unknown fields are ignored, because later versions may write more."""

    model_config = ConfigDict(strict=True, frozen=True, extra="ignore", allow_inf_nan=False)


# The rows of cluster.json, which lists the tasks, and of the file in which a task records its fatal error.

# The type of a task in a cluster. For mypy it is a str, like `Task.type`, which may also name another type of process.
TaskType = Annotated[str, GetPydanticSchema(lambda _, handler: handler(Literal["chief", "ps", "worker", "evaluator"]))]


class Launcher(Row):
    """The process that started the tasks. `life`: the unique id of the process, also contained in progress rows."""

    pid: Pid
    life: Word | None = None


class TaskRow(Row):
    """The newest process of a task.

    Attributes:
      pid: None for a task on another machine that has done no work yet, because a task reports its pid with its work.
      address: None for a task without a server.
      absent: whether the task was stopped or given up, so that it is not restarted automatically.
    """

    type: TaskType
    index: Index
    pid: Pid | None = None
    address: Word | None = None
    absent: bool = False

    @property
    def task(self) -> Task:
        return Task(self.type, self.index)


class TaskFile(TaskRow):
    """The file in which a task of the command `ps-cluster task` describes itself.

    `leads`: whether the task is the leader. `life`: the unique id of the process.
    """

    host: Word
    leads: bool
    life: Word


class ClusterFile(Row):
    """The content of cluster.json: the launcher and all tasks.

    Attributes:
      launcher: None if the tasks were started separately, e.g. on several machines.
      isolated: whether the tasks have a private computer network; None if unknown.
    """

    launcher: Launcher | None = None
    isolated: bool | None = None
    tasks: list[TaskRow]


class TaskError(Row):
    """The error that ended a task, in errors/<type>-<index>.json.

    Attributes:
      user_error: whether the cause is wrong input that only the task could notice.
      final: whether a restart of the task would not help.
      computation: whether the user's computation failed (`FailedComputation`).
    """

    time: Number = 0.0  # in unix seconds; 0 if the task could not write its error
    type: Word | None = None
    index: Index | None = None
    pid: Pid | None = None
    message: Text = ""
    traceback: str = ""
    user_error: bool = False
    final: bool = False
    computation: bool = False


class ScalingRow(Row):
    """A change of the number of workers during training, by `ps-cluster scale` or because a worker was given up.

    `applied`, `train_seconds`: the updates and the seconds of training before the change, as far as known. `before`,
    `workers`: the number of workers before and after the change.
    """

    applied: Count
    train_seconds: Seconds
    before: Count
    workers: Count
