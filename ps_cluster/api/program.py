"""Run a command of this package in a separate process, print its lines, and wait until it has ended."""

from __future__ import annotations

import os
import select
import signal
import sys
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path

from ps_cluster.config import user_code
from ps_cluster.config.user_settings import without_variables
from ps_cluster.errors import BAD_INPUT, TrainingFailed, UserError
from ps_cluster.installation import IMPORT_FOLDER
from ps_cluster.notices import Notify
from ps_cluster.process_variables import CALLER_PID, LAUNCHER_PID
from ps_cluster.report.terminal import print_line
from ps_cluster.runs.logs import ERROR_PREFIX, log_named_in
from ps_cluster.runs.run_dir import RunDir
from ps_cluster.system.child_process import ChildProcess, how_ended

COMMAND = (sys.executable, "-P", "-m", "ps_cluster")
OUTPUT_INTERVAL_S = 0.2
_CHUNK_BYTES = 2**16


def refuse_within_a_run(function: str) -> None:
    """Raise UserError if a process of a run calls `function` of the Python API while it imports the user's file.

    Every process of a run imports the file that defines its network. If the file started a run, each of these processes
    would start another run, without end.
    """
    file = user_code.file_that_runs()
    if file is None and LAUNCHER_PID not in os.environ:
        return
    raise UserError(
        f"{function}: it was called by a process of a run, which imports {file or 'your code'}, so each process would start "
        'another run: put the call under if __name__ == "__main__":'
    )


def run_program(
    argv: Sequence[str],
    log: Path,
    poll: Callable[[], bool] = lambda: False,
    *,
    notify: Notify = print_line,
    environment: Mapping[str, str] | None = None,
) -> None:
    """Run a command in a child process until it has ended, and raise the error that its exit code stands for.

    For the arguments and errors, see `Program` and its methods `attend` and `check`.
    """
    with Program(argv, notify, environment=environment) as program:
        program.attend(poll)
        program.check(log)


