"""Indexed Jobs (batch/v1), one a role, and a headless Service: Kubernetes alone, where there is no operator."""

from __future__ import annotations

from ps_cluster.deploy.deployment import Deployment, Role
from ps_cluster.deploy.kubernetes_yaml import Document
from ps_cluster.deploy.pods import labels, pod_template
from ps_cluster.deploy.workload_kind import WorkloadKind, metadata, pod_failure_policy


class IndexedJobsKind(WorkloadKind):
    """Replaces every pod alone; the tasks find each other again. What is left when the leader is given up, you delete."""

    name = "jobs"
    says = "Kubernetes alone: indexed Jobs and a headless Service"
    index_field = "metadata.annotations['batch.kubernetes.io/job-completion-index']"

    def host(self, deployment: Deployment, role: Role, index: int) -> str:
        return f"{deployment.name}-{role.type}-{index}.{deployment.name}"

    def workload(self, deployment: Deployment) -> list[Document]:
        service = {
            "apiVersion": "v1",
            "kind": "Service",
            "metadata": metadata(deployment),
            "spec": {
                "clusterIP": "None",
                "publishNotReadyAddresses": True,  # tasks look for each other before any is ready
                "selector": labels(deployment),
                "ports": [{"name": self.port_name, "port": deployment.port}],
            },
        }
        return [service, *(self._job(deployment, role) for role in deployment.roles)]

    def _job(self, deployment: Deployment, role: Role) -> Document:
        return {
            "apiVersion": "batch/v1",
            "kind": "Job",
            "metadata": metadata(deployment, f"{deployment.name}-{role.type}"),
            "spec": {
                "completionMode": "Indexed",
                "completions": role.count,
                "parallelism": role.count,
                "backoffLimitPerIndex": role.restarts,
                "podFailurePolicy": pod_failure_policy(self),
                "podReplacementPolicy": "Failed",  # the new pod takes the place of one that is gone
                "template": pod_template(deployment, role, self, restartPolicy="Never", subdomain=deployment.name),
            },
        }


JOBS = IndexedJobsKind()
