"""Run a command of this package in a process of its own, print its lines, and look after it until it has ended."""

from __future__ import annotations

import os
import re
import select
import signal
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType

from ps_cluster.config import user_code
from ps_cluster.config.user_layers import without_variables
from ps_cluster.errors import BAD_INPUT, TrainingFailed, UserError
from ps_cluster.installation import IMPORT_FOLDER
from ps_cluster.notices import Notify
from ps_cluster.process_variables import CALLER_PID, LAUNCHER_PID
from ps_cluster.report.terminal import print_line
from ps_cluster.system.child_process import ChildProcess, how_ended

COMMAND = (sys.executable, "-P", "-m", "ps_cluster")
OUTPUT_INTERVAL_S = 0.2
_CHUNK_BYTES = 2**16
_ERROR = "Error: "  # begins the line that says why a command failed
_LOG = re.compile(r"\(log: (?P<path>[^)]+)\)")


def refuse_within_a_run(function: str) -> None:
    """Raise UserError where a process of a run calls this function of the Python API, by importing the user's file.

    Every process of a run imports the file that defines its network. If the file started a run then, each of these would
    start another one, without end.
    """
    file = user_code.file_that_runs()
    if file is None and LAUNCHER_PID not in os.environ:
        return
    raise UserError(
        f"{function}: it was called by a process of a run, which imports {file or 'your code'}, and would start a run in "
        'each of them: put the call under if __name__ == "__main__":'
    )


class Program:
    """A command that runs beside this process, and ends with it however this process ends.

    It leads a session of its own. So Ctrl-C in a terminal comes to this process alone, which hands it on.
    """

    def __init__(self, argv: Sequence[str], say: Notify = print_line, *, environment: Mapping[str, str] | None = None):
        """Start the command.

        Args:
          say: called with each of its lines, but not with its error.
          environment: of the command; None: that of this process without variables for settings, so that the caller's
            arguments alone decide them.
        """
        self._say = say
        self._error = ""
        self._begun_line = b""
        self._output, output = os.pipe()
        os.set_blocking(self._output, False)
        try:
            self._child = ChildProcess.start(
                argv,
                env=_with_places(without_variables(os.environ) if environment is None else environment),
                output=output,
            )
        finally:
            os.close(output)

    def __enter__(self) -> Program:
        return self

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        self._child.kill()  # its tasks end with it
        os.close(self._output)

    def attend(self, look: Callable[[], bool] = lambda: False) -> None:
        """Print its lines until it has ended.

        Args:
          look: called several times a second, and once at the end. If it returns True, the command is asked to stop
            early, and `look` is not called again.
        Raises:
          Whatever `look` raises, or KeyboardInterrupt, when the command has stopped early. A further Ctrl-C makes it
          stop at once.
        """
        wanted = True
        try:
            while self._goes_on():
                if wanted and look():
                    wanted = False
                    self.stop()
            if wanted:
                look()
        except BaseException:
            self._leave()
            raise

    def stop(self) -> None:
        """Ask it to stop: it finishes the steps under way, and writes and scores a last checkpoint."""
        self._child.signal(signal.SIGTERM)

    def check(self, log: Path) -> None:
        """Raise what its exit code says.

        Args:
          log: where to look if its error names no other.
        Raises:
          UserError: bad input.
          TrainingFailed: it failed, or was stopped from outside before it could end.
        """
        code = self._child.exit_code
        if not code:
            return
        if code == BAD_INPUT:
            raise UserError(self._error)
        reason = self._error or f"the command ended with {how_ended(code)}"
        named = _LOG.search(reason)
        task = Path(named["path"]).stem if named else None
        raise TrainingFailed(task, reason, Path(named["path"]) if named else log)

    def _leave(self) -> None:
        self.stop()
        while True:
            try:
                while self._goes_on():
                    pass
                return
            except KeyboardInterrupt:
                self.stop()

    def _goes_on(self) -> bool:
        """Print what it has written, waiting a moment for it. Return False when it has ended and all is printed."""
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
        if not chunk and self._child.running:  # it has closed its output: nothing to wait for there
            time.sleep(OUTPUT_INTERVAL_S)
        return chunk

    def _tell(self, *lines: bytes) -> None:
        for line in (one.decode(errors="replace") for one in lines):
            if line.startswith(_ERROR) and not self._error:
                self._error = line.removeprefix(_ERROR)
            else:
                self._say(line)


def _with_places(environment: Mapping[str, str]) -> dict[str, str]:
    """Return an environment in which a command finds this package, and the modules that this process finds."""
    places = dict.fromkeys([str(IMPORT_FOLDER), *map(os.path.abspath, sys.path)])
    return {**environment, "PYTHONPATH": os.pathsep.join(places), CALLER_PID: str(os.getpid())}
