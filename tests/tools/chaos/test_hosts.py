"""Hosts are machines to each other: their own addresses, names, links and folders."""

import contextlib
import os
import signal
import socket
import sys

import pytest

from ps_cluster.system.private_network import RunNetwork
from ps_cluster.tools.chaos.hosts import hosts, pids_in
from tests.helpers.namespaces import as_ordinary_user, as_ourselves, skip_unless_allowed
from tests.helpers.on_hosts import ask, can_reach, echo, heard, python, skip_without_hosts
from tests.helpers.processes import wait_until
from tests.helpers.real_cluster import start_in_session

pytestmark = pytest.mark.slow


@pytest.fixture
def pair():
    skip_without_hosts()
    with hosts(2) as machines:
        yield machines


def quickest(pair, size=1):
    """Return the fewest seconds that `size` bytes took to the first host and back: other programs may slow some down."""

    def once():
        server = echo(pair[0])
        process, seconds = ask(pair[1], pair[0], size)
        process.kill()
        server.wait(5)
        return seconds

    return min(once() for _ in range(3))


def test_hosts_reach_each_other_by_name_and_nobody_else_reaches_them(pair):
    server = echo(pair[1])
    assert can_reach(pair[0], "host-1", 2222) and server.wait(5) == 0
    assert not can_reach(pair[0], pair[1], 2222), "there is nobody any more"
    server = echo(pair[1])
    with contextlib.suppress(OSError):  # where the machine's own network has that address too, another one answers
        socket.create_connection((pair[1].address, 2222), timeout=0.3).close()
    assert server.poll() is None, "it would have ended with its first connection"


def test_a_host_has_the_folder_of_the_run_or_one_of_its_own_in_its_place(tmp_path):
    skip_without_hosts()
    run_dir = tmp_path / "run"
    run_dir.mkdir()
    with hosts(2, run_dir=run_dir) as machines:
        for host in machines:
            host.popen(["/usr/bin/touch", str(run_dir / host.name)]).wait(5)
        assert [host.run_dir for host in machines] == [run_dir, tmp_path / "run.host-1"]
        assert all((host.run_dir / host.name).exists() for host in machines)
    assert not (run_dir / "host-1").exists()


def test_a_cut_link_is_silent_and_connections_go_on_when_it_is_restored(pair):
    echo(pair[1])
    process, _ = ask(pair[0], pair[1])
    pair[1].cut()
    assert heard(process, within_s=0.3) == "silent" and not can_reach(pair[0], pair[1], 2222, within_s=0.3)
    pair[1].restore()
    wait_until(lambda: can_reach(pair[0], pair[1], 2222, within_s=0.3), within_s=5)
    assert heard(process, within_s=0.1) == "silent", "the connection is still there"


def test_a_slow_link_carries_no_more_than_its_rate_until_it_is_restored(pair):
    pair[1].slow(rate="16mbit")
    echo(pair[1])
    assert ask(pair[0], pair[1], size=1_000_000)[1] > 0.4, "2 MB/s, less what a burst may have at once"
    pair[1].restore()
    assert quickest(pair, size=1_000_000) < 0.4


def test_a_long_link_delays_each_packet_both_ways(pair):
    pair[1].slow(delay_ms=100)
    echo(pair[1])
    assert ask(pair[0], pair[1])[1] >= 0.2
    pair[1].restore()
    assert quickest(pair) < 0.2


def test_a_lossy_link_loses_its_share_of_the_packets(pair):
    receive = """
import socket
socket = socket.socket(type=socket.SOCK_DGRAM)
socket.bind(("", 2222))
socket.settimeout(20)  # the sender has to start
print("listening", flush=True)
count = 0
try:
    while socket.recv(9):
        count += 1
        socket.settimeout(2)
except TimeoutError:
    print(count)
"""
    send = "import socket; s = socket.socket(type=socket.SOCK_DGRAM)\nfor _ in range(200): s.sendto(b'x', ('host-1', 2222))"
    assert not can_reach(pair[0], pair[1], 2222), "but now it knows where the other is, and need not ask"
    pair[1].slow(loss=0.5)
    receiver = python(pair[1], receive)
    assert receiver.stdout.readline() == b"listening\n"
    assert python(pair[0], send).wait(5) == 0
    assert 60 < int(receiver.stdout.readline()) < 140


def test_nobody_hears_the_end_of_a_host_that_vanishes(pair):
    echo(pair[1])
    process, _ = ask(pair[0], pair[1])
    pair[1].vanish()
    assert pids_in(pair[1].network) == []
    pair[1].restore()
    assert heard(process, within_s=1) == "silent", "a process that is killed says goodbye, a host that is lost does not"


def test_a_killed_process_on_a_host_is_heard_of(pair):
    server = echo(pair[1])
    process, _ = ask(pair[0], pair[1])
    server.kill()
    assert heard(process, within_s=5) == "ended"


@pytest.mark.parametrize("rights", [as_ourselves, as_ordinary_user])
def test_nothing_is_left_of_hosts_even_of_a_program_that_is_killed(rights, tmp_path):
    skip_without_hosts()
    skip_unless_allowed(rights)
    program = (
        "import time; from ps_cluster.tools.chaos.hosts import hosts\n"
        "with hosts(2) as machines:\n"
        "    machines[1].slow(rate='8mbit', delay_ms=1)\n"
        "    sleep = machines[1].popen(['/bin/sleep', '100'])\n"
        "    print(sleep.pid, machines[1]._wire.pid, flush=True)\n"
        "    time.sleep(100)"
    )
    started = start_in_session([sys.executable, "-c", program], preexec_fn=rights)
    pids = [int(word) for word in started.stdout.readline().split()]
    networks = [os.open(f"/proc/{pid}/ns/net", os.O_RDONLY) for pid in pids]
    started.send_signal(signal.SIGKILL)
    started.communicate()
    assert len(pids) == 2
    for network in networks:
        wait_until(lambda: not pids_in(RunNetwork((network,))), within_s=5)
        os.close(network)


def test_the_end_of_the_block_ends_all_processes_on_the_hosts():
    skip_without_hosts()
    with hosts(2) as machines:
        process = machines[1].popen(["/bin/sh", "-c", "setsid sleep 100 & wait"])
        wait_until(lambda: len(pids_in(machines[1].network)) == 2, within_s=5)
    assert process.wait(1) == -signal.SIGKILL
