"""Three machines train over the tunnel of docs/clusters.md; a fourth one on the same wire gets in nowhere."""

import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from ps_cluster.tools.chaos.hosts import hosts
from tests.helpers.firewalls import why_no_firewall
from tests.helpers.on_hosts import skip_without_hosts
from tests.helpers.processes import wait_until
from tests.helpers.real_cluster import PROJECT, rows, small, unhurried, wait_for_training
from tests.helpers.tunnels import TCP, UDP, WIREGUARD_PORT, Recording, join, why_no_tunnel

pytestmark = [pytest.mark.cluster, pytest.mark.exhaustive]

OPEN_PORT = 9999
KNOWN = b"/job:"  # in the names of devices, of which TensorFlow's messages are full
INNER = ("10.77.0.1", "10.77.0.2", "10.77.0.3")
TASKS = ("chief", "ps", "worker")  # one on each machine
PORTS = (2222, 2223, 2224)
CLUSTER = {kind: [f"{address}:{port}"] for kind, address, port in zip(TASKS, INNER, PORTS, strict=True)}
LISTEN = f"""
import socket, time
listener = socket.create_server(("", {OPEN_PORT}), family=socket.AF_INET6, dualstack_ipv6=True)
print("ready", flush=True)
time.sleep(300)
"""
# Tries all of the given addresses at once, and prints those that answer.
KNOCK = """
import concurrent.futures, json, socket, sys
def answers(address):
    try:
        socket.create_connection(address, 2).close()
    except OSError:
        return False
    return True
addresses = [tuple(one) for one in json.loads(sys.argv[1])]
with concurrent.futures.ThreadPoolExecutor(len(addresses)) as pool:
    print(json.dumps([one for one, there in zip(addresses, pool.map(answers, addresses)) if there]))
"""


@pytest.fixture
def machines(tmp_path):
    skip_without_hosts()
    if reason := why_no_tunnel():
        pytest.skip(reason)
    with hosts(4) as made:
        if reason := why_no_firewall(made[0]):
            pytest.skip(reason)
        join(made[:3], tmp_path)
        yield made


def started(machine, folder, kind):
    """Start a task as the page says."""
    tf_config = json.dumps({"cluster": CLUSTER, "task": {"type": kind, "index": 0}})
    options = small(*unhurried(workers=1), "--steps", "100000", "--isolation", "interface=wg0")
    argv = [sys.executable, "cli.py", "task", "--run-dir", folder / kind, *options]
    with open(folder / f"{kind}.log", "w") as log:
        return machine.popen(
            list(map(str, argv)), cwd=PROJECT, env=os.environ | {"TF_CONFIG": tf_config}, stdout=log, stderr=log
        )


def ports_of(process):
    """Return the ports at which anything listens in the network of a process."""
    tables = [Path(f"/proc/{process.pid}/net/{name}").read_text() for name in ("tcp", "tcp6")]
    lines = [line.split() for table in tables for line in table.splitlines()]
    return {int(line[1].rpartition(":")[2], 16) for line in lines if line[3] == "0A"}


def said(machine, *argv):
    """Run a program on a machine; return what it prints."""
    process = machine.popen(argv, stdout=subprocess.PIPE)
    output = process.communicate(timeout=30)[0]
    assert process.returncode == 0, argv
    return output.decode()


def link_local(machine):
    """Return the address that a machine has by itself, as its neighbours write it."""
    (line,) = said(machine, "/bin/sh", "-c", "ip -o -6 addr show dev eth0 scope link").splitlines()
    return f"{line.split()[3].partition('/')[0]}%eth0"


def tcp(recording):
    """Return the TCP packets of a recording so far."""
    return [one for one in recording.packets() if one.protocol == TCP]


def rules_of(machine):
    """Return the names of the tables of a machine's firewall."""
    return said(machine, shutil.which("nft"), "list", "tables")


def listens(machine):
    """Start a program that listens at OPEN_PORT and has no rule."""
    process = machine.popen([sys.executable, "-c", LISTEN], stdout=subprocess.PIPE)
    assert process.stdout.readline() == b"ready\n"


def test_a_cluster_trains_over_the_tunnel_and_a_stranger_on_the_wire_gets_in_nowhere(machines, tmp_path):
    *own, stranger = machines
    tasks = {kind: started(machine, tmp_path, kind) for kind, machine in zip(TASKS, own, strict=True)}
    run_dir, log = tmp_path / "chief", tmp_path / "chief.log"
    wait_for_training(run_dir, updates=5)

    with Recording(own[0].switch, tmp_path / "wire") as wire, Recording(own[0].network, tmp_path / "inside") as inside:
        seen = rows(run_dir)[-1]["applied"]
        wait_until(lambda: rows(run_dir)[-1]["applied"] > seen + 10, every_s=0.1)
        # The chief speaks to a worker once a dispatch, which may be many updates.
        wait_until(lambda: set(PORTS) <= {port for one in tcp(inside) for port in one.ports}, every_s=0.1)
    crossed = wire.packets()
    outside = [one for one in crossed if one.protocol in (TCP, UDP)]
    assert len(outside) > 100 and {(one.version, one.protocol, *one.ports) for one in outside} == {
        (4, UDP, WIREGUARD_PORT, WIREGUARD_PORT)
    }
    assert {one.version for one in crossed if one.protocol not in (TCP, UDP)} <= {6}, "neighbours look for each other"
    assert not [one for one in crossed if KNOWN in one.content]
    assert [one for one in tcp(inside) if KNOWN in one.content], "inside the tunnel it can be read"

    for machine in own:
        listens(machine)
    said(stranger, "/bin/sh", "-c", "ip route add 10.77.0.0/24 dev eth0")
    doors = {
        (address, port)
        for machine, inner, task in zip(own, INNER, tasks.values(), strict=True)
        for address in (machine.address, inner, link_local(machine))
        for port in ports_of(task)
    }
    assert {port for _, port in doors} == {*PORTS, OPEN_PORT}
    reached = json.loads(said(stranger, sys.executable, "-c", KNOCK, json.dumps(sorted(doors))))
    assert {tuple(door) for door in reached} == {door for door in doors if door[1] == OPEN_PORT}

    assert [rules_of(machine).count(str(port)) for machine, port in zip(own, PORTS, strict=True)] == [2, 2, 2]
    tasks["chief"].send_signal(signal.SIGINT)
    assert tasks["chief"].wait(timeout=60) == 0, log.read_text()[-2000:]
    updates = json.loads((run_dir / "metrics" / "training.json").read_text())["updates"]
    assert updates["scheduled"] == updates["applied"] > 10 and updates["lost"] == updates["duplicated"] == 0
    assert "port 2222: only wg0" in log.read_text()
    for task in tasks.values():
        task.kill()
    wait_until(lambda: not any(map(rules_of, own)), within_s=5)
