"""The exceptions that are told in one line, and the hint that goes into such a line."""

from collections.abc import Iterable
from difflib import get_close_matches
from pathlib import Path

# The exit codes of commands and tasks. A process that a signal has ended has 128 and the signal's number, as in a shell.
FAILED = 1  # of the machine, of a child process, or a bug
BAD_INPUT = 2  # the same command would fail again
SUPERSEDED = 3  # a task whose place another process has taken
FAILED_FOR_GOOD = 4  # a training that diverged, or whose proof does not hold: the same command would change nothing
RETRY = 75  # EX_TEMPFAIL of sysexits.h: the same command goes on, e.g. of a task that no launcher started and that lost another
PORT_IN_USE = 98  # EADDRINUSE: with another port it goes on
INTERRUPTED = 130  # by Ctrl-C
# After these exit codes of `task`, no scheduler starts the task again: the same command would end in the same way.
NEVER_RETRY = (BAD_INPUT, SUPERSEDED, FAILED_FOR_GOOD)

LONGEST_TYPO = 200  # characters: to compare longer names takes seconds, and nobody mistypes them


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Return "did you mean 'x'? " with the known name that is nearest to `name`; "" where none is near.

    Of dotted keys the last parts are compared, first those beside it: optimizer.learning_rate is near to
    training.learning_rate.
    """
    if len(name) > LONGEST_TYPO:
        return ""
    section, _, last = name.rpartition(".")
    parts = [(one.rpartition("."), one) for one in known]
    beside = {ending: one for (start, _, ending), one in parts if start == section}
    others = {ending: one for (_, _, ending), one in parts}
    near = [names[one] for names in (beside, others) for one in get_close_matches(last, names, 1)]
    return f"did you mean '{near[0]}'? " if near else ""


class UserError(Exception):
    """Bad input from the user, told in one line: the field, the value it got, and what to do.

    The command line prints it on stderr and exits with code 2.
    """


class FailedComputation(UserError):
    """An error in the user's own computation, in their network, loss or data. Every attempt would meet it again."""


class RunFailed(Exception):
    """A failure of the machine or of a child process, told in one line: which, why, where its logs are; exit code 1.

    Any other exception that escapes is a bug.
    """


class LostTask(RunFailed):
    """Another task was lost, without which this one can't go on. The same command, run again, goes on."""


class TrainingFailed(RunFailed):
    """A failure of a training that the Python API has started.

    Attributes:
      task: the task that failed, e.g. "worker-0"; None if it was none of them.
      reason: why, in one line.
      log: the log to look into.
    """

    def __init__(self, task: str | None, reason: str, log: Path):
        super().__init__(reason)
        self.task, self.reason, self.log = task, reason, log
