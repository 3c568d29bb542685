"""A Volcano Job (batch.volcano.sh/v1alpha1): all pods are scheduled together, and a plugin sets TF_CONFIG."""

from __future__ import annotations

from typing import Any

from ps_cluster.deploy.deployment import NEVER_RETRY, Deployment, Role
from ps_cluster.deploy.kubernetes_yaml import Document
from ps_cluster.deploy.pods import pod_template
from ps_cluster.deploy.workload_kind import WorkloadKind, finishing, metadata


class VolcanoKind(WorkloadKind):
    """Restarts the pod of a worker or an evaluator alone; if a chief or a parameter server fails, all start again.

    The plugin `tensorflow` writes the evaluator into the cluster; `task` takes it out again.
    """

    name = "volcano"
    says = "Volcano"
    index_field = "metadata.labels['volcano.sh/task-index']"
    writes_tf_config = True

    def workload(self, deployment: Deployment) -> list[Document]:
        roles = deployment.roles
        return [
            {
                "apiVersion": "batch.volcano.sh/v1alpha1",
                "kind": "Job",
                "metadata": metadata(deployment),
                "spec": {
                    "schedulerName": "volcano",
                    "minAvailable": sum(role.count for role in roles),
                    # Volcano counts restarts of a pod and of the job together, and gives up at this number; 0 means 3.
                    "maxRetry": 1 + sum(role.restarts * (role.count if role.alone else 1) for role in roles),
                    "plugins": {
                        # Its own policy lets the tasks reach each other at every port.
                        "svc": ["--publish-not-ready-addresses=true", "--disable-network-policy=true"],
                        "tensorflow": [f"--port={deployment.port}"],
                    },
                    "tasks": [self._task(deployment, role) for role in roles],
                },
            }
        ]

    def _task(self, deployment: Deployment, role: Role) -> dict[str, Any]:
        last = finishing(deployment)[-1]
        # Volcano makes a deleted pod again by itself. Before 1.14 it takes a pod that it has just deleted to restart it for
        # an evicted one, so with a policy it would go on to restart it.
        failed = {"event": "PodFailed", "action": "RestartPod"}
        lost = {"events": ["PodFailed", "PodEvicted"], "action": "RestartJob"}
        return {
            "name": role.type,
            "replicas": role.count,
            # The first that fits counts.
            "policies": [
                *({"exitCode": code, "action": "TerminateJob"} for code in NEVER_RETRY),
                failed if role.alone else lost,
                *([{"event": "TaskCompleted", "action": "CompleteJob"}] if role.type == last else []),
            ],
            "template": pod_template(deployment, role, self, restartPolicy="Never"),
        }


VOLCANO = VolcanoKind()
