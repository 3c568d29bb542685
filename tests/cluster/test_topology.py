import itertools
import json

import pytest

from ps_cluster.catalogue.modes import MODES
from ps_cluster.catalogue.task_types import Task
from ps_cluster.cluster.topology import ClusterTopology, from_tf_config
from ps_cluster.errors import UserError

CLUSTER = {"chief": ["a:1"], "ps": ["b:2"], "worker": ["c:3", "d:4"]}


def tf_config(cluster=CLUSTER, kind="worker", index=1) -> str:
    return json.dumps({"cluster": cluster, "task": {"type": kind, "index": index}})


def test_local_cluster_gives_each_member_a_port_of_its_own_on_the_loopback():
    ports = itertools.count(4000)
    topology = ClusterTopology.local(MODES["async"].tasks, 2, 1, evaluator=True, pick_port=lambda: next(ports))
    assert topology.cluster == {
        "chief": ["127.0.0.1:4000"], "ps": ["127.0.0.1:4001"], "worker": ["127.0.0.1:4002", "127.0.0.1:4003"]
    }  # fmt: skip
    assert [str(task) for task in topology.tasks] == ["chief-0", "ps-0", "worker-0", "worker-1", "evaluator-0"]


def test_real_ports_differ():
    topology = ClusterTopology.local(MODES["elastic"].tasks, 8, 4, evaluator=False)
    assert len({topology.address(task) for task in topology.tasks}) == 13


def test_evaluator_has_no_address_and_stands_in_no_cluster_spec():
    topology = ClusterTopology.local(MODES["async"].tasks, 1, 1, evaluator=True)
    assert topology.address(Task("evaluator", 0)) is None
    written = json.loads(topology.tf_config(Task("evaluator", 0)))
    assert set(written["cluster"]) == {"chief", "ps", "worker"}
    assert written["task"] == {"type": "evaluator", "index": 0}


def test_a_worker_that_is_given_up_leaves_the_others_their_index_and_tensorflow_no_gap():
    ports = itertools.count(4000)
    given_up = frozenset({1})
    topology = ClusterTopology.local(
        MODES["async"].tasks, 4, 1, evaluator=True, given_up=given_up, pick_port=lambda: next(ports)
    )
    workers = [task for task in topology.tasks if task.type == "worker"]
    assert [worker.index for worker in workers] == [0, 2, 3]
    assert [topology.address(worker) for worker in workers] == topology.cluster["worker"]
    assert topology.address(Task("worker", 1)) is None
    _, member = from_tf_config(topology.tf_config(Task("worker", 3)))
    assert member == Task("worker", 2), "TensorFlow numbers them from 0 without a gap"


def test_what_is_written_to_tf_config_is_read_back():
    topology = ClusterTopology.local(MODES["async"].tasks, 2, 2, evaluator=False)
    assert from_tf_config(topology.tf_config(Task("ps", 1))) == (topology, Task("ps", 1))


@pytest.mark.parametrize(
    ("mode", "tasks", "leader", "computing"),
    [
        ("async", ["chief-0", "ps-0", "worker-0", "worker-1"], "chief-0", ["worker-0", "worker-1"]),
        ("bounded", ["chief-0", "ps-0", "worker-0", "worker-1"], "chief-0", ["worker-0", "worker-1"]),
        ("sync-ps", ["chief-0", "ps-0", "worker-0", "worker-1"], "chief-0", ["worker-0", "worker-1"]),
        ("elastic", ["chief-0", "ps-0", "worker-0", "worker-1"], "chief-0", ["worker-0", "worker-1"]),
        ("sync", ["worker-0", "worker-1"], "worker-0", ["worker-0", "worker-1"]),
        ("single", ["chief-0"], "chief-0", ["chief-0"]),
    ],
)
def test_each_mode_has_its_tasks_its_leader_and_those_that_compute(mode, tasks, leader, computing):
    topology = ClusterTopology.local(MODES[mode].tasks, 2, 1, evaluator=True)
    assert [str(task) for task in topology.tasks] == [*tasks, "evaluator-0"]
    assert str(topology.leader) == leader
    assert [str(task) for task in topology.tasks if topology.computes_gradients(task)] == computing
    assert from_tf_config(topology.tf_config(topology.leader))[0].cluster == topology.cluster


