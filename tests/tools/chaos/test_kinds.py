"""What the kinds of fault use of the system, each on a process of a second or two."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from ps_cluster.system.private_network import NAMESPACE_ARGV, network_for
from ps_cluster.tools.chaos.control_group import FIVE_PERCENT, NO_MEMORY, count_in, limited, why_no_limit
from ps_cluster.tools.chaos.kinds import FAULTS
from ps_cluster.tools.chaos.namespaces import MOUNTS, NETWORK, NotAllowed, inside, run_in, take_mounts_of_its_own
from tests.helpers.namespaces import as_ourselves, skip_unless_allowed
from tests.helpers.processes import wait_until
from tests.helpers.real_cluster import start_in_session

BUSY = "while True: pass"
GREEDY = "import sys; sys.stdin.read(1); kept = [bytearray(b'x' * 1000000) for _ in range(100)]"


@pytest.fixture
def python():
    """python(code, **options) → a process that runs it; ended when the test is."""
    started = []

    def start(code, *arguments, **options):
        argv = [sys.executable, "-I", "-S", "-c", code, *map(str, arguments)]
        started.append(subprocess.Popen(argv, **options))
        return started[-1]

    yield start
    for process in started:
        process.kill()
        process.communicate()


def groups():
    """Those that this process has made."""
    return [name for name, *_ in os.walk("/sys/fs/cgroup") if f"ps-cluster-chaos-{os.getpid()}-" in name]


def skip_where(limit):
    if reason := why_no_limit(limit):
        pytest.skip(reason)


def test_a_process_without_more_memory_is_killed_by_the_kernel_and_its_group_removed(python):
    skip_where(NO_MEMORY)
    process = python(GREEDY, stdin=subprocess.PIPE)
    with limited(process.pid, NO_MEMORY) as group:
        assert count_in(group, "oom_kill") == 0
        process.stdin.write(b"!")
        process.stdin.flush()
        assert process.wait(timeout=20) == -signal.SIGKILL
        assert count_in(group, "oom_kill") == 1
    assert groups() == []


def ran_s(process):
    """Return the seconds that the process has had a processor, to a few milliseconds."""
    return int(Path(f"/proc/{process.pid}/schedstat").read_text().split()[0]) / 1e9


def test_a_throttled_process_gets_a_twentieth_of_a_processor_and_leaves_the_group_at_the_end(python):
    skip_where(FIVE_PERCENT)
    process = python(BUSY)
    groups_before = Path(f"/proc/{process.pid}/cgroup").read_text()
    with limited(process.pid, FIVE_PERCENT) as group:
        wait_until(lambda: count_in(group, "nr_throttled") > 0)
        ran_before, began = ran_s(process), time.monotonic()
        time.sleep(0.5)
        most = 0.05 * (time.monotonic() - began) + 0.025  # The limit is for periods, and a window may touch two more.
        assert ran_s(process) - ran_before < most
    assert groups() == [] and Path(f"/proc/{process.pid}/cgroup").read_text() == groups_before


def test_a_system_without_control_groups_says_why_not(tmp_path):
    assert why_no_limit(NO_MEMORY, tmp_path / "nothing").endswith("no file system of control groups is mounted")
    (tmp_path / "memory").mkdir()
    assert why_no_limit(NO_MEMORY, tmp_path).endswith("does not enable the controller 'memory' for new groups")
    assert list((tmp_path / "memory").iterdir()) == []


def test_a_link_that_is_cut_carries_nothing_until_it_is_joined(tmp_path, python):
    skip_unless_allowed(as_ourselves)
    talk = (
        "import socket, sys\n"
        "for line in sys.stdin:\n"
        "    try:\n"
        "        with socket.create_server(('127.0.0.1', 0)) as server:\n"
        "            socket.create_connection(server.getsockname(), timeout=2).close()\n"
        "        print('heard', flush=True)\n"
        "    except OSError:\n"
        "        print('nothing', flush=True)\n"
    )
    with network_for("require", tmp_path, tmp_path, notify=pytest.fail) as network:
        argv = [sys.executable, "-c", talk]
        speaker = network.popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1)

        def answer():
            speaker.stdin.write("\n")
            return speaker.stdout.readline().strip()

        assert answer() == "heard"
        with inside(speaker.pid, NETWORK) as its_network:
            run_in(its_network, *NAMESPACE_ARGV, "loopback", "down")
            assert answer() == "nothing"
            run_in(its_network, *NAMESPACE_ARGV, "loopback", "up")
        assert answer() == "heard"
        speaker.communicate()


def test_the_network_that_all_share_is_not_touched(python):
    process = python(BUSY)
    with pytest.raises(NotAllowed, match="no namespace of its own"), inside(process.pid, NETWORK):
        pass


def test_a_small_disk_is_full_for_the_process_alone_and_gone_with_it(tmp_path, python):
    write = (
        "import sys\n"
        "for line in sys.stdin:\n"
        "    try:\n"
        "        open(sys.argv[1], 'wb').write(bytes(100000))\n"
        "        print('written', flush=True)\n"
        "    except OSError as error:\n"
        "        print(error.strerror, flush=True)\n"
    )
    process = python(
        write, tmp_path / "file", stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1,
        preexec_fn=take_mounts_of_its_own,
    )  # fmt: skip

    def answer():
        process.stdin.write("\n")
        return process.stdout.readline().strip()

    assert answer() == "written"
    (tmp_path / "file").unlink()
    try:
        with inside(process.pid, MOUNTS) as mounts:
            for options in ("size=4k", "nr_inodes=1"):
                run_in(mounts, "/bin/mount", "-t", "tmpfs", "-o", options, "tmpfs", str(tmp_path))
                assert answer() == "No space left on device" and not (tmp_path / "file").exists()
                run_in(mounts, "/bin/umount", "--lazy", str(tmp_path))
    except NotAllowed as reason:
        pytest.skip(f"this user may not mount: {reason}")
    assert answer() == "written" and (tmp_path / "file").exists()


def test_a_clock_that_is_set_back_changes_the_time_and_no_wait(tmp_path):
    kind = FAULTS["clock set back"]
    variables = kind.environment(tmp_path)
    if not variables:
        pytest.skip("no C compiler")
    code = (
        "import sys, time, threading, ctypes\n"
        "def times(): return time.time(), time.monotonic()\n"
        "print(*times(), flush=True); sys.stdin.readline(); print(*times(), flush=True)\n"
        "class Timespec(ctypes.Structure): _fields_ = [('s', ctypes.c_long), ('ns', ctypes.c_long)]\n"
        "def until(seconds): t = time.time() + seconds; return Timespec(int(t), int(t % 1 * 1e9))\n"
        "libc, word = ctypes.CDLL(None), ctypes.create_string_buffer(64)\n"
        "def semaphore(): libc.sem_init(word, 0, 0); libc.sem_timedwait(word, ctypes.byref(until(0.2)))\n"
        "def futex(): ctypes.memset(word, 0, 64); libc.syscall(ctypes.c_long(202), word, ctypes.c_long(9 | 256),\n"
        "    ctypes.c_long(0), ctypes.byref(until(0.2)), ctypes.c_void_p(), ctypes.c_long(-1))\n"
        "def condition():\n"
        "    a, b = ctypes.create_string_buffer(64), ctypes.create_string_buffer(64)\n"
        "    libc.pthread_mutex_lock(a); libc.pthread_cond_timedwait(b, a, ctypes.byref(until(0.2)))\n"
        "for wait in (semaphore, futex, condition):\n"
        "    began = time.monotonic(); wait(); print(time.monotonic() - began, flush=True)\n"
    )
    process = start_in_session([sys.executable, "-c", code], env=os.environ | variables, stdin=subprocess.PIPE)
    before = [float(value) for value in process.stdout.readline().split()]
    assert before[0] == pytest.approx(time.time(), abs=5)

    class Scene:
        run = type("Run", (), {"tools": tmp_path})
        now = staticmethod(time.monotonic)

    assert kind.why_not(Scene.run) is None
    kind.inject(Scene)
    output, _ = process.communicate("\n", timeout=20)
    after, *waits = output.splitlines()
    wall, monotonic = (float(value) for value in after.split())
    assert wall - before[0] == pytest.approx(-3600, abs=5) and 0 <= monotonic - before[1] < 5
    assert len(waits) == 3 and all(0.19 < float(wait) < 5 for wait in waits)


def test_a_system_without_a_compiler_has_no_other_clock(tmp_path, monkeypatch):
    kind = FAULTS["clock set back"]
    monkeypatch.setenv("PATH", str(tmp_path))
    assert kind.environment(tmp_path) == {}
    assert "C compiler" in kind.why_not(type("Run", (), {"tools": tmp_path}))


def test_a_run_that_ignores_the_end_of_its_terminal_is_not_hung_up():
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        assert "nohup" in FAULTS["hang up"].why_not(None)
    finally:
        signal.signal(signal.SIGHUP, before)
    assert FAULTS["hang up"].why_not(None) is None
