"""The exceptions that are told in one line."""

from pathlib import Path


class UserError(Exception):
    """Bad input from the user, told in one line: the field, the value it got, and what to do.

    The command line prints it on stderr and exits with code 2.
    """


class RunFailed(Exception):
    """A failure of the machine or of a child process, told in one line: which, why, where its logs are; exit code 1.

    Any other exception that escapes is a bug.
    """


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