class Program:
    """A command that runs in a child process. It ends when this process ends, however that happens.

    The command has a separate process session. So Ctrl-C in a terminal reaches only this process, which passes it on.
    """

    def __init__(
        self, argv: Sequence[str], notify: Notify = print_line, *, environment: Mapping[str, str] | None = None
    ):
        """Start the command.

        Args:
          notify: called with each line that the command prints, but not with its error.
          environment: the environment of the command; None: this process's environment without variables for settings,
            so that only the caller's arguments decide the settings.
        """
        self._notify = notify
        self._error = ""
        self._begun_line = b""
        environment = without_variables(os.environ) if environment is None else environment
        # The command can import this package and all modules that this process can import.
        places = dict.fromkeys([str(IMPORT_FOLDER), *map(os.path.abspath, sys.path)])
        environment = {**environment, "PYTHONPATH": os.pathsep.join(places), CALLER_PID: str(os.getpid())}
        self._output, output = os.pipe()
        os.set_blocking(self._output, False)
        try:
            self._child = ChildProcess.start(argv, env=environment, output=output)
        except BaseException:
            os.close(self._output)
            raise
        finally:
            os.close(output)

    def __enter__(self) -> Program:
        return self

    def __exit__(self, *_: object) -> None:
        self._child.kill()  # its tasks end with it
        os.close(self._output)

    def attend(self, poll: Callable[[], bool] = lambda: False) -> None:
        """Print the command's lines until it has ended.

        Args:
          poll: called several times a second, and once at the end. If it returns True, the command is asked to stop
            early, and `poll` is not called again.
        Raises:
          Whatever `poll` raises, or KeyboardInterrupt, once the command has stopped early. Another Ctrl-C stops the
          command at once.
        """
        wanted = True
        try:
            while self._print_new_lines():
                if wanted and poll():
                    wanted = False
                    self.stop()
            if wanted:
                poll()
        except BaseException:
            self._leave()
            raise

    def stop(self) -> None:
        """Ask the command to finish the steps under way, to write and score a last checkpoint, and to stop."""
        self._child.signal(signal.SIGTERM)

    def check(self, log: Path) -> None:
        """Raise the error that the command's exit code stands for; do nothing for code 0.

        Args:
          log: the log file that TrainingFailed names if the command's error message names none.
        Raises:
          UserError: bad input.
          TrainingFailed: the command failed, or was stopped from outside before it could end.
        """
        code = self._child.exit_code
        if not code:
            return
        if code == BAD_INPUT:
            raise UserError(self._error)
        reason = self._error or f"the command ended with {how_ended(code)}"
        named = log_named_in(reason)
        raise TrainingFailed(named.stem if named else None, reason, named or log)

    def _leave(self) -> None:
        """Ask the command to stop, and print its lines until it has ended. Each further Ctrl-C asks it again."""
        self.stop()
        while True:
            try:
                while self._print_new_lines():
                    pass
                return
            except KeyboardInterrupt:
                self.stop()

    def _print_new_lines(self) -> bool:
        """Wait a moment for output and print it. Return False if the command has ended and all its output is printed."""
        ended = not self._child.running  # before reading, so that no line before the end is missed
        waiting = select.poll()  # select.select takes no descriptor above 1,023
        waiting.register(self._output, select.POLLIN)
        ready = waiting.poll(0 if ended else 1000 * OUTPUT_INTERVAL_S)
        while ready and (chunk := self._read()):
            *lines, self._begun_line = (self._begun_line + chunk).split(b"\n")
            self._tell(*lines)
            if not ended:
                break
        if ended and self._begun_line:
            self._tell(self._begun_line)
        return not ended

    def _read(self) -> bytes:
        try:
            chunk = os.read(self._output, _CHUNK_BYTES)
        except BlockingIOError:
            return b""
        if not chunk and self._child.running:  # the command has closed its output, so `poll` no longer waits
            time.sleep(OUTPUT_INTERVAL_S)
        return chunk

    def _tell(self, *lines: bytes) -> None:
        for line in (one.decode(errors="replace") for one in lines):
            if line.startswith(ERROR_PREFIX) and not self._error:
                self._error = line.removeprefix(ERROR_PREFIX)
            else:
                self._notify(line)


def words_of_run(
    words: Sequence[str],
    run: RunDir,
    settings: Mapping[str, object],
    *,
    without: Sequence[str],
    flags: Sequence[str] = (),
) -> list[str]:
    """Return the user's command line `ps-cluster run`, as words, with a given run directory and changed settings.

    Args:
      words: the words after `run` on the user's command line.
      run: the run directory of the returned command. It replaces that of --run-dir on the user's command line.
      settings: the settings to change, by dotted key. They replace those of --set on the user's command line.
      without: the options with a value that are left out.
      flags: the options without a value that are left out.
    """
    added = [word for key, value in settings.items() for word in ("--set", f"{key}={value}")]
    kept = without_options(words, (*without, "--run-dir"), flags, settings.keys())
    return [*COMMAND, "run", *kept, "--run-dir", str(run.root), *added]


def without_options(
    words: Sequence[str], names: Collection[str], flags: Collection[str] = (), keys: Collection[str] = ()
) -> list[str]:
    """Return the words without some options.

    Args:
      names: options that have a value, as "--name VALUE" or "--name=VALUE".
      flags: options without a value.
      keys: dotted keys of settings. "--set KEY=VALUE" is left out for these.
    """
    kept: list[str] = []
    rest = iter(words)
    for word in rest:
        name, separator, value = word.partition("=")
        if name in names:
            if not separator:
                next(rest, None)
        elif name == "--set":
            assignment = value if separator else next(rest, "")
            if assignment.partition("=")[0].strip() not in keys:
                kept += ["--set", assignment]
        elif name not in flags:
            kept.append(word)
    return kept
