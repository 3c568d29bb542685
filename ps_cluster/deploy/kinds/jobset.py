"""A JobSet (jobset.sigs.k8s.io, API v1alpha2): a Job for every task."""

from __future__ import annotations

from typing import Any

from ps_cluster.deploy.deployment import Deployment, Role
from ps_cluster.deploy.kubernetes_yaml import Document
from ps_cluster.deploy.pods import pod_template
from ps_cluster.deploy.workload_kind import WorkloadKind, finishing, metadata, pod_failure_policy


class JobSetKind(WorkloadKind):
    """Replaces the pod of a worker or an evaluator alone; if a chief or a parameter server fails, all start again."""

    name = "jobset"
    says = "JobSet"
    index_field = "metadata.annotations['jobset.sigs.k8s.io/job-index']"

    def host(self, deployment: Deployment, role: Role, index: int) -> str:
        return f"{deployment.name}-{role.type}-{index}-0.{deployment.name}"

    def workload(self, deployment: Deployment) -> list[Document]:
        return [
            {
                "apiVersion": "jobset.x-k8s.io/v1alpha2",
                "kind": "JobSet",
                "metadata": metadata(deployment),
                "spec": self.spec(deployment),
            }
        ]

    def spec(self, deployment: Deployment) -> dict[str, Any]:
        """Return the spec of the JobSet."""
        return {
            "network": {
                "enableDNSHostnames": True,
                "subdomain": deployment.name,
                "publishNotReadyAddresses": True,  # tasks look for each other before any is ready
            },
            "successPolicy": {"operator": "All", "targetReplicatedJobs": finishing(deployment)},
            "failurePolicy": self._failure_policy(deployment),
            "replicatedJobs": [self._replicated_job(deployment, role) for role in deployment.roles],
        }

    def _failure_policy(self, deployment: Deployment) -> dict[str, Any]:
        alone = [role for role in deployment.roles if role.alone]
        together = [role for role in deployment.roles if not role.alone]
        rules: list[dict[str, Any]] = [
            {"name": "neverRetry", "action": "FailJobSet", "onJobFailureReasons": ["PodFailurePolicy"]}
        ]
        if alone and deployment.restart_job:
            rules.append(_rule("restartAlone", "RestartJob", alone))
        if together:
            rules.append(_rule("restartAll", "RestartJobSet", together))
        return {
            "maxRestarts": sum(role.restarts for role in together or alone),
            "restartStrategy": "BlockingRecreate",  # the old leader has drained before the new one starts
            "rules": rules,
        }

    def _replicated_job(self, deployment: Deployment, role: Role) -> dict[str, Any]:
        job = {
            "parallelism": 1,
            "completions": 1,
            "completionMode": "Indexed",
            "backoffLimit": role.restarts if role.alone else 0,
            "podFailurePolicy": pod_failure_policy(self),
            "podReplacementPolicy": "Failed",  # the new pod takes the place of one that is gone
            "template": pod_template(deployment, role, self, restartPolicy="Never"),
        }
        return {"name": role.type, "replicas": role.count, "template": {"spec": job}}


def _rule(name: str, action: str, roles: list[Role]) -> dict[str, Any]:
    return {"name": name, "action": action, "targetReplicatedJobs": [role.type for role in roles]}


JOBSET = JobSetKind()
