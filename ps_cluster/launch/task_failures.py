"""Find out what an error of a task means: bad input, a failure that may pass, or a port that another program has."""

from __future__ import annotations

import errno
import re
from collections.abc import Iterator

from ps_cluster.config.tasks import Task
from ps_cluster.errors import FailedComputation, LostTask, RunFailed, TemporaryFailure, UserError
from ps_cluster.models.failures import failure_of_computation, reason_of

# Codes of the TensorFlow errors that show the loss of another task: cancelled, deadline, aborted, unavailable.
_LOST = {1, 4, 10, 14}
_LOST_TASK = re.compile(r"/job:(ps|worker|chief)/replica:0/task:(\d+)")

# The system refuses a file for one of these reasons only for a while, e.g. because the server of a shared folder is away.
_MAY_PASS = {
    errno.EIO, errno.EREMOTEIO, errno.ESTALE, errno.ETIMEDOUT, errno.EHOSTDOWN, errno.EHOSTUNREACH,
    errno.ENETUNREACH, errno.ENOTCONN, errno.ENFILE, errno.EMFILE, errno.ENOMEM, errno.ENOSPC, errno.EDQUOT,
}  # fmt: skip

# TensorFlow 2.21's only message for a taken port; ps, worker and chief raise the same UnknownError.
_NO_SERVER = "Could not start gRPC server"
MESSAGE_CHARACTERS = 500


def as_failure(error: BaseException) -> BaseException:
    """Return a UserError if `error` comes from the user's own computation. Otherwise return `error` itself.

    An error in the user's computation would occur again after a restart.
    """
    for cause in _causes(error):
        if failure := failure_of_computation(cause):
            return FailedComputation(failure).with_traceback(error.__traceback__)
    return error


def as_loss(error: BaseException) -> BaseException:
    """Return a LostTask if `error` shows that another task was lost, or a TemporaryFailure if the cause may pass.

    For any other error, return the result of `as_failure`.
    """
    for cause in _causes(error):
        if getattr(cause, "error_code", None) in _LOST:
            match = _LOST_TASK.search(str(cause))
            lost = Task(match[1], int(match[2])) if match else "a task"
            line = f"{lost} was lost; start this task again to continue from the newest snapshot ({reason_of(cause)})"
            return LostTask(line[:MESSAGE_CHARACTERS])
    if isinstance(error, (UserError, RunFailed, OSError)) and (temporary := temporary_failure(error)) is not None:
        return temporary
    return as_failure(error)


def temporary_failure(error: UserError | RunFailed | OSError) -> TemporaryFailure | None:
    """Return a TemporaryFailure if the cause of `error` may pass, e.g. a full disk or a lost file server; else None."""
    if not any(isinstance(cause, OSError) and cause.errno in _MAY_PASS for cause in _causes(error)):
        return None
    return TemporaryFailure(f"{error}; run the same command again to continue").with_traceback(error.__traceback__)


def is_taken_port(error: BaseException) -> bool:
    """Return whether an error says that a server could not start because another program has the port."""
    return any(
        _NO_SERVER in str(cause) or getattr(cause, "errno", None) == errno.EADDRINUSE for cause in _causes(error)
    )


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__
