"""Hosts for tests, and small programs that run on them."""

import functools
import subprocess
import sys

import pytest

from ps_cluster.tools.chaos.hosts import why_not
from ps_cluster.tools.chaos.namespaces import NotAllowed, run_in

ECHO = """
import socket
with socket.create_server(("", 2222)) as server:
    print("listening", flush=True)
    connection = server.accept()[0]
    while data := connection.recv(1 << 16):
        connection.sendall(data)
"""
# Sends the given number of bytes, waits for them to come back, and prints how long that took. Then it waits for more.
ASK = """
import socket, sys, time
connection, began, left = socket.create_connection((sys.argv[1], 2222), 10), time.monotonic(), int(sys.argv[2])
connection.sendall(bytes(left))
while left:
    left -= len(connection.recv(1 << 16))
print(time.monotonic() - began, flush=True)
for line in sys.stdin:
    connection.settimeout(float(line))
    try:
        print("ended" if not connection.recv(1) else "data", flush=True)
    except TimeoutError:
        print("silent", flush=True)
    except OSError as error:
        print(error, flush=True)
"""
CONNECT = "import socket, sys; socket.create_connection((sys.argv[1], int(sys.argv[2])), float(sys.argv[3])).close()"


@functools.cache
def reason_against() -> str | None:
    return why_not()


def skip_without_hosts():
    if reason := reason_against():
        pytest.skip(reason)


def python(host, code, *arguments):
    """Start a program on a host, with pipes for its standard input and output."""
    argv = [sys.executable, "-I", "-S", "-c", code, *map(str, arguments)]
    return host.popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0)


def echo(host):
    """Start a program on a host that sends back everything that it receives at port 2222."""
    process = python(host, ECHO)
    assert process.stdout.readline() == b"listening\n"
    return process


def ask(host, other, size=1):
    """Connect a program on `host` with the echo on `other`. Return it, and the seconds that `size` bytes took."""
    process = python(host, ASK, other.name, size)
    return process, float(process.stdout.readline())


def heard(process, within_s):
    """Return what the program receives on its connection: "data", "ended", "silent", or an error."""
    process.stdin.write(f"{within_s}\n".encode())
    return process.stdout.readline().decode().strip()


def can_reach(host, other, port, within_s=2.0):
    """Return whether `host` can connect to this port of `other`, which is a host or an address."""
    address = other if isinstance(other, str) else other.address
    try:
        run_in(host.network, sys.executable, "-I", "-S", "-c", CONNECT, address, str(port), str(within_s))
    except NotAllowed:
        return False
    return True
