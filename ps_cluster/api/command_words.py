"""The words of a command line, for a command that starts another one."""

from __future__ import annotations

from collections.abc import Collection, Sequence


def without_options(words: Sequence[str], names: Collection[str], flags: Collection[str] = ()) -> list[str]:
    """Return the words without some options.

    Args:
      names: options that have a value, as "--name VALUE" or "--name=VALUE".
      flags: options without a value.
    """
    kept, is_value = [], False
    for word in words:
        name, _, value = word.partition("=")
        if not is_value and name not in (*names, *flags):
            kept.append(word)
        is_value = not is_value and name in names and not value
    return kept
