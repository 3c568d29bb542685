"""Define the exceptions that are shown as one line, the exit codes, and the hint for a mistyped name."""

from collections.abc import Iterable
from difflib import get_close_matches
from pathlib import Path

# The exit codes of commands and tasks. If a signal ends a process, its code is 128 + the signal's number, as in a shell.
FAILED = 1  # the machine or a child process failed, or there is a bug
BAD_INPUT = 2  # the same command would fail again
SUPERSEDED = 3  # another process has taken over this task
FAILED_FOR_GOOD = 4  # the training diverged, or the proof of its updates failed: the same command would fail again
# EX_TEMPFAIL of sysexits.h: the same command continues the run. For example, a task that has no launcher ends with this
# code if it loses another task of its cluster.
RETRY = 75
PORT_IN_USE = 98  # EADDRINUSE: the task needs another port
INTERRUPTED = 130  # by Ctrl-C
# After these exit codes of `task`, no scheduler starts the task again: the same command would end in the same way.
NEVER_RETRY = (BAD_INPUT, SUPERSEDED, FAILED_FOR_GOOD)

LONGEST_TYPO = 200  # characters; a longer name is not a typing mistake, and comparing it would take seconds


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Return "did you mean 'x'? " with the known name that is most similar to `name`; "" if none is similar.

    Only the last parts of dotted keys are compared. A key in the same section is preferred, but
    optimizer.learning_rate is also found for training.learning_rate.
    """
    if len(name) > LONGEST_TYPO:
        return ""
    section, _, last = name.rpartition(".")
    parts = [(key.rpartition("."), key) for key in known]
    same_section = {ending: key for (start, _, ending), key in parts if start == section}
    all_sections = {ending: key for (_, _, ending), key in parts}
    similar = [keys[ending] for keys in (same_section, all_sections) for ending in get_close_matches(last, keys, 1)]
    return f"did you mean '{similar[0]}'? " if similar else ""


class UserError(Exception):
    """Bad input from the user. The message is one line with the field, its value, and what to do.

    The command line prints it on stderr and exits with code 2.
    """


class FailedComputation(UserError):
    """An error in the computation of the user's network, loss or data. It would occur again in every attempt."""


class RunFailed(Exception):
    """A failure of the machine or of a child process. The message is one line: what failed, why, and where the log is.

    The command line prints it on stderr and exits with code 1.
    """


class TemporaryFailure(RunFailed):
    """A failure that may pass. The command `task` exits with code 75: run the same command again to continue."""


class LostTask(TemporaryFailure):
    """The loss of another task, without which this task can't continue."""


class TrainingFailed(RunFailed):
    """The failure of a training that the Python API started.

    Attributes:
      task: the task that failed, e.g. "worker-0"; None if no task failed.
      reason: the cause, in one line.
      log: the log with the details.
    """

    def __init__(self, task: str | None, reason: str, log: Path):
        super().__init__(reason)
        self.task, self.reason, self.log = task, reason, log
