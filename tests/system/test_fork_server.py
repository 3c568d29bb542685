"""Real forks of a real server that has imported TensorFlow."""

import contextlib
import ctypes
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time

import pytest

from ps_cluster.clock import AwakeClock
from ps_cluster.launch import fork_server_program
from ps_cluster.system import environment
from ps_cluster.system.fork_server import ASK
from ps_cluster.system.forked_tasks import ForkServer
from tests.helpers import processes

pytestmark = pytest.mark.slow

ARGV = [sys.executable, "-m", "tests.helpers.forked_task"]


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    return tmp_path_factory.mktemp("forks")


@contextlib.contextmanager
def made(root, *how, **timeouts):
    def popen(argv, **options):
        return subprocess.Popen([*argv, str(root / "stop"), *how], **options)

    env = environment.for_child(os.environ)
    argv = (sys.executable, "-m", "tests.helpers.stopping_fork_server")
    with ForkServer(argv, popen, root, root / "server.log", env, AwakeClock(), **timeouts) as made:
        yield made
    processes.assert_none_left(root, within_s=0)


@pytest.fixture(scope="module")
def server(root):
    with made(root) as real:
        yield real


@pytest.fixture
def empty(tmp_path):
    """Yield a server that starts at once, because it imports nothing."""
    with made(tmp_path, "empty", answers_within_s=0.5) as one:
        yield one


@pytest.fixture
def fork(server, tmp_path):
    return forking(server, tmp_path)


def forking(server, tmp_path):
    def call(*arguments, env=None):
        env = environment.for_child(os.environ) | (env or {})
        with (tmp_path / "log").open("ab") as log:
            return server.popen([*ARGV, *arguments], env=env, cwd=tmp_path, stdout=log, start_new_session=True)

    return call


def ended(process, within_s=20):
    processes.wait_until(lambda: process.poll() is not None, within_s)
    return process.returncode


def test_a_fork_is_a_child_of_this_process_in_a_session_of_its_own_with_its_own_surroundings(fork, tmp_path):
    process = fork("exit", "3", env={"GREETING": "hello"})
    assert ended(process) == 3
    seen = json.loads((tmp_path / "log").read_text())
    assert (seen["pid"], seen["parent"], seen["session"]) == (process.pid, os.getpid(), process.pid)
    assert (seen["argv"], seen["folder"], seen["variable"]) == (["exit", "3"], str(tmp_path), "hello")
    assert seen["preloaded"] and seen["collects_garbage"]
    assert not any("socket" in descriptor for descriptor in seen["descriptors"]), "the launcher's channel is not for it"


def test_surroundings_of_a_megabyte_reach_a_fork(fork, tmp_path):
    process = fork("exit", "3", env={"GREETING": "hello"} | {f"LARGE_{number}": "x" * 2**17 for number in range(8)})
    assert ended(process) == 3
    assert json.loads((tmp_path / "log").read_text())["variable"] == "hello"


def test_how_a_fork_ended_is_told_as_of_a_program(fork, tmp_path):
    assert ended(fork("raise")) == 1
    assert "ValueError: as told" in (tmp_path / "log").read_text()
    waiting = fork("wait")
    processes.wait_until(lambda: f'"pid": {waiting.pid}' in (tmp_path / "log").read_text())
    assert waiting.poll() is None
    os.killpg(waiting.pid, signal.SIGKILL)
    assert ended(waiting) == -signal.SIGKILL
    assert waiting.poll() == -signal.SIGKILL, "asked again it still knows"


def test_the_list_of_processes_shows_a_fork_by_its_own_command(fork):
    waiting = fork("wait")
    (process,) = [p for p in processes.psutil.Process().children() if p.pid == waiting.pid]
    processes.wait_until(lambda: " ".join([*ARGV[1:], "wait"]) in " ".join(process.cmdline()))
    os.killpg(waiting.pid, signal.SIGKILL)
    ended(waiting)


def test_a_server_that_was_killed_is_started_again_and_its_forks_stay(empty, tmp_path):
    server, fork = empty, forking(empty, tmp_path)
    waiting, first = fork("wait"), server.pid
    os.kill(first, signal.SIGKILL)
    processes.wait_until(lambda: server.pid is None)
    assert ended(fork("exit", "0")) == 0
    assert server.pid != first and waiting.poll() is None
    os.killpg(waiting.pid, signal.SIGKILL)
    ended(waiting)


