import itertools
import json

import pytest

from ps_cluster.config.modes import MODES
from ps_cluster.config.tasks import Task
from ps_cluster.errors import UserError
from ps_cluster.files.yaml_files import dump_yaml
from ps_cluster.launch.cluster_files import from_file, from_tf_config
from ps_cluster.launch.topology import ClusterTopology

CLUSTER = {"chief": ["a:1"], "ps": ["b:2"], "worker": ["c:3", "d:4"]}


def tf_config(cluster=CLUSTER, kind="worker", index=1) -> str:
    return json.dumps({"cluster": cluster, "task": {"type": kind, "index": index}})


def test_local_cluster_gives_each_member_a_port_of_its_own_on_the_loopback():
    ports = itertools.count(4000)
    topology = ClusterTopology.local(MODES["async"].cluster.types, 2, 1, evaluator=True, pick_port=lambda: next(ports))
    assert topology.cluster == {
        "chief": ["127.0.0.1:4000"], "ps": ["127.0.0.1:4001"], "worker": ["127.0.0.1:4002", "127.0.0.1:4003"]
    }  # fmt: skip
    assert [str(task) for task in topology.tasks] == ["chief-0", "ps-0", "worker-0", "worker-1", "evaluator-0"]


def test_evaluator_has_no_address_and_stands_in_no_cluster_spec():
    topology = ClusterTopology.local(MODES["async"].cluster.types, 1, 1, evaluator=True)
    assert topology.address(Task("evaluator", 0)) is None
    written = json.loads(topology.tf_config(Task("evaluator", 0)))
    assert set(written["cluster"]) == {"chief", "ps", "worker"}
    assert written["task"] == {"type": "evaluator", "index": 0}


def test_an_absent_worker_is_no_task_but_keeps_its_address_until_it_starts():
    ports = itertools.count(4000)
    topology = ClusterTopology.local(
        MODES["async"].cluster.types, 4, 1, evaluator=True, absent=frozenset({1, 3}), pick_port=lambda: next(ports)
    )
    assert [worker.index for worker in topology.workers] == [0, 2] and len(topology.cluster["worker"]) == 4
    assert [worker.index for worker in topology.absent_workers] == [1, 3]
    changed = topology.with_workers(started=topology.absent_workers[:1], stopped=topology.workers[-1:])
    assert [worker.index for worker in changed.workers] == [0, 1]
    assert changed.cluster == topology.cluster, "the others know it already"
    _, task = from_tf_config(topology.tf_config(Task("worker", 2)))
    assert task == Task("worker", 2)


@pytest.mark.parametrize("second", ["127.0.0.2:5000", "localhost:5000", "[::1]:5000"])
def test_one_port_for_two_tasks_of_one_machine_is_refused_with_the_reason(second):
    with pytest.raises(UserError) as refused:
        from_tf_config(tf_config({"chief": ["127.0.0.1:5000"], "ps": [second], "worker": ["127.0.0.3:5001"]}, index=0))
    assert str(refused.value) == (
        f"TF_CONFIG: cluster: '127.0.0.1:5000' and '{second}' have the same port on the same machine, where "
        "TensorFlow listens on all addresses: give each task there a different port"
    )


def test_one_port_on_several_machines_and_several_on_one_are_taken():
    cluster = {"chief": ["10.0.0.1:5000"], "ps": ["10.0.0.2:5000"], "worker": ["127.0.0.1:5001", "127.0.0.2:5002"]}
    assert from_tf_config(tf_config(cluster))[0].cluster == cluster


@pytest.mark.parametrize(
    ("mode", "tasks", "leader", "computing"),
    [
        ("async", ["chief-0", "ps-0", "worker-0", "worker-1"], "chief-0", ["worker-0", "worker-1"]),
        ("sync", ["worker-0", "worker-1"], "worker-0", ["worker-0", "worker-1"]),
        ("single", ["chief-0"], "chief-0", ["chief-0"]),
        ("layers", ["chief-0", "worker-0", "worker-1"], "chief-0", ["worker-0", "worker-1"]),
    ],
)
def test_each_mode_has_its_tasks_its_leader_and_those_that_compute(mode, tasks, leader, computing):
    topology = ClusterTopology.local(MODES[mode].cluster.types, 2, 1, evaluator=True)
    assert [str(task) for task in topology.tasks] == [*tasks, "evaluator-0"]
    assert str(topology.leader) == leader
    assert [str(task) for task in topology.tasks if topology.computes_gradients(task)] == computing
    assert from_tf_config(topology.tf_config(topology.leader))[0].cluster == topology.cluster


@pytest.mark.parametrize(("kind", "is_evaluator"), [("chief", False), ("evaluator", True)])
def test_evaluator_found_in_the_cluster_of_tf_config_is_left_out_and_that_is_said(kind, is_evaluator):
    said = []
    topology, task = from_tf_config(tf_config(CLUSTER | {"evaluator": ["e:5"]}, kind, 0), said.append)
    assert topology.cluster == CLUSTER and task == Task(kind, 0) and topology.evaluator is is_evaluator
    assert len(said) == 1 and said[0].startswith(
        "TF_CONFIG: cluster.evaluator: the evaluator is left out of the cluster"
    )


def test_task_that_is_the_evaluator_needs_no_entry_in_the_cluster():
    topology, task = from_tf_config(tf_config(kind="evaluator", index=0), pytest.fail)
    assert topology.cluster == CLUSTER and task == Task("evaluator", 0)


