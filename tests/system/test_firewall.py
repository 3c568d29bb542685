"""Who reaches a port while a process keeps rules of the firewall: looked at from other machines, users and interfaces."""

import os
import re
import shutil
import subprocess
import sys
from contextlib import contextmanager

import pytest

from ps_cluster.system.firewall import Refused, keep_rules, only_through
from ps_cluster.tools.chaos.hosts import hosts
from tests.helpers.firewalls import why_no_firewall
from tests.helpers.namespaces import LIBC, PR_CAPBSET_DROP
from tests.helpers.on_hosts import can_reach, skip_without_hosts
from tests.helpers.processes import wait_until
from tests.helpers.real_cluster import PROJECT

pytestmark = pytest.mark.slow

CAP_NET_ADMIN, NOBODY = 12, 65534
ONLY_ONE_USER = 3  # an exit code
PORT = 2222
LISTEN = f"import socket, time; s = socket.create_server(('', {PORT})); print('ready', flush=True); time.sleep(60)"
KEEP = """
import sys, time
from ps_cluster.system.firewall import keep_rules
keep_rules(sys.argv[1])
print("ready", flush=True)
time.sleep(60)
"""
REACH_AS_NOBODY = f"""
import encodings.idna, os, socket, sys
try:
    os.setuid({NOBODY})
except OSError:
    sys.exit({ONLY_ONE_USER})
socket.create_connection(("127.0.0.1", {PORT}), 0.5)
"""


@pytest.fixture
def machines():
    skip_without_hosts()
    with hosts(2) as made:
        if reason := why_no_firewall(made[0]):
            pytest.skip(reason)
        assert not can_reach(made[1], made[0], PORT)
        for machine in made:
            running(machine, LISTEN)
        yield made


def running(machine, program, *arguments):
    """Start a program of Python on a machine; return its process once it is ready."""
    argv = [sys.executable, "-c", program, *map(str, arguments)]
    process = machine.popen(argv, stdout=subprocess.PIPE, env=os.environ | {"PYTHONPATH": str(PROJECT)})
    assert process.stdout.readline() == b"ready\n"
    return process


@contextmanager
def kept(machine, rules):
    process = running(machine, KEEP, rules)
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def test_a_port_is_closed_to_other_interfaces_until_its_process_is_killed(machines):
    here, other = machines
    assert can_reach(other, here, PORT)
    with kept(here, only_through("wg0", PORT, [])) as process:
        assert not can_reach(other, here, PORT, within_s=0.5)
        assert can_reach(here, "127.0.0.1", PORT), "this machine's own processes reach it"
        process.kill()
        wait_until(lambda: can_reach(other, here, PORT), within_s=5)


def test_a_port_stays_open_to_the_interface_that_is_named_and_other_ports_to_all(machines):
    here, other = machines
    with kept(here, only_through("eth0", PORT, [])), kept(here, only_through("wg0", PORT + 1, [])):
        assert can_reach(other, here, PORT)


def test_connections_to_the_cluster_leave_by_no_other_interface(machines):
    here, other = machines
    assert can_reach(here, other, PORT)
    with kept(here, only_through("wg0", PORT + 1, [(other.address, PORT)])):
        assert not can_reach(here, other, PORT, within_s=0.5)
    with (
        kept(here, only_through("wg0", PORT + 1, [(other.address, PORT + 2)])),
        kept(here, only_through("eth0", PORT + 3, [(other.address, PORT)])),
    ):
        assert can_reach(here, other, PORT)


def test_other_users_of_the_machine_do_not_reach_the_port(machines):
    here, _ = machines
    reach = [sys.executable, "-c", REACH_AS_NOBODY]
    if (code := here.popen(reach).wait(timeout=20)) == ONLY_ONE_USER:
        pytest.skip("on this host there is only one user")
    assert code == 0
    with kept(here, only_through("wg0", PORT, [])):
        assert here.popen(reach, stderr=subprocess.DEVNULL).wait(timeout=20) == 1


def test_without_the_right_to_it_the_capability_is_named():
    if not shutil.which("nft"):
        pytest.skip("no program nft here, and so perhaps no library of it: apt-get install nftables")
    argv = [sys.executable, "-c", KEEP, only_through("wg0", PORT, [])]
    ended = subprocess.run(
        argv, cwd=PROJECT, capture_output=True, text=True,
        preexec_fn=lambda: LIBC.prctl(PR_CAPBSET_DROP, CAP_NET_ADMIN, 0, 0, 0),
    )  # fmt: skip
    assert "needs the capability CAP_NET_ADMIN" in ended.stderr.splitlines()[-1], ended.stderr


def test_without_the_library_it_is_told_what_to_install():
    with pytest.raises(Refused, match="install nftables"):
        keep_rules(only_through("wg0", PORT, []), library_name="libabsent.so.1")


def test_the_rules_that_the_page_gives_by_hand_close_the_ports_too(machines):
    here, other = machines
    page = (PROJECT / "docs" / "clusters.md").read_text(encoding="utf-8")
    (rules,) = re.findall(r"```nft\n(.*?)```", page, flags=re.DOTALL)
    with kept(here, rules):
        assert not can_reach(other, here, PORT, within_s=0.5)