def test_members_are_in_one_order_whatever_that_of_tf_config():
    topology, _ = from_tf_config(tf_config(dict(reversed(CLUSTER.items()))))
    assert topology.types == ("chief", "ps", "worker")


def test_evaluator_found_in_the_cluster_of_tf_config_is_dropped():
    topology, task = from_tf_config(tf_config(CLUSTER | {"evaluator": ["e:5"]}, "chief", 0))
    assert topology.cluster == CLUSTER and task == Task("chief", 0)


def test_task_that_is_the_evaluator_needs_no_entry_in_the_cluster():
    topology, task = from_tf_config(tf_config(kind="evaluator", index=0))
    assert topology.cluster == CLUSTER and task == Task("evaluator", 0)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (None, "not set"),
        ("", "not set"),
        ("{", "not JSON"),
        ("[]", "TF_CONFIG: got []: names with values are needed"),
        (
            '{"cluster": {}, "task": {"type": "chief", "index": 0}}',
            "cluster: got nothing; it has either chief, ps and worker, or only worker, or only chief",
        ),
        (tf_config({"chief": ["a:1"], "worker": ["c:3"]}), "cluster: got chief, worker; it has either"),
        (tf_config({"ps": ["b:2"], "worker": ["c:3"]}), "cluster: got ps, worker; it has either"),
        (tf_config({"ps": ["b:2"], "evaluator": ["e:5"]}), "cluster: got ps; it has either"),
        (tf_config({"chief": ["a:1", "e:5"]}, "chief", 0), "cluster.chief must be one address"),
        (tf_config({"worker": []}), "cluster.worker: got []: List should have at least 1 item"),
        (tf_config({"worker": ["c:3"]}), "task.index: got 1; the cluster has 1 of type worker"),
        (tf_config({"worker": ["c:3"]}, "chief", 0), "task.type: got 'chief'; it is one of worker, evaluator"),
        (tf_config(CLUSTER | {"chief": []}), "cluster.chief: got []: List should have at least 1 item"),
        (tf_config(CLUSTER | {"chief": ["a:1", "e:5"]}), "cluster.chief must be one address"),
        (
            tf_config(CLUSTER | {"worker": {"0": "c:3"}}),
            "cluster.worker: got {'0': 'c:3'}: Input should be a valid list",
        ),
        (tf_config(CLUSTER | {"worker": ["c:3", 7]}), "cluster.worker.1: got 7: Input should be a valid string"),
        (tf_config(CLUSTER | {"worker": ["c:3", "d"]}), "cluster.worker.1: got 'd': is not host:port"),
        (
            tf_config(CLUSTER | {"ps": ["b:70000"]}),
            "cluster.ps.0: got 'b:70000': is not host:port, with a port in 1 to 65535",
        ),
        (tf_config(CLUSTER | {"ps": ["a:1"]}), "'a:1' is there twice"),
        (tf_config(CLUSTER | {"master": ["m:1"]}), "got chief, ps, worker, master"),
        (json.dumps({"cluster": CLUSTER}), "TF_CONFIG: 'task' is missing"),
        (tf_config(kind="wroker"), "task.type: got 'wroker'"),
        (tf_config(kind=["ps"]), "task.type: got ['ps']"),
        (tf_config(index=2), "task.index: got 2"),
        (tf_config(index=-1), "task.index: got -1"),
        (tf_config(index=True), "task.index: got True"),
        (tf_config(index="0"), "task.index: got '0'"),
    ],
)
def test_malformed_tf_config_is_told_in_one_line(text, says):
    with pytest.raises(UserError) as error:
        from_tf_config(text)
    assert str(error.value).startswith("TF_CONFIG") and says in str(error.value) and "\n" not in str(error.value)
