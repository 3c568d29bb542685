"""The error for content that can't be accepted."""


class Malformed(ValueError):
    """Content that is damaged, too large, or not what it has to be. The message is one clause without the file's name."""
