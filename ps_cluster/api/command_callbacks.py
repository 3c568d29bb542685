"""The option --callbacks of the command `run`: call the Keras callbacks of a user's file while another process trains.

Callbacks need TensorFlow, which the launcher of a run never imports. So a run with callbacks needs two processes. The
process that the user has started calls the callbacks. It starts the launcher as a second process. The command of this
process is the user's, without --callbacks and with settings that make the run score each epoch (`with_epochs_scored`).
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Sequence
from pathlib import Path

from ps_cluster.api.keras_callbacks import check_callbacks
from ps_cluster.api.program import run_program, words_of_run
from ps_cluster.api.run_callbacks import RunCallbacks, with_epochs_scored
from ps_cluster.config import Resolved, user_code
from ps_cluster.errors import RunFailed, UserError
from ps_cluster.files.values import one_line
from ps_cluster.runs.run_dir import RunDir

_OPTION = "--callbacks"


def run_with_callbacks(name: str, words: Sequence[str], resolved: Resolved, root: Path) -> int:
    """Run the command `run` in a separate process, and call callbacks in this one. Return the exit code of the command.

    Args:
      name: FILE.py:NAME of a callback, of a list of them, or of a function that returns one of these.
      words: the words after `run` on the command line.
      resolved: the settings of the run.
      root: the directory of the run.
    """
    reference = user_code.parse(user_code.trust_reference(name, Path.cwd()))
    if reference is None:
        raise UserError(
            f"{_OPTION}: got '{one_line(name, 100)}': give FILE.py:NAME, where NAME is a callback in FILE.py, a list of "
            "callbacks, or a function that returns one of these"
        )
    found = user_code.load(reference)
    try:
        callbacks = check_callbacks(found() if callable(found) else found)
    except UserError:
        raise
    except Exception as error:
        raise UserError(
            f"{_OPTION}: '{reference}' raises {type(error).__name__}: {one_line(str(error), 300)}"
        ) from error
    run = RunDir(Path(os.path.realpath(root)))
    listener = RunCallbacks(run, callbacks=callbacks)
    of_checkpoints = {f"checkpoints.{key}": value for key, value in resolved.config.checkpoints}
    chosen = {key: value for key, value in of_checkpoints.items() if resolved.is_chosen(key)}
    added = {key: value for key, value in with_epochs_scored(chosen).items() if key not in chosen}

    def poll() -> bool:
        with _errors_of(reference, run):
            return listener.poll()

    run_program(words_of_run(words, run, added, without=(_OPTION,)), run.launcher_log, poll, environment=os.environ)
    with _errors_of(reference, run):
        listener.finish()
    return 0


@contextlib.contextmanager
def _errors_of(reference: user_code.Reference, run: RunDir) -> Iterator[None]:
    """Turn an exception of a callback from `reference` into RunFailed. The message names the run directory.

    UserError and RunFailed are not converted.
    """
    try:
        yield
    except (UserError, RunFailed):
        raise
    except Exception as error:
        where = f"; {error.__notes__[-1]}" if getattr(error, "__notes__", None) else "."
        raise RunFailed(
            f"{_OPTION}: '{reference}' raised {type(error).__name__}: {one_line(str(error), 300)}{where} The run directory "
            f"is '{run.root}'"
        ) from error
