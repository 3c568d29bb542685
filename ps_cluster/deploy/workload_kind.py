"""The kinds of workloads: how each names the pods of a cluster, tells a pod its index, and restarts what has failed."""

from __future__ import annotations

import json
from typing import Any

from ps_cluster.catalogue.kinds import Kinds
from ps_cluster.catalogue.task_types import EVALUATOR
from ps_cluster.deploy import paths
from ps_cluster.deploy.deployment import NEVER_RETRY, Deployment, Role
from ps_cluster.deploy.kubernetes_yaml import Document
from ps_cluster.deploy.pods import TASK_INDEX, config_name, labels, task_command
from ps_cluster.errors import UserError


class WorkloadKind:
    """A kind of workload. Subclass it, and write `workload`, and `host` or `writes_tf_config`.

    Attributes:
      name: its name; says: in a few words, who runs it.
      index_field: the field of a pod that holds the index of its task.
      writes_tf_config: the operator sets TF_CONFIG itself.
      container_name, port_name: those that the operator looks for.
    """

    name = ""
    says = ""
    page = "docs/kubernetes.md"
    index_field = ""
    writes_tf_config = False
    container_name = "task"
    port_name = "grpc"

    def workload(self, deployment: Deployment) -> list[Document]:
        """Return the objects that start the tasks."""
        raise NotImplementedError

    def host(self, deployment: Deployment, role: Role, index: int) -> str:
        """Return the name by which other pods reach a task."""
        raise NotImplementedError

    def documents(self, deployment: Deployment) -> list[Document]:
        """Return all objects. Raises UserError where this kind can't run the deployment."""
        if self.writes_tf_config and sum(role.count for role in deployment.roles) == 1:
            raise UserError(
                f"--kind: got '{self.name}', whose operator sets no TF_CONFIG where there is only one task: take jobs"
            )
        return [_config_map(deployment, self.files()), _network_policy(deployment), *self.workload(deployment)]

    def command(self, deployment: Deployment, role: Role) -> list[str]:
        """Return the command of the containers of a role."""
        return task_command(deployment)

    def files(self) -> dict[str, str]:
        """Return name → content of the files that are in each container beside the configuration."""
        return {}

    def tf_config(self, deployment: Deployment, role: Role) -> str | None:
        """Return TF_CONFIG of the tasks of a role, with $(TASK_INDEX) for Kubernetes to replace; None: not ours to set."""
        if self.writes_tf_config:
            return None
        cluster = {
            one.type: [f"{self.host(deployment, one, index)}:{deployment.port}" for index in range(one.count)]
            for one in deployment.roles
            if one.type != EVALUATOR
        }
        return f'{{"cluster": {json.dumps(cluster)}, "task": {{"type": "{role.type}", "index": $({TASK_INDEX})}}}}'


KINDS: Kinds[WorkloadKind] = Kinds("kind of workload", WorkloadKind, "ps_cluster.deploy.kinds", "ps_cluster.workloads")


# Port 53 of anybody would be a way out. Names: of kube-dns and CoreDNS alike; the address: NodeLocal DNSCache.
_DNS: list[dict[str, Any]] = [
    {
        "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "kube-system"}},
        "podSelector": {"matchLabels": {"k8s-app": "kube-dns"}},
    },
    {"ipBlock": {"cidr": "169.254.20.10/32"}},
]


def metadata(deployment: Deployment, name: str | None = None) -> dict[str, Any]:
    """Return the metadata of an object; `name`: that of the deployment."""
    namespace = {"namespace": deployment.namespace} if deployment.namespace else {}
    return {"name": name or deployment.name, **namespace, "labels": labels(deployment)}


def pod_failure_policy(kind: WorkloadKind) -> dict[str, Any]:
    """Return the reaction of a Job to exit codes: bad input ends it, an evicted pod does not count as a failure."""
    never = {"containerName": kind.container_name, "operator": "In", "values": list(NEVER_RETRY)}
    disrupted = [{"type": "DisruptionTarget", "status": "True"}]
    return {"rules": [{"action": "FailJob", "onExitCodes": never}, {"action": "Ignore", "onPodConditions": disrupted}]}


def finishing(deployment: Deployment) -> list[str]:
    """Return the roles whose end is the end of the training: that which leads, and the evaluator."""
    return [role.type for role in deployment.roles if role.leads or role.type == EVALUATOR]


def _config_map(deployment: Deployment, files: dict[str, str]) -> Document:
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": metadata(deployment, config_name(deployment)),
        "data": {paths.CONFIG_NAME: deployment.config.to_yaml(), **files},
    }


def _network_policy(deployment: Deployment) -> Document:
    """Return what lets only the tasks of this deployment reach each other, and them reach only the cluster's DNS beside."""
    tasks = [{"podSelector": {"matchLabels": labels(deployment)}}]
    ports = [{"protocol": "TCP", "port": deployment.port}]
    names = [{"protocol": protocol, "port": 53} for protocol in ("UDP", "TCP")]
    return {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": metadata(deployment),
        "spec": {
            "podSelector": {"matchLabels": labels(deployment)},
            "policyTypes": ["Ingress", "Egress"],
            "ingress": [{"from": tasks, "ports": ports}],
            "egress": [{"to": tasks, "ports": ports}, {"to": _DNS, "ports": names}],
        },
    }
