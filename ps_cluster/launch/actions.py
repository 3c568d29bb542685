"""Define the actions that `Decisions` and the rules of the command `task` return, and that event loops carry out.

`Decisions` (decisions.py) returns actions, and `EventLoop._act` (event_loop.py) carries them out, mostly by methods of
`LocalCluster`. The rules of the command `task` (one_task_decisions.py) also return `Notice`, `WriteStacks` and `Kill`,
and `TaskLoop._act` (one_task_loop.py) carries them out.
"""

from __future__ import annotations

from dataclasses import dataclass

from ps_cluster.config.tasks import Task
from ps_cluster.notices import Line
from ps_cluster.runs.result_rows import Outcome


@dataclass(frozen=True)
class EndRun:
    """End the run. `message`: what went wrong, on one line, or None if nothing went wrong."""

    outcome: Outcome
    exit_code: int = 0
    message: str | None = None
    user_error: bool = False


@dataclass(frozen=True)
class Notice:
    """Show a line, and write it to launcher.log."""

    line: Line


@dataclass(frozen=True)
class StartCluster:
    """Start all tasks on new ports."""


@dataclass(frozen=True)
class RestartTask:
    """Restart one task that has ended, at its old address (`LocalCluster.restart`)."""

    task: Task


@dataclass(frozen=True)
class RestartTraining:
    """Start all training tasks again on new ports (`LocalCluster.restart_training`).

    `resume`: whether the tasks continue from the newest snapshot.
    """

    resume: bool


@dataclass(frozen=True)
class RestartFromSnapshot:
    """Stop all training tasks at once, and look for the newest snapshot from which training can continue.

    Usually the reason is that the state of a ps or of the leader is lost. `Decisions.snapshot_checked` gets the result
    of the search, and plans the `RestartTraining`.

    `delay_s`: the seconds until the training tasks start again.
    """

    cause: str
    delay_s: float


@dataclass(frozen=True)
class GiveUp:
    """Give up a task. A worker that was given up starts again only if the user asks for it (`ps-cluster scale`).

    A ps that was given up is left out at the next `RestartTraining`.
    """

    task: Task


@dataclass(frozen=True)
class Scale:
    """Start the absent workers `start`, and stop the workers `stop`, whose open steps go to the remaining workers."""

    start: tuple[Task, ...]
    stop: tuple[Task, ...]


@dataclass(frozen=True)
class AnswerScale:
    """Answer a request for another number of workers. `line`: what was done, or why the request was refused."""

    line: str
    refused: bool = False


@dataclass(frozen=True)
class DrainLeader:
    """Ask the leader, by SIGTERM, to end cleanly: it starts no new steps, and writes a last checkpoint."""

    leader: Task


@dataclass(frozen=True)
class WriteStacks:
    """Make these tasks write their Python stack traces into their logs."""

    tasks: tuple[Task, ...]


@dataclass(frozen=True)
class Kill:
    """Kill a task's process, if it still runs."""

    task: Task


@dataclass(frozen=True)
class StopTraining:
    """Stop all training tasks: send SIGTERM, and SIGKILL after `RunLimits.grace_s` seconds."""


@dataclass(frozen=True)
class StopAll:
    """Stop all tasks immediately, without the delay between SIGTERM and SIGKILL."""


Action = (
    Notice
    | StartCluster
    | RestartTask
    | RestartTraining
    | RestartFromSnapshot
    | GiveUp
    | Scale
    | AnswerScale
    | DrainLeader
    | WriteStacks
    | Kill
    | StopTraining
    | StopAll
    | EndRun  # ends the run; nothing after it is carried out
)
Actions = tuple[Action, ...]
