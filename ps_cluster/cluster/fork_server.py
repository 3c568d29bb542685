"""A process that has imported TensorFlow and forks tasks: they start at once and share the pages of the import.

    python -m ps_cluster.cluster.fork_server CHANNEL RUN_DIR

It has a single thread and starts nothing in TensorFlow, so there is nothing that a fork could break. RUN_DIR is there to
be seen in the list of processes. fork_client.py is the launcher's side.
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
import sys
import time
import traceback
from typing import Any, NoReturn

import psutil
from setproctitle import getproctitle, setproctitle

from ps_cluster.cluster.lifeline import die_with_launcher

MESSAGE_BYTES = 1 << 20
# A place where a test can stop this process: the variable names a file; once it is there it is taken away, and after the
# next fork, before the answer, the process stops itself.
STOP_VARIABLE = "PS_CLUSTER_TEST_FORK_STOP"
_MADV_DONTNEED = 4
PRELOADED = (
    "ps_cluster.training.async_trainer",
    "ps_cluster.training.sync_trainer",
    "ps_cluster.evaluation.evaluator",
    "ps_cluster.evaluation.views",
)


def serve(channel: socket.socket) -> None:
    """Forks a task for every message until the launcher closes the channel; answers with the task's pid."""
    for module in PRELOADED:
        importlib.import_module(module)
    getproctitle()  # finds where the title is, which the forks could not once their environment has changed
    gc.collect()
    gc.freeze()  # a collection would write to every page that the tasks share
    _let_go_of_unchanged_files()
    while True:
        message, descriptors, *_ = socket.recv_fds(channel, MESSAGE_BYTES, 2)
        if not message:
            return
        log, leave = descriptors
        pid = _fork_for_the_launcher(json.loads(message), channel, log, leave)
        os.close(log)
        os.close(leave)
        _stop_where_a_test_wants_it()
        channel.send(b"%d" % pid)


def _stop_where_a_test_wants_it() -> None:
    if path := os.environ.get(STOP_VARIABLE):
        with contextlib.suppress(FileNotFoundError):
            os.unlink(path)
            os.kill(os.getpid(), signal.SIGSTOP)


def _let_go_of_unchanged_files() -> None:
    """Unmaps the pages of libraries that the import has read and no fork needs: some 240 MB that count as this process's.

    Whoever touches one gets it back out of the system's cache. Left alone is what can be written or holds a change. A kernel
    that refuses costs memory and nothing else.
    """
    madvise = ctypes.CDLL(None).madvise
    madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
    for region in psutil.Process().memory_maps(grouped=False):
        changed = region.anonymous or region.swap
        if region.path.startswith("/") and region.perms in ("r-xp", "r--p") and not changed:
            begin, end = (int(address, 16) for address in region.addr.split("-"))
            madvise(begin, end - begin, _MADV_DONTNEED)


def _fork_for_the_launcher(request: dict[str, Any], channel: socket.socket, log: int, leave: int) -> int:
    """A process whose parent is the launcher: the one in between has ended when this returns the pid.

    Args:
      leave: a pipe; the launcher writes into it when it knows the pid, and closes it when it never will.
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
                os._exit(0)  # nobody would watch it, and another process gets its address
            os.close(leave)
            _become(request, log)
        os.write(writer, b"%d" % pid)
        os._exit(0)
    os.close(writer)
    os.waitpid(between, 0)
    with os.fdopen(reader, "rb") as answer:
        return int(answer.read())


def _become(request: dict[str, Any], log: int) -> NoReturn:
    """What `python -m MODULE ARGUMENTS` would be in a session of its own, with its output in the log."""
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
