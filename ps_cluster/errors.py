"""The exceptions that are told in one line."""


class UserError(Exception):
    """Bad input from the user, told in one line: the field, the value it got, and what to do.

    The command line prints it on stderr and exits with code 2.
    """


class RunFailed(Exception):
    """A failure of the machine or of a child process, told in one line: which, why, where its logs are; exit code 1.

    Any other exception that escapes is a bug.
    """
