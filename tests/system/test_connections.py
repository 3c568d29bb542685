"""A connection whose other side has vanished ends in time, although TensorFlow never asks for that."""

import os
import socket
import time

import pytest

from ps_cluster.system import connections


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
    acted = []
    with (
        (tmp_path / "file").open("w") as file,
        socket.socketpair()[0] as local,
        socket.socket(type=socket.SOCK_DGRAM) as udp,
        socket.socket() as tcp,
    ):
        connections._for_each_connection(
            lambda connection: acted.append(os.readlink(f"/proc/self/fd/{connection.fileno()}"))
        )
        named = [os.readlink(f"/proc/self/fd/{one.fileno()}") for one in (file, local, udp, tcp)]
        assert udp.fileno() > 0 and local.fileno() > 0, "they are still open"
    assert set(named) & set(acted) == {named[-1]}


@pytest.mark.parametrize("family", [socket.AF_INET, socket.AF_INET6], ids=["IPv4", "IPv4 as gRPC writes it"])
def test_connections_to_an_address_are_cut_and_no_others(family):
    host = "127.0.0.1" if family == socket.AF_INET else "::ffff:127.0.0.1"
    with socket.create_server(("127.0.0.1", 0)) as server, socket.create_server(("127.0.0.1", 0)) as other:
        ports = [one.getsockname()[1] for one in (server, other)]
        with socket.socket(family) as client, socket.socket(family) as stays:
            client.connect((host, ports[0]))
            stays.connect((host, ports[1]))
            client.settimeout(5)
            connections.cut(f"localhost:{ports[0]}")
            assert client.recv(1) == b"", "closed"
            with other.accept()[0] as accepted:
                accepted.sendall(b"!")
                assert stays.recv(1) == b"!"


def test_an_address_with_brackets_is_taken_apart_and_an_unknown_name_is_told():
    connections.cut("[::1]:1")
    with pytest.raises(OSError):
        connections.cut("no-such-host.invalid:1")


def test_a_descriptor_that_became_a_file_meanwhile_is_not_kept_open(tmp_path):
    with (tmp_path / "file").open("w") as file:
        before = os.listdir("/proc/self/fd")
        with pytest.raises(OSError):
            connections._socket_of(file.fileno())
        assert len(os.listdir("/proc/self/fd")) == len(before)
