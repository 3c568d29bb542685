"""Fork tasks from a process that has imported what they need. They start at once and share the memory of the import.

The process has a single thread (OMP_NUM_THREADS=1 keeps numpy from starting others) and starts nothing in TensorFlow, so
a fork is safe. The launcher's side is in forked_tasks.py, the program in launch/fork_server_program.py.
"""

from __future__ import annotations

import ctypes
import gc
import json
import os
import random
import runpy
import socket
import sys
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import NoReturn

import psutil
from setproctitle import getproctitle, setproctitle

# Sent with three descriptors: a file with the request (a socket carries only 200 kB at once), the log, and a pipe.
ASK = b"fork"
ANSWER_BYTES = 32  # a pid, in decimal
_MADV_DONTNEED = 4


@dataclass(frozen=True)
class ForkRequest:
    """A task that the launcher asks for: its command `python -m MODULE …`, its environment and its folder."""

    argv: Sequence[str]
    env: Mapping[str, str]
    cwd: str

    def to_json(self) -> bytes:
        return json.dumps(asdict(self)).encode()

    @classmethod
    def from_json(cls, content: bytes) -> ForkRequest:
        given = json.loads(content)
        return cls(argv=given["argv"], env=given["env"], cwd=given["cwd"])


def serve(channel: socket.socket, import_tasks: Callable[[], None]) -> None:
    """Fork a task for each message, and answer with the pid of the task, until the launcher closes the channel."""
    gc.disable()  # everything that is imported stays, so collecting garbage meanwhile would only take time
    import_tasks()
    getproctitle()  # finds where the title is stored; forks can't find it once their environment has changed
    gc.collect()
    gc.freeze()  # else a garbage collection writes to every shared page, which copies it
    gc.enable()
    _let_go_of_unchanged_files()
    while True:
        message, descriptors, *_ = socket.recv_fds(channel, len(ASK), 3)
        if not message:
            return
        asked, log, permission = descriptors
        with os.fdopen(asked, "rb") as file:  # the launcher has written it, so its position is at the end
            file.seek(0)
            request = ForkRequest.from_json(file.read())
        pid = _fork_for_the_launcher(request, channel, log, permission)
        os.close(log)
        os.close(permission)
        channel.send(b"%d" % pid)


def _let_go_of_unchanged_files() -> None:
    """Release library pages that the import has read: some 240 MB that count as memory of this process.

    A page that is needed again comes back from the page cache. Pages that are writable or changed are left alone. If
    the kernel refuses, this costs memory and does no other harm.
    """
    madvise = ctypes.CDLL(None).madvise
    madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
    for region in psutil.Process().memory_maps(grouped=False):
        changed = region.anonymous or region.swap
        if region.path.startswith("/") and region.perms in ("r-xp", "r--p") and not changed:
            begin, end = (int(address, 16) for address in region.addr.split("-"))
            madvise(begin, end - begin, _MADV_DONTNEED)


def _fork_for_the_launcher(request: ForkRequest, channel: socket.socket, log: int, permission: int) -> int:
    """Fork a task that becomes a child of the launcher, and return the pid of the task.

    This forks twice: the process in between ends, and the launcher, as subreaper, adopts the task. The launcher writes
    into the pipe `permission` once it knows the pid. A launcher that has given up closes the pipe without writing.
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
            if not os.read(permission, 1):
                os._exit(0)  # the launcher gave up this fork, and another process gets its address
            os.close(permission)
            _become(request, log)
        os.write(writer, b"%d" % pid)
        os._exit(0)
    os.close(writer)
    os.waitpid(between, 0)
    with os.fdopen(reader, "rb") as answer:
        return int(answer.read())


def _become(request: ForkRequest, log: int) -> NoReturn:
    """Turn this fork into `python -m MODULE ARGUMENTS`, in a new session, with its output in the log."""
    os.setsid()
    nothing = os.open(os.devnull, os.O_RDONLY)
    for ours, standard in ((nothing, 0), (log, 1), (log, 2)):
        os.dup2(ours, standard)
    os.close(nothing)
    os.close(log)
    os.environ.clear()
    os.environ.update(request.env)
    os.chdir(request.cwd)
    setproctitle(" ".join(request.argv))
    random.seed()
    code = 1
    try:
        sys.argv = list(request.argv[2:])
        runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
        code = 0
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:
        traceback.print_exc()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
