"""The error for content that can't be accepted."""


class Malformed(ValueError):
    """Content that is damaged, too large, or of the wrong kind. The message is one clause without the file's name."""
