"""Which ports of a run can be reached from outside. Without isolation, everybody could connect to all of them."""

import contextlib
import json
import os
import signal
import socket
import stat
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from ps_cluster.runs.run_dir import RunDir
from ps_cluster.system.private_network import RunNetwork, network_for
from tests.helpers import listening_cluster
from tests.helpers.namespaces import as_ordinary_user, as_ourselves, skip_unless_allowed
from tests.helpers.processes import assert_none_left, has_heard, of_run, wait_until
from tests.helpers.real_cluster import small, start_in_session, unhurried, wait_for_training

pytestmark = pytest.mark.slow

PROJECT = Path(__file__).parents[2]


@pytest.fixture
def start(tmp_path):
    """start(setting, rights) → the launcher's process, once every task reached every other; nothing is left after."""
    run_dir = RunDir.create(tmp_path / "run")
    started = []

    def call(setting, rights=as_ourselves):
        argv = [sys.executable, listening_cluster.__file__, "launch", str(run_dir.root), str(tmp_path), setting]
        environment = os.environ | {"PYTHONPATH": str(PROJECT)}
        started.append(subprocess.Popen(argv, stdin=subprocess.PIPE, env=environment, preexec_fn=rights))
        wait_until(lambda: len(list(run_dir.root.glob("reached-*"))) == 5 or started[0].poll() is not None)
        assert started[0].poll() is None, "the launcher has ended"
        return started[0]

    call.run_dir = run_dir
    yield call
    for process in started:
        process.kill()
        process.wait()
        process.stdin.close()
    assert_none_left(run_dir.root)


def ports(run_dir: RunDir) -> list[int]:
    tasks = json.loads(run_dir.cluster.read_text())["tasks"]
    return [int(task["address"].rpartition(":")[2]) for task in tasks if task["address"]]


def open_from_here(run_dir: RunDir) -> list[tuple[str, int]]:
    """Return (address, port) of what answers. Every port of the run is tried on every address of this machine."""
    families = (socket.AF_INET, socket.AF_INET6)
    here = [a.address for nic in psutil.net_if_addrs().values() for a in nic if a.family in families]
    assert "127.0.0.1" in here and ports(run_dir)
    return [(host, port) for host in here for port in ports(run_dir) if answers(host, port)]


def answers(host: str, port: int) -> bool:
    try:
        socket.create_connection((host, port), timeout=2).close()
    except OSError:
        return False
    return True


def listening_here(run_dir: RunDir) -> list:
    """Return the sockets of the run's processes, of any kind, in the network of this process."""
    return [socket for process in of_run(run_dir.root) for socket in process.net_connections()]


def network_of(run_dir: RunDir) -> str:
    """Return the namespace that all tasks of the run share, e.g. net:[4026532258]."""
    tasks = json.loads(run_dir.cluster.read_text())["tasks"]
    (network,) = {os.readlink(f"/proc/{task['pid']}/ns/net") for task in tasks}
    return network


def held_by(network: str) -> list[str]:
    """Return what keeps a namespace alive: the processes in it, and the descriptors of it."""
    processes = [f"/proc/{pid}" for pid in psutil.pids()]
    return [
        link for one in processes for link in (f"{one}/ns/net", *descriptors(f"{one}/fd")) if target(link) == network
    ]


def assert_gone(network: str) -> None:
    """A process that is killed has lost its name a moment before it leaves its namespace."""
    wait_until(lambda: not held_by(network))  # on a busy machine the moment is long


def descriptors(folder: str) -> list[str]:
    with contextlib.suppress(OSError):
        return [f"{folder}/{name}" for name in os.listdir(folder)]
    return []


def target(link: str) -> str | None:
    try:
        return os.readlink(link)
    except OSError:  # it ended meanwhile, or belongs to somebody else
        return None


RIGHTS = pytest.mark.parametrize("rights", [as_ourselves, as_ordinary_user])