@pytest.mark.parametrize("kind", ["master", "chief"])
def test_a_master_is_taken_as_the_chief(kind):
    cluster = {"master": ["a:1"], "ps": ["b:2"], "worker": ["c:3", "d:4"]}
    topology, task = from_tf_config(tf_config(cluster, kind, 0), pytest.fail)
    assert topology.cluster == CLUSTER and task == topology.leader == Task("chief", 0)


def test_keys_that_operators_add_are_ignored():
    given = json.loads(tf_config(kind="worker", index=0))
    given |= {"environment": "cloud", "job": {"args": ["--epochs", "3"]}}
    given["task"] |= {"trial": "1", "cloud": "a"}
    assert from_tf_config(json.dumps(given), pytest.fail) == from_tf_config(tf_config(kind="worker", index=0))


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (None, "not set"),
        ("{", "not JSON"),
        ("[]", "TF_CONFIG: got []: a mapping of names to values is needed"),
        (
            '{"cluster": {}, "task": {"type": "chief", "index": 0}}',
            "cluster: got nothing; a cluster has either chief, ps and worker, or chief and worker, or only worker",
        ),
        (tf_config({"chief": ["a:1"], "ps": ["c:3"]}), "cluster: got chief, ps; a cluster has either"),
        (tf_config({"worker": []}), "cluster.worker: got []: List should have at least 1 item"),
        (tf_config({"worker": ["c:3"]}), "task.index: got 1; the cluster has 1 of type worker"),
        (tf_config({"worker": ["c:3"]}, "chief", 0), "task.type: got 'chief'; it must be one of worker, evaluator"),
        (tf_config(CLUSTER | {"chief": ["a:1", "e:5"]}), "cluster.chief must be one address"),
        (tf_config(CLUSTER | {"worker": ["c:3", 7]}), "cluster.worker.1: got 7: Input should be a valid string"),
        (tf_config(CLUSTER | {"worker": ["c:3", "d"]}), "cluster.worker.1: got 'd': is not host:port"),
        (
            tf_config(CLUSTER | {"ps": ["b:70000"]}),
            "cluster.ps.0: got 'b:70000': is not host:port, with a port from 1 to 65535",
        ),
        (tf_config(CLUSTER | {"ps": ["a:1"]}), "'a:1' appears twice"),
        (tf_config(CLUSTER | {"master": ["m:1"]}), "cluster.master: there is a chief too"),
        (json.dumps({"cluster": CLUSTER}), "TF_CONFIG: 'task' is missing"),
        (tf_config(kind="wroker"), "task.type: got 'wroker'"),
        (tf_config(index=-1), "task.index: got -1"),
        (tf_config(index=True), "task.index: got True"),
        (tf_config(index="0"), "task.index: got '0'"),
    ],
)
def test_malformed_tf_config_is_told_in_one_line(text, says):
    with pytest.raises(UserError) as error:
        from_tf_config(text)
    assert str(error.value).startswith("TF_CONFIG") and says in str(error.value) and "\n" not in str(error.value)


@pytest.fixture
def of_file(tmp_path):
    """of_file(text, type, index, notify) → the cluster and the task of a cluster file with this text."""

    def read(text, kind="worker", index=1, notify=pytest.fail):
        (tmp_path / "cluster.yaml").write_text(text)
        return from_file(tmp_path / "cluster.yaml", Task(kind, index), notify)

    read.name = f"'{tmp_path / 'cluster.yaml'}'"
    return read


def test_a_cluster_file_describes_the_same_cluster_as_tf_config(of_file):
    written = of_file('chief: [a:1]\nps: [b:2]\nworker:\n  - c:3\n  - "d:4"\n')
    assert written == from_tf_config(tf_config())
    assert written == of_file(dump_yaml({"master": ["a:1"]} | {kind: CLUSTER[kind] for kind in ("worker", "ps")}))
    assert written[0].origin.field("ps") == f"{of_file.name}: ps", "messages name the file, not TF_CONFIG"


def test_evaluator_found_in_a_cluster_file_is_left_out_and_that_is_said(of_file):
    said = []
    topology, _ = of_file(dump_yaml(CLUSTER | {"evaluator": ["e:5"]}), "evaluator", 0, said.append)
    assert topology.cluster == CLUSTER and topology.evaluator
    assert len(said) == 1 and said[0].startswith(f"{of_file.name}: evaluator: the evaluator is left out of the cluster")


@pytest.mark.parametrize(
    ("text", "task", "says"),
    [
        ("", ("worker", 0), "{file}: got nothing; a cluster has either chief, ps and worker"),
        ("chief: a:1", ("chief", 0), "{file}: chief: got 'a:1': Input should be a valid list"),
        ("chief: [a:1, b:2]", ("chief", 0), "{file}: chief must be one address, got 2"),
        ("chief: [a:1]\nmaster: [b:1]", ("chief", 0), "{file}: master: there is a chief too"),
        ("worker: [c:3]", ("worker", 1), "--index: got 1; the cluster has 1 of type worker"),
        ("worker: [c:3]", ("chief", 0), "--type: got 'chief'; it must be one of worker, evaluator"),
    ],
)
def test_a_malformed_cluster_file_is_told_in_one_line_with_the_names_of_the_file(of_file, text, task, says):
    with pytest.raises(UserError) as error:
        of_file(text, *task)
    assert str(error.value).startswith(says.format(file=of_file.name)) and "\n" not in str(error.value)


def test_a_parameter_server_that_was_given_up_has_no_address_any_more():
    topology = ClusterTopology({"chief": ["a:1"], "ps": ["b:2"], "worker": ["c:3"]})
    assert topology.address(Task("ps", 0)) == "b:2" and topology.address(Task("ps", 1)) is None
