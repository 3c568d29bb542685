"""The words of a command line, for a command that starts another one."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from ps_cluster.api.program import COMMAND
from ps_cluster.runs.run_dir import RunDir


def words_of_run(
    words: Sequence[str],
    run: RunDir,
    settings: Mapping[str, object],
    *,
    without: Sequence[str],
    flags: Sequence[str] = (),
) -> list[str]:
    """Return the words of a command line that starts the same `run` in another run directory, with more settings.

    Args:
      words: the words after `run` on the user's command line.
      run: the run directory of the new command.
      settings: dotted key → value of the settings to add.
      without, flags: the options to leave out, as in `without_options`.
    """
    added = [word for name, value in settings.items() for word in ("--set", f"{name}={value}")]
    kept = without_options(words, (*without, "--run-dir"), flags)
    return [*COMMAND, "run", *kept, "--run-dir", str(run.root), *added]


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