@RIGHTS
def test_tasks_reach_each_other_and_nobody_else_reaches_them_and_nothing_holds_their_network_at_the_end(start, rights):
    """Their files belong to who started the run."""
    skip_unless_allowed(rights)
    launcher = start("require", rights)
    assert json.loads(start.run_dir.cluster.read_text())["isolated"] is True
    assert open_from_here(start.run_dir) == [] and listening_here(start.run_dir) == []
    network = network_of(start.run_dir)
    assert network != os.readlink("/proc/self/ns/net") and held_by(network)
    written = [file.stat() for file in start.run_dir.root.glob("reached-*")]
    assert {(status.st_uid, status.st_gid) for status in written} == {(os.geteuid(), os.getegid())}
    launcher.stdin.close()
    assert launcher.wait(timeout=20) == 0
    assert_none_left(start.run_dir.root)
    assert_gone(network)


def test_without_isolation_the_same_tasks_answer_everybody(start):
    start("off")
    assert json.loads(start.run_dir.cluster.read_text())["isolated"] is False
    assert {("127.0.0.1", port) for port in ports(start.run_dir)} <= set(open_from_here(start.run_dir))
    assert network_of(start.run_dir) == os.readlink("/proc/self/ns/net")


@RIGHTS
def test_tasks_and_network_die_with_a_launcher_that_is_killed(start, rights):
    skip_unless_allowed(rights)
    launcher = start("require", rights)
    network = network_of(start.run_dir)
    assert len(of_run(start.run_dir.root)) == 6
    launcher.kill()
    launcher.wait()
    assert_none_left(start.run_dir.root)
    assert_gone(network)


def test_a_task_that_is_started_again_is_in_the_same_network(tmp_path):
    skip_unless_allowed(as_ourselves)
    show = (sys.executable, "-c", "import os; print(os.readlink('/proc/self/ns/net'), os.listdir('/proc/self/fd'))")
    with network_for("require", tmp_path, tmp_path, notify=pytest.fail) as network:
        runs = [subprocess.run(network.inside(show), pass_fds=network.descriptors, capture_output=True) for _ in "ab"]
    assert runs[0].stdout == runs[1].stdout and b"net:[" in runs[0].stdout
    assert b"['0', '1', '2', '3']" in runs[0].stdout, (
        "3 is the listing itself: no descriptor of the network is left open"
    )


def test_a_task_never_starts_outside_when_it_can_not_get_in(tmp_path):
    mistaken = os.open(os.devnull, os.O_RDONLY)
    argv = RunNetwork((mistaken,)).inside((sys.executable, "-c", "print('here I am')"))
    ended = subprocess.run(argv, pass_fds=[mistaken], capture_output=True, text=True)
    os.close(mistaken)
    assert ended.returncode == 1 and ended.stdout == ""
    assert ended.stderr == "private network: setns: Invalid argument\n"


@pytest.mark.cluster
def test_nobody_outside_reaches_any_port_of_a_real_run_and_a_second_signal_ends_it_at_once(tmp_path):
    skip_unless_allowed(as_ourselves)
    options = small("--workers", 1, "--steps", 100_000, *unhurried(workers=1), "--isolation", "require")
    argv = [sys.executable, "cli.py", "run", *map(str, options), "--run-dir", str(tmp_path / "run")]
    environment = os.environ | {"PS_CLUSTER_CACHE": str(tmp_path / "cache")}
    launcher = start_in_session(argv, cwd=PROJECT, env=environment, umask=0)
    run_dir = RunDir(tmp_path / "run")
    wait_for_training(run_dir.root)
    wait_until(lambda: list(run_dir.tensorboard.rglob("events.*")))
    assert open_from_here(run_dir) == [] and listening_here(run_dir) == []
    network = network_of(run_dir)
    everything = [tmp_path / "cache", run_dir.root, *run_dir.root.rglob("*"), *(tmp_path / "cache").rglob("*")]
    states = [path.lstat() for path in everything if not path.is_symlink() and path.exists()]
    assert not [status for status in states if status.st_mode & (stat.S_IWGRP | stat.S_IWOTH)]
    assert {status.st_uid for status in states} == {os.geteuid()}
    launcher.send_signal(signal.SIGTERM)
    wait_until(lambda: has_heard(launcher.pid, signal.SIGTERM))  # a second one would be the same signal before
    time.sleep(0.3)
    launcher.send_signal(signal.SIGTERM)
    assert launcher.wait(timeout=60) == 143
    assert_none_left(run_dir.root)
    assert_gone(network)
