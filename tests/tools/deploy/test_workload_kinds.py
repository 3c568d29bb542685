"""Manifests are valid by the published models of the projects, and all kinds of workload start the same cluster."""

import pytest

from ps_cluster.config import build_config
from ps_cluster.config.merging import load_config
from ps_cluster.config.tasks import Task
from ps_cluster.errors import UserError
from ps_cluster.launch.topology import ClusterTopology
from ps_cluster.tools.deploy.kubernetes import KINDS
from ps_cluster.tools.deploy.roles import Role, roles_of
from tests.helpers.manifests import SETTINGS, SIZE, cluster_of, deployment, pods_of, rendered
from tests.helpers.published_models import check_of_kubernetes, check_of_operator, check_pod

pytestmark = pytest.mark.slow

OF_KUBERNETES = ("ConfigMap", "NetworkPolicy", "Service")
HOSTS = {  # of worker 1, as each operator names it
    "jobset": "mine-worker-1-0.mine",
    "trainjob": "mine-worker-1-0.mine",
    "jobs": "mine-worker-1.mine",
}
POD_NAMES = {  # of workload, role and index; a pod of a Job gets five more characters
    "jobset": "{}-{}-{}-0-abcde",
    "trainjob": "{}-{}-{}-0-abcde",
    "jobs": "{}-{}-{}-abcde",
}


@pytest.mark.parametrize("kind", KINDS)
def test_every_object_is_valid_by_the_published_models(kind):
    documents = rendered(kind, deployment())
    for document in documents:
        if document["kind"] in OF_KUBERNETES or document["apiVersion"] == "batch/v1":
            check_of_kubernetes(document)
        else:
            check_of_operator(document)
    for pods in pods_of(documents):
        check_pod(pods.template)


@pytest.mark.parametrize("kind", KINDS)
def test_command_environment_and_cluster_are_the_same_for_every_kind_up_to_names(kind):
    expected = {Task("chief", 0), *(Task(role, i) for role in ("ps", "worker") for i in (0, 1)), Task("evaluator", 0)}
    roles, seen = pods_of(rendered(kind, deployment())), set()
    for pods in roles:
        for index in range(pods.count):
            environment = pods.environment(index)
            topology, task = cluster_of(environment["TF_CONFIG"])
            assert " ".join(pods.command) == "ps-cluster task --run-dir /runs/mine --config /etc/ps-cluster/config.yaml"
            assert {name: len(hosts) for name, hosts in topology.cluster.items()} == {"chief": 1, "ps": 2, "worker": 2}
            assert topology.cluster["worker"][1] == f"{HOSTS[kind]}:2222"
            assert (environment["HOME"], environment["PS_CLUSTER_CACHE"]) == ("/tmp", "/cache/ps_cluster")
            assert environment["TASK_INDEX"] == str(task.index)
            seen.add(task)
    assert seen == expected


@pytest.mark.parametrize("changes", [SIZE, {"mode.name": "sync"}])
def test_the_config_map_is_the_configuration_that_every_task_reads(changes, tmp_path):
    asked = deployment(changes)
    (found,) = [one for one in rendered("jobs", asked) if one["kind"] == "ConfigMap"]
    file = tmp_path / "config.yaml"
    file.write_text(found["data"]["config.yaml"])
    assert load_config(file) == asked.config == build_config(file)
    for pods in pods_of(rendered("jobs", asked)):
        (volume,) = [one for one in pods.template["spec"]["volumes"] if "configMap" in one]
        assert volume["configMap"]["name"] == found["metadata"]["name"]


@pytest.mark.parametrize("kind", KINDS)
def test_no_container_may_write_but_where_a_volume_is_mounted_nor_fill_its_node(kind):
    for pods in pods_of(rendered(kind, deployment(scratch="3Gi"))):
        spec, own = pods.template["spec"], pods.container["securityContext"]
        assert spec["securityContext"]["runAsNonRoot"] and spec["securityContext"]["runAsUser"] > 0
        assert own["readOnlyRootFilesystem"] and not own["allowPrivilegeEscalation"]
        assert own["capabilities"] == {"drop": ["ALL"]}
        mounts = {mount["name"]: mount for mount in pods.container["volumeMounts"]}
        assert {volume["name"] for volume in spec["volumes"]} == set(mounts)
        assert {name for name, mount in mounts.items() if not mount.get("readOnly")} == {"runs", "cache", "tmp"}
        empty = [volume["emptyDir"] for volume in spec["volumes"] if "emptyDir" in volume]
        assert len(empty) >= 2 and all(one == {"sizeLimit": "3Gi"} for one in empty)


@pytest.mark.parametrize("shared", [False, True])
def test_only_the_leader_and_the_evaluator_have_to_mount_the_run_directory(shared):
    roles = roles_of(deployment().config, shared_by_all=shared)
    documents = rendered("jobset", deployment(roles=roles))
    mounting = {
        pods.role
        for pods in pods_of(documents)
        for volume in pods.template["spec"]["volumes"]
        if volume.get("persistentVolumeClaim", {}).get("claimName") == "runs"
    }
    assert mounting == ({"chief", "ps", "worker", "evaluator"} if shared else {"chief", "evaluator"})


