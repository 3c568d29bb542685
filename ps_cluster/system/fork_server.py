"""A process that imports TensorFlow once and forks tasks, which start at once and share the memory of the import.

    python -m ps_cluster.system.fork_server CHANNEL RUN_DIR

It has a single thread (OMP_NUM_THREADS=1 keeps numpy from starting others) and starts nothing in TensorFlow, so a fork
is safe. RUN_DIR is an argument only so that the list of processes shows it. The launcher's side comes first.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import importlib
import json
import os
import random
import runpy
import signal
import socket
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO, NoReturn

import psutil
from setproctitle import getproctitle, setproctitle

from ps_cluster.files.writing import open_append
from ps_cluster.quiet_import import import_tensorflow
from ps_cluster.system.last_words import last_words
from ps_cluster.system.lifetime import die_with_launcher

ARGV = (sys.executable, "-m", "ps_cluster.system.fork_server")
FIRST_ANSWER_TIMEOUT_S = 120.0  # it comes after the import of TensorFlow
ANSWER_TIMEOUT_S = 10.0  # a fork takes milliseconds
LOOK_EVERY_S = 0.5
KILLED_WITHIN_S = 5.0

# The launcher's side: a `popen` that starts `python -m MODULE` with TensorFlow already imported.

_PR_SET_CHILD_SUBREAPER, _PR_GET_CHILD_SUBREAPER = 36, 37


class ForkedProcess:
    """A task that the fork server forked and this process adopted; has the part of `subprocess.Popen` that is used."""

    def __init__(self, pid: int):
        self.pid = pid
        self.returncode: int | None = None  # negative: killed by that signal

    def poll(self) -> int | None:
        if self.returncode is None:
            ended, status = os.waitpid(self.pid, os.WNOHANG)
            if ended:
                self.returncode = os.waitstatus_to_exitcode(status)
        return self.returncode


class StopHeard(Exception):
    """The server was waited for, and the run has to stop at once."""


class ForkServer:
    """Starts the fork server with the first task, and again when it has ended or does not answer."""

    def __init__(
        self,
        popen: Callable[..., subprocess.Popen[bytes]],
        run_root: Path,
        log: Path,
        env: Mapping[str, str],
        clock: Callable[[], float],
        stops: Callable[[], bool],
    ):
        """Keep the settings.

        Args:
          popen: starts the server; tasks run in the same network as the server.
          stops: returns whether the run has to stop at once, which ends a wait for the server.
        """
        self._popen = popen
        self._clock = clock
        self._stops = stops
        self._timeout_s = FIRST_ANSWER_TIMEOUT_S
        self._run_root = run_root
        self._log = log
        self._env = env
        self._forks: set[int] = set()  # that were told in time
        self._log_start = 0  # bytes in the log before this server
        self._server: subprocess.Popen[bytes] | None = None
        self._channel: socket.socket | None = None

    @property
    def pid(self) -> int | None:
        return self._server.pid if self._server is not None and self._server.poll() is None else None

    def popen(self, argv: list[str], *, env: Mapping[str, str], cwd: Path, stdout: BinaryIO, **_: Any) -> ForkedProcess:
        """Run `python -m module …` in a fork: own session, no input, both outputs in `stdout`.

        Raises:
          OSError: the server did not come up, or has ended.
          StopHeard: see `stops`.
        """
        request = json.dumps({"argv": [str(argument) for argument in argv], "env": dict(env), "cwd": str(cwd)})
        if self.pid is not None and self._channel is not None:
            with contextlib.suppress(OSError):
                return self._ask(self._channel, request, stdout)
        channel = self._start()
        try:
            return self._ask(channel, request, stdout)
        except OSError as error:
            reason = self._why_ended() or str(error)
            self.close()
            message = f"the process that tasks are forked from does not answer: {reason} (log: {self._log})"
            raise OSError(message) from error

    def _ask(self, channel: socket.socket, request: str, stdout: BinaryIO) -> ForkedProcess:
        """Ask for a fork. It waits on a pipe until its pid is known here, and ends if the pipe is closed."""
        leave, give_leave = os.pipe()
        try:
            with os.fdopen(os.memfd_create("request"), "wb") as file:
                file.write(request.encode())
                file.flush()
                socket.send_fds(channel, [ASK], [file.fileno(), stdout.fileno(), leave])
            answer = self._answer(channel)
            if not answer:
                raise ConnectionError("it ended")
            self._forks.add(int(answer))
            os.write(give_leave, b"\n")
        finally:
            os.close(leave)
            os.close(give_leave)
        self._timeout_s = ANSWER_TIMEOUT_S
        return ForkedProcess(int(answer))

    def _answer(self, channel: socket.socket) -> bytes:
        """Return the server's answer. Wait in short turns: the clock counts only time in which this process ran."""
        deadline = self._clock() + self._timeout_s
        while True:
            try:
                return channel.recv(ANSWER_BYTES)
            except TimeoutError:
                if self._stops():
                    raise StopHeard from None
                if self._clock() > deadline:
                    raise

    def _start(self) -> socket.socket:
        """Start the server anew; return the channel to it."""
        self.close()
        channel, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._channel = channel
        channel.settimeout(LOOK_EVERY_S)
        self._timeout_s = FIRST_ANSWER_TIMEOUT_S
        with theirs, open_append(self._log) as log:
            self._log_start = log.tell()
            self._server = self._popen(
                [*ARGV, str(theirs.fileno()), str(self._run_root)],
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
        """Return why the server ended by itself, as it has written it; "" where it runs or has written nothing."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            if self._server is not None:
                return last_words(self._log, self._log_start, self._server.wait(KILLED_WITHIN_S))
        return ""

    def close(self) -> None:
        """End the server, and what it has forked too late; the tasks stay."""
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
        """Return the children of this process that are left of a server's process group and that nobody was told of."""
        children = [child.pid for child in psutil.Process().children()]
        return [pid for pid in children if pid not in self._forks and os.getpgid(pid) == group]


@contextmanager
def fork_server(
    popen: Callable[..., subprocess.Popen[bytes]],
    run_root: Path,
    log: Path,
    env: Mapping[str, str],
    clock: Callable[[], float],
    stops: Callable[[], bool] = lambda: False,
) -> Iterator[ForkServer]:
    """Yield a fork server. Inside the block, this process adopts orphaned descendants, so tasks are its children."""
    prctl = ctypes.CDLL(None).prctl
    before = ctypes.c_int()
    prctl(_PR_GET_CHILD_SUBREAPER, ctypes.byref(before))
    prctl(_PR_SET_CHILD_SUBREAPER, 1)
    try:
        with contextlib.closing(ForkServer(popen, run_root, log, env, clock, stops)) as server:
            yield server
    finally:
        prctl(_PR_SET_CHILD_SUBREAPER, before.value)


# The server's side.

ASK = b"fork"  # with descriptors: the request in a file (a socket takes 200 kB at once), the log, a pipe
ANSWER_BYTES = 32  # a pid, in decimal
_MADV_DONTNEED = 4
PRELOADED = (
    "ps_cluster.training.chief",
    "ps_cluster.training.all_reduce",
    "ps_cluster.evaluation.evaluator",
)


def serve(channel: socket.socket) -> None:
    """Fork a task for every message until the launcher closes the channel; answer with the task's pid."""
    gc.disable()  # all that is imported stays: to look it through again and again takes a tenth of the time
    import_tensorflow()
    for module in PRELOADED:
        importlib.import_module(module)
    getproctitle()  # finds where the title is stored; forks can't, once their environment has changed
    gc.collect()
    gc.freeze()  # else a garbage collection writes to every shared page, which copies it
    gc.enable()
    _let_go_of_unchanged_files()
    while True:
        message, descriptors, *_ = socket.recv_fds(channel, len(ASK), 3)
        if not message:
            return
        asked, log, leave = descriptors
        with os.fdopen(asked, "rb") as file:  # the launcher has left the place at its end
            file.seek(0)
            request = json.load(file)
        pid = _fork_for_the_launcher(request, channel, log, leave)
        os.close(log)
        os.close(leave)
        channel.send(b"%d" % pid)


def _let_go_of_unchanged_files() -> None:
    """Release library pages that the import has read: some 240 MB that count as memory of this process.

    A page that is needed again comes back from the page cache. Pages that are writable or changed are left alone. If
    the kernel refuses, it costs memory and nothing else.
    """
    madvise = ctypes.CDLL(None).madvise
    madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
    for region in psutil.Process().memory_maps(grouped=False):
        changed = region.anonymous or region.swap
        if region.path.startswith("/") and region.perms in ("r-xp", "r--p") and not changed:
            begin, end = (int(address, 16) for address in region.addr.split("-"))
            madvise(begin, end - begin, _MADV_DONTNEED)


def _fork_for_the_launcher(request: dict[str, Any], channel: socket.socket, log: int, leave: int) -> int:
    """Fork a task whose parent becomes the launcher, and return its pid.

    It is forked twice: the process in between ends, and the launcher, as subreaper, adopts the task.

    Args:
      leave: a pipe. The launcher writes into it once it knows the pid; it closes it unwritten when it gave up.
    """
    reader, writer = os.pipe()
    between = os.fork()
    if between == 0:
        between = os.getpid()
        pid = os.fork()
        if pid == 0:
            for descriptor in (channel.fileno(), reader, writer):
                os.close(descriptor)
            while os.getppid() == between:  # the launcher adopts this process when the one in between ends
                time.sleep(0.001)
            if not os.read(leave, 1):
                os._exit(0)  # the launcher does not know this process, and another one gets its address
            os.close(leave)
            _become(request, log)
        os.write(writer, b"%d" % pid)
        os._exit(0)
    os.close(writer)
    os.waitpid(between, 0)
    with os.fdopen(reader, "rb") as answer:
        return int(answer.read())


def _become(request: dict[str, Any], log: int) -> NoReturn:
    """Turn this fork into `python -m MODULE ARGUMENTS`, in a session of its own, with its output in the log."""
    os.setsid()
    nothing = os.open(os.devnull, os.O_RDONLY)
    for ours, standard in ((nothing, 0), (log, 1), (log, 2)):
        os.dup2(ours, standard)
    os.close(nothing)
    os.close(log)
    os.environ.clear()
    os.environ.update(request["env"])
    os.chdir(request["cwd"])
    setproctitle(" ".join(request["argv"]))
    random.seed()
    code = 1
    try:
        sys.argv = request["argv"][2:]
        runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
        code = 0
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:
        traceback.print_exc()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


if __name__ == "__main__":
    die_with_launcher()
    with socket.socket(fileno=int(sys.argv[1])) as launcher:
        serve(launcher)
