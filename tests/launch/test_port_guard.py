"""A task's line about its port at start, and its refusals to keep the port to an interface."""

import socket

import pytest

from ps_cluster.config.tasks import EVALUATOR, Task
from ps_cluster.errors import TemporaryFailure, UserError
from ps_cluster.launch.topology import ClusterTopology
from ps_cluster.system.firewall import Refused
from ps_cluster.system.port_guard import guard_port

HERE = ClusterTopology({"chief": ["127.0.0.1:2221"], "ps": ["127.0.0.2:2222"], "worker": ["localhost:2223"]})
PS = Task("ps", 0)


class Firewall:
    """Keeps the rules that it is given."""

    def __init__(self, refuses=""):
        self.rules = []
        self._refuses = refuses

    def __call__(self, rules):
        if self._refuses:
            raise Refused(self._refuses)
        self.rules.append(rules)


def refusal(setting, topology=HERE, firewall=None):
    with pytest.raises(UserError) as error:
        guard_port(setting, topology.port(PS), topology.addresses, pytest.fail, firewall or Firewall())
    assert "\n" not in str(error.value) and str(error.value).startswith(f"cluster.isolation: got '{setting}': ")
    return str(error.value)


@pytest.mark.parametrize("setting", ["auto", "off"])
def test_an_open_port_is_told_once_and_closed_to_nobody(setting):
    told, firewall = [], Firewall()
    guard_port(setting, HERE.port(PS), HERE.addresses, told.append, firewall)
    (line,) = told
    assert (
        "port 2222" in line
        and "can run code as you" in line
        and "docs/clusters.md#security" in line
        and "\n" not in line
    )
    assert firewall.rules == []


@pytest.mark.parametrize(
    ("topology", "task"),
    [
        (ClusterTopology(HERE.cluster, evaluator=True), Task(EVALUATOR, 0)),
        (ClusterTopology({"chief": ["a:1"]}), Task("chief", 0)),
    ],
)
@pytest.mark.parametrize("setting", ["auto", "require", "interface=none"])
def test_a_task_without_a_port_has_nothing_to_say_or_to_close(setting, topology, task):
    guard_port(setting, topology.port(task), topology.addresses, pytest.fail, pytest.fail)


def test_a_port_that_is_kept_to_an_interface_is_told_in_fewer_words_than_an_open_one():
    kept, opened, firewall = [], [], Firewall()
    guard_port("interface=lo", HERE.port(PS), HERE.addresses, kept.append, firewall)
    guard_port("auto", HERE.port(PS), HERE.addresses, opened.append)
    assert len(kept) == 1 and "port 2222: only connections through lo" in kept[0] and len(kept[0]) < len(opened[0])
    (rules,) = firewall.rules
    assert 'tcp dport 2222 iifname != { "lo", "lo" } drop' in rules
    assert all(f"{end}," in rules for end in ("127.0.0.1 . 2221", "127.0.0.2 . 2222", "127.0.0.1 . 2223"))


def test_a_network_for_several_machines_can_not_be_required_of_a_task():
    assert "interface=NAME" in refusal("require")


def test_an_interface_that_is_not_there_is_told_with_those_that_are():
    said = refusal("interface=none0")
    assert "has no interface" in said and "lo" in said.rpartition("one of ")[2].split(", ")


@pytest.mark.parametrize("address", ["192.0.2.1:2224", "[2001:db8::1]:2224"])
def test_an_address_that_is_not_behind_the_interface_is_told_with_its_task(address):
    firewall = Firewall()
    said = refusal("interface=lo", ClusterTopology({**HERE.cluster, "worker": [address]}), firewall)
    assert f"worker-0 at '{address}' is not reached through this interface" in said and firewall.rules == []


@pytest.mark.parametrize("name", ["a" * 64, "a..b"])
def test_a_name_that_can_not_be_looked_up_is_told_with_its_task(name):
    said = refusal("interface=lo", ClusterTopology({**HERE.cluster, "worker": [f"{name}:2224"]}))
    assert f"worker-0, '{name}:2224', can't be looked up" in said


def test_a_name_that_the_name_service_does_not_know_yet_is_no_bad_input(monkeypatch):
    def getaddrinfo(host, port, **_):
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", getaddrinfo)
    with pytest.raises(TemporaryFailure) as error:
        guard_port("interface=lo", HERE.port(PS), {PS: "pod-1:2222"}, pytest.fail, pytest.fail)
    assert str(error.value) == (
        "cluster.isolation: got 'interface=lo': the address of ps-0, 'pod-1:2222', can't be looked up (Name or service not "
        "known): correct it, or run the same command again when the name service knows it"
    )


def test_a_firewall_that_refuses_is_told_with_its_reason_and_where_to_read_on():
    said = refusal("interface=lo", firewall=Firewall("it needs the capability CAP_NET_ADMIN"))
    assert "CAP_NET_ADMIN" in said and "docs/clusters.md#security" in said
