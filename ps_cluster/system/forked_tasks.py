"""Start tasks as forks of a server that has imported TensorFlow (fork_server.py): they start at once and share its memory."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Unpack

import psutil

from ps_cluster.files.writing import open_append
from ps_cluster.runs.logs import with_log
from ps_cluster.system.child_process import Starter, StartOptions
from ps_cluster.system.failure_lines import failure_line
from ps_cluster.system.fork_server import ANSWER_BYTES, ASK, ForkRequest

FIRST_ANSWER_TIMEOUT_S = 120.0  # the first answer comes after the import of TensorFlow
ANSWERS_WITHIN_S = 10.0  # a fork takes milliseconds
_CHANNEL_POLL_S = 0.5
KILLED_WITHIN_S = 5.0

_PR_SET_CHILD_SUBREAPER, _PR_GET_CHILD_SUBREAPER = 36, 37


class ForkedProcess:
    """A task that the fork server has forked and this process has adopted. It implements `StartedProcess`."""

    def __init__(self, pid: int):
        self.pid = pid
        self.returncode: int | None = None  # negative: killed by that signal

    def poll(self) -> int | None:
        if self.returncode is None:
            ended, status = os.waitpid(self.pid, os.WNOHANG)
            if ended:
                self.returncode = os.waitstatus_to_exitcode(status)
        return self.returncode


class StopRequested(Exception):
    """Raised if the run is asked to stop at once while the launcher waits for the fork server."""


class ForkServer:
    """Runs the fork server, a process that has imported TensorFlow and forks tasks.

    The first task starts the server. A later task starts it again if it has ended or does not answer.

    Its method `popen` is a `Starter` that stands in for `subprocess.Popen`, for commands `python -m MODULE …`. Inside its
    `with` block this process adopts orphaned descendants, so the tasks are its children.

    `stops`: a function that returns whether the run has to stop at once. If so, a wait for the server ends early. The
    owner of this object may replace the function.
    """

    def __init__(
        self,
        argv: Sequence[str],
        popen: Starter[subprocess.Popen[bytes]],
        run_root: Path,
        log: Path,
        env: Mapping[str, str],
        clock: Callable[[], float],
        answers_within_s: float = ANSWERS_WITHIN_S,
    ):
        """Create the object. The server starts with the first task.

        Args:
          argv: the command of the server without its last two arguments, the number of a socket and the run directory.
          popen: starts the server; tasks run in the same network as the server.
          answers_within_s: how long the server may take for a fork, once it has answered for the first time.
        """
        self._argv = argv
        self._answers_within_s = answers_within_s
        self._popen = popen
        self._clock = clock
        self.stops: Callable[[], bool] = lambda: False
        self._timeout_s = FIRST_ANSWER_TIMEOUT_S
        self._run_root = run_root
        self._log = log
        self._env = env
        self._forks: set[int] = set()  # the pids that the server has sent in time
        self._log_start = 0  # bytes in the log before this server
        self._server: subprocess.Popen[bytes] | None = None
        self._adopted_before = ctypes.c_int()  # whether this process adopted orphans before the block
        self._channel: socket.socket | None = None

    def __enter__(self) -> ForkServer:
        prctl = ctypes.CDLL(None).prctl
        prctl(_PR_GET_CHILD_SUBREAPER, ctypes.byref(self._adopted_before))
        prctl(_PR_SET_CHILD_SUBREAPER, 1)
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
        ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, self._adopted_before.value)

    @property
    def pid(self) -> int | None:
        return self._server.pid if self._server is not None and self._server.poll() is None else None

    def popen(self, argv: list[str], *, env: Mapping[str, str], **options: Unpack[StartOptions]) -> ForkedProcess:
        """Run `python -m module …` in a fork, in a new session, without input. Its outputs go to the file `stdout`.

        Only the options `cwd` and `stdout` are used. The others ask for what every fork does. Raises OSError if the
        fork server does not start or has ended. Raises StopRequested if the attribute `stops`, a function, returns True
        while this method waits for the server.
        """
        cwd, stdout = options["cwd"], options["stdout"]
        assert stdout is not None, "a task needs a log, because it must not write to the output of the fork server"
        log = stdout if isinstance(stdout, int) else stdout.fileno()
        request = ForkRequest(argv, dict(env), str(cwd))
        if self.pid is not None and self._channel is not None:
            with contextlib.suppress(OSError):
                return self._ask(self._channel, request, log)
        channel = self._start()
        try:
            return self._ask(channel, request, log)
        except OSError as error:
            reason = self._why_ended() or str(error)
            self.close()
            message = f"the process that tasks are forked from does not answer: {reason}"
            raise OSError(with_log(message, self._log)) from error

    def _ask(self, channel: socket.socket, request: ForkRequest, log: int) -> ForkedProcess:
        """Ask the server for a fork, and return it once its pid is known.

        The fork waits until this process writes into a pipe, and ends if the pipe is closed before that.
        """
        permission, grant = os.pipe()
        try:
            with os.fdopen(os.memfd_create("request"), "wb") as file:
                file.write(request.to_json())
                file.flush()
                socket.send_fds(channel, [ASK], [file.fileno(), log, permission])
            answer = self._answer(channel)
            if not answer:
                raise ConnectionError("it ended")
            self._forks.add(int(answer))
            os.write(grant, b"\n")
        finally:
            os.close(permission)
            os.close(grant)
        self._timeout_s = self._answers_within_s
        return ForkedProcess(int(answer))

    def _answer(self, channel: socket.socket) -> bytes:
        """Wait for the server's answer, and return it. Raises TimeoutError, or StopRequested if `stops` returns True.

        Time in which this process was stopped does not count for the timeout. The clock can leave such time out only if
        it is read often, so the wait is divided into short steps.
        """
        deadline = self._clock() + self._timeout_s
        while True:
            try:
                return channel.recv(ANSWER_BYTES)
            except TimeoutError:
                if self.stops():
                    raise StopRequested from None
                if self._clock() > deadline:
                    raise

    def _start(self) -> socket.socket:
        """Start a new server, and return the channel to it."""
        self.close()
        channel, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._channel = channel
        channel.settimeout(_CHANNEL_POLL_S)
        self._timeout_s = FIRST_ANSWER_TIMEOUT_S
        with theirs, open_append(self._log) as log:
            self._log_start = log.tell()
            self._server = self._popen(
                # The command names the folder of the run, so that the list of processes shows it (`run_processes.belongs`).
                [*self._argv, str(theirs.fileno()), str(self._run_root)],
                env=dict(self._env),
                cwd=self._run_root,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                pass_fds=(theirs.fileno(),),
            )
        return channel

    def _why_ended(self) -> str:
        """Return the line of the log that says why the server ended; "" if it still runs or has written nothing."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            if self._server is not None:
                return failure_line(self._log, self._log_start, self._server.wait(KILLED_WITHIN_S))
        return ""

    def close(self) -> None:
        """End the server, and forks whose pids it did not report in time. All other tasks keep running."""
        if self._channel is not None:
            self._channel.close()
        if self._server is not None:
            self._server.kill()
            with contextlib.suppress(subprocess.TimeoutExpired):  # a process that hangs in the kernel does not end
                self._server.wait(KILLED_WITHIN_S)
            deadline = time.monotonic() + KILLED_WITHIN_S
            while (late := self._late_forks(self._server.pid)) and time.monotonic() < deadline:
                for pid in late:
                    os.kill(pid, signal.SIGKILL)
                    os.waitpid(pid, os.WNOHANG)
                time.sleep(0.001)
        self._channel = self._server = None

    def _late_forks(self, group: int) -> list[int]:
        """Return the pids of forks that the server did not report in time. `group`: the process group of the server."""
        children = [child.pid for child in psutil.Process().children()]
        return [pid for pid in children if pid not in self._forks and os.getpgid(pid) == group]
