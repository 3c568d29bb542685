"""The events that the launcher sees, and the actions that it takes. `decisions.py` leads from one to the other."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ps_cluster.catalogue.task_types import Task
from ps_cluster.cluster.ending import Ending
from ps_cluster.cluster.topology import ClusterTopology
from ps_cluster.processes.supervisor import TaskExit
from ps_cluster.run.rows.progress import ProgressRow

# Events: seen by the loop (watch.py) when it looks.


@dataclass(frozen=True)
class ProgressSeen:
    """The leader wrote a row. `workers`: index → pid of the worker processes that run now."""

    row: ProgressRow
    workers: Mapping[int, int]


@dataclass(frozen=True)
class ScoreSeen:
    """The evaluator scored a checkpoint."""


@dataclass(frozen=True)
class PortTaken:
    """At least one task ended because another program has its port. Comes before the `TaskDied` of all that ended."""

    first: TaskExit


@dataclass(frozen=True)
class LeaderDone:
    """The leader ended with exit code 0. `outcome`: as it wrote it, "failed" if it wrote none."""

    outcome: str


@dataclass(frozen=True)
class EvaluatorDone:
    """The evaluator ended with exit code 0, and scored all there will be."""


@dataclass(frozen=True)
class TaskDied:
    """A task ended in any other way."""

    task_exit: TaskExit


@dataclass(frozen=True)
class StopRequested:
    """The user asks to stop: Ctrl-C, SIGTERM or SIGHUP. `exit_code`: of a program that this signal ends at once."""

    exit_code: int


@dataclass(frozen=True)
class ScaleRequested:
    """The user asks for another number of workers: `ps-cluster scale`."""

    workers: int


@dataclass(frozen=True)
class TimePassed:
    """The end of a look.

    Attributes:
      pids: task → pid of all that run.
      frozen: the tasks whose process is stopped (SIGSTOP).
      states: all tasks and their states on one line, for messages.
    """

    pids: Mapping[Task, int]
    frozen: tuple[Task, ...]
    states: str


# Events: answers to actions.


@dataclass(frozen=True)
class ClusterStarted:
    """Answers `StartCluster`, `RestartTraining`, `GiveUp` and `Scale`: the tasks are now these."""

    topology: ClusterTopology


@dataclass(frozen=True)
class Stopped:
    """Answers `StopTraining` and `StopAll`, which may have taken seconds."""


@dataclass(frozen=True)
class TakenBack:
    """Answers `TakeBack`.

    snapshot: there is a sound one to go on from. problem: why training can neither go on nor begin anew; "" for none.
    """

    request: TakeBack
    snapshot: bool
    problem: str = ""


Event = (
    ProgressSeen
    | ScoreSeen
    | PortTaken
    | LeaderDone
    | EvaluatorDone
    | TaskDied
    | StopRequested
    | ScaleRequested
    | TimePassed
    | ClusterStarted
    | Stopped
    | TakenBack
)

# Actions, carried out by the loop.


@dataclass(frozen=True)
class Notice:
    """Show a line, and write it to launcher.log."""

    line: str


@dataclass(frozen=True)
class StartCluster:
    """Start all tasks on new ports."""


@dataclass(frozen=True)
class RestartTask:
    """Start one task that ended again, at its old address."""

    task: Task


@dataclass(frozen=True)
class RestartTraining:
    """Start all training tasks again on new ports; `resume`: from the newest snapshot."""

    resume: bool


@dataclass(frozen=True)
class TakeBack:
    """Stop all training tasks at once, and look for the newest snapshot: the state of a ps or of the leader is lost.

    Attributes:
      cause: what happened, for the notice.
      delay_s: until the training tasks are to start again.
    """

    cause: str
    delay_s: float


@dataclass(frozen=True)
class GiveUp:
    """Start a worker no more; or leave a ps out of the cluster from the next `RestartTraining` on."""

    task: Task


@dataclass(frozen=True)
class Scale:
    """Start workers that are absent, and stop others politely: what they had under way goes to others."""

    start: tuple[Task, ...]
    stop: tuple[Task, ...]


@dataclass(frozen=True)
class AnswerScale:
    """Tell the one who asked for another number of workers what was done, or why it was not."""

    line: str
    refused: bool = False


@dataclass(frozen=True)
class Drain:
    """Ask the leader (SIGTERM) to end in order: no new steps, a last checkpoint."""

    leader: Task


@dataclass(frozen=True)
class WriteStacks:
    """Make these tasks write their Python stacks into their logs."""

    tasks: tuple[Task, ...]


@dataclass(frozen=True)
class Kill:
    """Kill a task's process, if it still runs."""

    task: Task


@dataclass(frozen=True)
class StopTraining:
    """Stop all training tasks; SIGKILL follows `grace_s` after SIGTERM."""

    grace_s: float


@dataclass(frozen=True)
class StopAll:
    """Stop all tasks at once."""


Action = (
    Notice
    | StartCluster
    | RestartTask
    | RestartTraining
    | TakeBack
    | GiveUp
    | Scale
    | AnswerScale
    | Drain
    | WriteStacks
    | Kill
    | StopTraining
    | StopAll
    | Ending  # ends the run; nothing after it is carried out
)
Actions = tuple[Action, ...]
