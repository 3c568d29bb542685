"""The failures that are told in one line."""


class UserError(Exception):
    """Bad input from the user, told in one line: the field, the value it got, and what to do.

    The command line prints it on stderr and exits with code 2.
    """


class RunFailed(Exception):
    """The machine refused, or a program that this one has started failed: which, why, where its logs are; exit code 1.

    Anything else that escapes is a bug.
    """
