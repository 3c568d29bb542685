"""Define the base class of all rows, and the types of their fields."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, GetPydanticSchema, Strict, model_validator

from ps_cluster.config.datasets import MOST_CLASSES
from ps_cluster.config.tasks import Task

MOST = 2**53  # above this a float64, as in the ledger, does not represent every whole number
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
"""Staleness, as text → number of steps with this staleness."""
Pair = Annotated[tuple[Number, Number], Strict(False)]  # JSON has no tuples


class Row(BaseModel):
    """A row with strict types and finite numbers. Unknown fields are ignored, because later versions may write more."""

    model_config = ConfigDict(strict=True, frozen=True, extra="ignore", allow_inf_nan=False)


# The rows of cluster.json, which lists the tasks, and of the file in which a task records its fatal error.

# The type of a task in a cluster. For mypy it is a str, like `Task.type`, which may also name another type of process.
TaskType = Annotated[str, GetPydanticSchema(lambda _, handler: handler(Literal["chief", "ps", "worker", "evaluator"]))]


class Launcher(Row):
    """The process that started the tasks. `life`: the unique id of the process, also contained in rows of progress."""

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
    """The file in the folder of a task that `ps-cluster task` started. `life`: the unique id of the process."""

    host: Word
    leads: bool
    life: Word


class ClusterFile(Row):
    """The launcher and all tasks. `launcher`: None if the tasks were started separately, e.g. on several machines."""

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


# The manifest of a packed data set, and the file of a run that points to a packed data set.

Name = Annotated[str, Field(min_length=1, max_length=4096, pattern=r"^[^\x00-\x1f\x7f-\x9f]+$")]
Kind = Literal["real", "synthetic"]
MOST_FILES = 2**20
Examples = Annotated[int, Field(gt=0, le=2**40)]
# The dtypes of arrays from which rows can be gathered.
DType = Literal["bool", "uint8", "int8", "uint16", "int16", "int32", "int64", "float16", "float32", "float64"]
Checksum = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
FieldName = Annotated[str, Field(pattern=r"^[a-z][a-z0-9_]{0,39}$")]  # part of a file's name


class DatasetPointer(Row):
    """dataset.json of a run: the packed folder that the tasks of this machine map. The folder's manifest is authoritative."""

    name: Name | None = None
    kind: Word | None = None
    unit: Word = "examples"  # the word for several examples
    directory: Annotated[str, Field(max_length=4096, pattern=r"^[^\x00]+$")]


class FieldRow(Row):
    """An array of the examples (`Field` in config/objectives.py)."""

    dtype: Literal[DType, "string"]
    shape: Annotated[list[Annotated[int, Field(ge=1, le=2**31)]], Field(max_length=8)]
    mean: list[Number] = []
    std: list[Number] = []
    codes: list[Annotated[int, Field(ge=1, le=2**31)]] = []
    characters: Annotated[int, Field(ge=0, le=2**31)] = 0
    code: Literal["", "uint8", "uint16", "int32"] = ""

    @model_validator(mode="after")
    def _texts_have_characters(self) -> Self:
        if (self.dtype == "string") != bool(self.characters and self.code):
            raise ValueError("an array of dtype string needs characters and code, and no other array has them")
        return self


class OtherTargetRow(Row):
    """The target of a further output of a network (`OtherTarget` in config/objectives.py)."""

    field: FieldRow
    objective: Name
    classes: Annotated[list[Word], Field(max_length=MOST_CLASSES)]


class Manifest(Row):
    """dataset.json of a packed folder.

    Attributes:
      weight: the field with the weight of an example; null if all examples count equally.
      output, others: the name of the target's output, and the targets of further outputs by name, if there are some.
      source: the archive or folder that was packed; "" if there is none.
      file_rows: how many training examples come from each of several files, in their order; empty if that is not known.
      bytes: file name → size.
      sha256: file name → checksum; complete when all files are written.
    """

    format: int
    name: Name
    kind: Kind
    objective: Name
    inputs: Annotated[dict[FieldName, FieldRow], Field(min_length=1, max_length=100)]
    target: FieldRow
    weight: FieldRow | None = None
    classes: Annotated[list[Word], Field(max_length=MOST_CLASSES)]
    output: Annotated[str, Field(pattern=r"^([a-z][a-z0-9_]{0,39})?$")] = ""
    others: Annotated[dict[FieldName, OtherTargetRow], Field(max_length=100)] = {}
    train_examples: Examples
    test_examples: Examples
    source: Annotated[str, Field(max_length=4096)] = ""
    notes: list[Annotated[str, Field(max_length=2000)]] = []
    file_rows: Annotated[list[Count], Field(max_length=MOST_FILES)] = []
    bytes: dict[Word, Count]
    sha256: dict[Word, Checksum] = {}


class NumberColumn(Row):
    """A numeric column of a table. The network gets (value - mean) / std; a missing value is replaced by the mean.

    Mean and std are those of training rows with a value. `is_time`: the values are dates or times, in seconds.
    `missing`: how many training rows have no value.
    """

    name: Name
    mean: float
    std: float
    is_time: bool = False
    missing: Count = 0


class CategoryColumn(Row):
    """A categorical column of a table.

    The network gets code 1 for the first of `values`, 2 for the second and so on, and 0 for any other value.
    `missing`: how many training rows have no value.
    """

    name: Name
    values: list[str]
    missing: Count = 0


class TableEncoding(Row):
    """encoding.json of a packed table: how its columns, in order, become inputs. It depends only on training rows."""

    target: Name
    numbers: list[NumberColumn]
    categories: list[CategoryColumn]
    texts: list[Name] = []


class ScalingRow(Row):
    """A change of the number of workers during training, by `ps-cluster scale` or because a worker was given up.

    `applied`, `train_seconds`: updates and seconds of training until then, as far as known. `before`, `workers`: the number
    of workers before and after the change.
    """

    applied: Count
    train_seconds: Seconds
    before: Count
    workers: Count
