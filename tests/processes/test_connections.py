"""A connection whose other side has vanished ends in time, although TensorFlow never asks for that."""

import socket
import time

import pytest

from ps_cluster.processes import connections


@pytest.fixture
def pair():
    with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname()) as client:
        yield server, client, server.accept()[0]


def test_every_connection_of_the_process_is_given_its_limits(pair):
    connections.give_up_lost_connections(8.0)
    deadline = time.monotonic() + 10
    while pair[1].getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) != 8000 and time.monotonic() < deadline:
        time.sleep(0.02)
    for connection in pair[1:]:
        assert connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) == 8000
        assert connection.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 1
        assert connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE) == 2


def test_what_is_no_connection_is_left_alone(tmp_path):
    with (
        (tmp_path / "file").open("w") as file,
        socket.socketpair()[0] as local,
        socket.socket(type=socket.SOCK_DGRAM) as udp,
    ):
        for one in (file, local, udp):
            connections._limit(one.fileno(), 8.0)
        assert udp.fileno() > 0 and local.fileno() > 0, "they are still open"
