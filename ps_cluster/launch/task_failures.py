"""Find out what an error of a task means: bad input, the loss of another task, or a port that another program has."""

from __future__ import annotations

import errno
import re
from collections.abc import Iterator

from ps_cluster.config.tasks import Task
from ps_cluster.errors import FailedComputation, LostTask
from ps_cluster.models.failures import failure_of_computation, reason_of

# Codes of the TensorFlow errors that show the loss of another task: cancelled, deadline, aborted, unavailable.
_LOST = {1, 4, 10, 14}
_LOST_TASK = re.compile(r"/job:(ps|worker|chief)/replica:0/task:(\d+)")

# TensorFlow 2.21's only message for a taken port; ps, worker and chief raise the same UnknownError.
_NO_SERVER = "Could not start gRPC server"
MESSAGE_CHARACTERS = 500


def as_failure(error: BaseException) -> BaseException:
    """Convert an error in the user's own computation to a UserError, as it would occur again; else return `error`."""
    for cause in _causes(error):
        if failure := failure_of_computation(cause):
            return FailedComputation(failure).with_traceback(error.__traceback__)
    return error


def as_loss(error: BaseException) -> BaseException:
    """Convert an error that shows the loss of another task to a LostTask. Pass any other error to `as_failure`."""
    for cause in _causes(error):
        if getattr(cause, "error_code", None) in _LOST:
            match = _LOST_TASK.search(str(cause))
            lost = Task(match[1], int(match[2])) if match else "a task"
            line = f"{lost} was lost; start this task again to continue from the newest snapshot ({reason_of(cause)})"
            return LostTask(line[:MESSAGE_CHARACTERS])
    return as_failure(error)


def is_taken_port(error: BaseException) -> bool:
    """Return whether an error says that a server could not start because another program has the port."""
    return any(
        _NO_SERVER in str(cause) or getattr(cause, "errno", None) == errno.EADDRINUSE for cause in _causes(error)
    )


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__