def test_a_server_stopped_between_fork_and_answer_is_replaced_and_its_fork_does_not_become_the_task(empty, tmp_path):
    server, fork = empty, forking(empty, tmp_path)
    ended(fork("exit", "0"))  # from here on it has half a second to answer
    stopped = server.pid
    others = {child.pid for child in processes.psutil.Process().children()} - {stopped}
    (tmp_path / "stop").touch()
    waiting = fork("wait")
    assert not (tmp_path / "stop").exists(), "it did not stop there"
    assert server.pid != stopped and not processes.psutil.pid_exists(stopped)
    processes.wait_until(lambda: f'"pid": {waiting.pid}' in (tmp_path / "log").read_text())
    assert {child.pid for child in processes.psutil.Process().children()} == others | {server.pid, waiting.pid}, (
        "the late fork is still in the list of processes"
    )
    os.killpg(waiting.pid, signal.SIGKILL)
    ended(waiting)
    begun = [json.loads(line)["pid"] for line in (tmp_path / "log").read_text().splitlines()]
    assert begun[1:] == [waiting.pid], "the one that the stopped server had forked began, too"


def test_this_process_adopts_orphans_no_longer_than_the_fork_server_is_there(tmp_path):
    def adopts():
        found = ctypes.c_int()
        ctypes.CDLL(None).prctl(37, ctypes.byref(found))  # PR_GET_CHILD_SUBREAPER
        return found.value

    before = adopts()
    ctypes.CDLL(None).prctl(36, 0)
    try:
        with pytest.raises(KeyboardInterrupt), ForkServer((), None, tmp_path, tmp_path, {}, None):
            assert adopts() == 1
            raise KeyboardInterrupt
        assert adopts() == 0
    finally:
        ctypes.CDLL(None).prctl(36, before)  # of the server that other tests of this module use


def test_a_server_has_a_single_thread_so_that_it_may_fork(server, fork):
    ended(fork("exit", "0"))
    assert processes.psutil.Process(server.pid).num_threads() == 1


def test_pages_of_libraries_that_the_import_has_read_are_not_kept(server, fork):
    ended(fork("exit", "0"))
    maps = processes.psutil.Process(server.pid).memory_maps(grouped=False)
    mapped = [region for region in maps if "tensorflow" in region.path and region.perms == "r-xp"]
    assert sum(region.size for region in mapped) > 200 * 2**20 and sum(region.rss for region in mapped) < 20 * 2**20


def test_a_server_that_can_not_be_started_is_an_error_and_closing_it_another_time_is_none(tmp_path):
    def refuse(*_, **__):
        raise OSError("no process left")

    with (
        ForkServer(
            fork_server_program.ARGV, refuse, tmp_path, tmp_path / "server.log", os.environ, time.monotonic
        ) as server,
        (tmp_path / "log").open("wb") as log,
        pytest.raises(OSError, match="no process left"),
    ):
        server.popen(ARGV, env=os.environ, cwd=tmp_path, stdout=log)


def test_a_server_that_does_not_come_up_is_an_error_with_its_reason_and_its_log(tmp_path):
    argv = (sys.executable, "-c", "raise SystemExit('no TensorFlow here')")
    with (
        ForkServer(argv, subprocess.Popen, tmp_path, tmp_path / "server.log", os.environ, AwakeClock()) as server,
        (tmp_path / "log").open("wb") as log,
        pytest.raises(OSError, match=r"does not answer: no TensorFlow here \(log: .*server\.log"),
    ):
        server.popen(ARGV, env=os.environ, cwd=tmp_path, stdout=log)
    assert "no TensorFlow here" in (tmp_path / "server.log").read_text()


class SlowServer:
    """In place of the process: answers each request with the pid 42, each later than the one before."""

    def __init__(self, argv, *, pass_fds, **_):
        self.pid, self.poll, self.kill, self.wait = 7, lambda: None, lambda: None, lambda timeout: None
        self._channel = socket.socket(fileno=os.dup(pass_fds[0]))
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self):
        with self._channel:
            for seconds in (0.0, 1.5):
                _, descriptors, *_ = socket.recv_fds(self._channel, len(ASK), 3)
                for descriptor in descriptors:
                    os.close(descriptor)
                time.sleep(seconds)
                self._channel.send(b"42")


def test_an_answer_is_late_only_by_a_clock_that_goes_on(tmp_path):
    """As after a suspend, the wait took longer than allowed, but on the clocks of both sides no time has passed."""
    with (
        ForkServer((), SlowServer, tmp_path, tmp_path / "server.log", {}, lambda: 0.0, answers_within_s=0.5) as server,
        (tmp_path / "log").open("wb") as log,
    ):
        pids = [server.popen(ARGV, env={}, cwd=tmp_path, stdout=log).pid for _ in range(2)]
    assert pids == [42, 42]
