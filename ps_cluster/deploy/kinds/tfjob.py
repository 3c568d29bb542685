"""A TFJob of Kubeflow's Training Operator v1, which sets TF_CONFIG itself."""

from __future__ import annotations

from ps_cluster.catalogue.task_types import CHIEF, EVALUATOR, PS, WORKER
from ps_cluster.deploy.deployment import Deployment
from ps_cluster.deploy.kubernetes_yaml import Document
from ps_cluster.deploy.pods import pod_template
from ps_cluster.deploy.workload_kind import WorkloadKind, metadata

_REPLICA_TYPES = {CHIEF: "Chief", PS: "PS", WORKER: "Worker", EVALUATOR: "Evaluator"}


class TFJobKind(WorkloadKind):
    """Restarts every container where it is.

    Its policy ExitCode would take 75 (retry) for final, because only codes from 128 on are retried. With OnFailure also
    2 and 3 are, until the limit.
    """

    name = "tfjob"
    says = "Kubeflow Training Operator v1"
    index_field = "metadata.labels['training.kubeflow.org/replica-index']"
    writes_tf_config = True
    container_name = "tensorflow"
    port_name = "tfjob-port"

    def workload(self, deployment: Deployment) -> list[Document]:
        replicas = {
            _REPLICA_TYPES[role.type]: {
                "replicas": role.count,
                "restartPolicy": "OnFailure",
                "template": pod_template(deployment, role, self),
            }
            for role in deployment.roles
        }
        # The job is done when its leader is; the evaluator still scores then, and all other pods end by themselves.
        policy = {"cleanPodPolicy": "None", "backoffLimit": sum(role.restarts for role in deployment.roles)}
        return [
            {
                "apiVersion": "kubeflow.org/v1",
                "kind": "TFJob",
                "metadata": metadata(deployment),
                "spec": {"runPolicy": policy, "tfReplicaSpecs": replicas},
            }
        ]


TFJOB = TFJobKind()