@pytest.mark.parametrize("kind", KINDS)
def test_the_network_policy_selects_all_pods_and_lets_in_only_these_at_the_port_that_they_serve(kind):
    documents = rendered(kind, deployment())
    (policy,) = [one["spec"] for one in documents if one["kind"] == "NetworkPolicy"]
    selected = policy["podSelector"]["matchLabels"].items()
    for pods in pods_of(documents):
        assert selected <= pods.template["metadata"]["labels"].items()
        assert [port["containerPort"] for port in pods.container.get("ports", [])] in ([2222], [])
    (rule,) = policy["ingress"]
    assert rule == {"from": [{"podSelector": policy["podSelector"]}], "ports": [{"protocol": "TCP", "port": 2222}]}
    tasks, names = policy["egress"]
    assert tasks == {"to": rule["from"], "ports": rule["ports"]}
    assert [port["port"] for port in names["ports"]] == [53, 53]
    dns, cache = names["to"]
    assert dns["podSelector"]["matchLabels"] == {"k8s-app": "kube-dns"} and "namespaceSelector" in dns
    assert cache == {"ipBlock": {"cidr": "169.254.20.10/32"}}, "no way out by port 53 of anybody"


ALL, ALONE = ["chief", "ps"], ["worker", "evaluator"]


@pytest.mark.parametrize(
    ("mode", "restart_job", "actions"),
    [
        ("async", True, {"FailJobSet": None, "RestartJob": ALONE, "RestartJobSet": ALL}),
        ("async", False, {"FailJobSet": None, "RestartJobSet": ALL}),
        ("sync", True, {"FailJobSet": None, "RestartJob": ["evaluator"], "RestartJobSet": ["worker"]}),
    ],
)
def test_a_job_set_restarts_all_or_where_its_controller_can_one_job_alone(mode, restart_job, actions):
    changes = SIZE if mode == "async" else {"mode.name": mode}
    spec = rendered("jobset", deployment(changes, restart_job=restart_job))[-1]["spec"]
    rules = spec["failurePolicy"]["rules"]
    assert {rule["action"]: rule.get("targetReplicatedJobs") for rule in rules} == actions
    leader = "chief" if mode == "async" else "worker"
    assert spec["successPolicy"] == {"operator": "All", "targetReplicatedJobs": [leader, "evaluator"]}
    limits = {job["name"]: job["template"]["spec"]["backoffLimit"] for job in spec["replicatedJobs"]}
    expected = (
        {"chief": 0, "ps": 0, "worker": 20, "evaluator": 20} if mode == "async" else {"worker": 0, "evaluator": 20}
    )
    assert limits == expected


@pytest.mark.parametrize("kind", ["jobset", "jobs"])
def test_bad_input_and_a_newer_leader_are_not_retried_and_an_eviction_is_no_failure(kind):
    documents = rendered(kind, deployment())
    jobs = (
        [one["spec"] for one in documents if one["kind"] == "Job"]
        if kind == "jobs"
        else [one["template"]["spec"] for one in documents[-1]["spec"]["replicatedJobs"]]
    )
    assert len(jobs) == 4
    for job in jobs:
        fail, ignore = job["podFailurePolicy"]["rules"]
        assert (fail["action"], fail["onExitCodes"]["values"]) == ("FailJob", [2, 3, 4])
        assert (ignore["action"], ignore["onPodConditions"][0]["type"]) == ("Ignore", "DisruptionTarget")
        container = job["template"]["spec"]["containers"][0]["name"]
        assert fail["onExitCodes"]["containerName"] == container and job["template"]["spec"]["restartPolicy"] == "Never"


@pytest.mark.parametrize("kind", KINDS)
def test_no_name_is_too_long_where_that_of_the_workload_is_as_long_as_it_may_be(kind):
    size = {"cluster.workers": 1000, "cluster.parameter_servers": 256}
    asked = deployment(size, name="a" * 40)
    documents = rendered(kind, asked)
    names = [document["metadata"]["name"] for document in documents]
    for pods in pods_of(documents):
        names += pods.template["metadata"]["labels"].values()
        names.append(POD_NAMES[kind].format(asked.name, pods.role, pods.count - 1))
    assert max(map(len, names)) <= 63


def test_what_is_given_for_one_type_wins_over_what_is_given_for_all():
    config = build_config(None, SETTINGS | SIZE)
    roles = roles_of(config, cpu=[("ps", "1"), (None, "4")], memory=[("worker", "8Gi")], restarts=[])
    assert {role.type: (role.cpu, role.memory) for role in roles} == {
        "chief": ("4", Role.memory), "ps": ("1", Role.memory), "worker": ("4", "8Gi"), "evaluator": ("4", Role.memory)
    }  # fmt: skip
    with pytest.raises(UserError, match="--cpu: got evaluator=1, but this training has only chief, ps, worker"):
        roles_of(build_config(None, {"cluster.evaluator": False}), cpu=[("evaluator", "1")])
    with pytest.raises(UserError, match="--restarts: got 1 and 2 for ps"):
        roles_of(config, restarts=[("ps", 1), ("ps", 2)])


def test_the_largest_cluster_fits_into_an_environment_variable():
    largest = deployment({"cluster.workers": 1000, "cluster.parameter_servers": 256}, name="a" * 40)
    value = pods_of(rendered("jobset", largest))[0].environment(0)["TF_CONFIG"]
    assert isinstance(cluster_of(value)[0], ClusterTopology)
    assert len(f"TF_CONFIG={value}") < 2**17  # Linux's limit for one
