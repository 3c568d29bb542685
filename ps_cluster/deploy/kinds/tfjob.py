"""A TFJob of Kubeflow's Training Operator v1, which sets TF_CONFIG itself."""

from __future__ import annotations

from pathlib import Path

from ps_cluster.catalogue.task_types import CHIEF, EVALUATOR, PS, WORKER
from ps_cluster.deploy import paths
from ps_cluster.deploy.deployment import Deployment, Role
from ps_cluster.deploy.kubernetes_yaml import Document
from ps_cluster.deploy.pods import pod_template
from ps_cluster.deploy.workload_kind import WorkloadKind, metadata

_REPLICA_TYPES = {CHIEF: "Chief", PS: "PS", WORKER: "Worker", EVALUATOR: "Evaluator"}
_RETRY = "retry.sh"
_SCRIPT = Path(__file__).parents[1] / "templates" / "tfjob_retry.sh"


class TFJobKind(WorkloadKind):
    """Restarts every task in its container, by a script of its own.

    The policy OnFailure would also run a task again that must not be: a leader that was superseded would take the run
    directory from the newer one. ExitCode would take 75 (run it again) for final. So the script stands between them.
    """

    name = "tfjob"
    says = "Kubeflow Training Operator v1"
    index_field = "metadata.labels['training.kubeflow.org/replica-index']"
    writes_tf_config = True
    container_name = "tensorflow"
    port_name = "tfjob-port"

    def command(self, deployment: Deployment, role: Role) -> list[str]:
        return ["sh", f"{paths.CONFIG_FOLDER}/{_RETRY}", str(role.restarts), *super().command(deployment, role)]

    def files(self) -> dict[str, str]:
        return {_RETRY: _SCRIPT.read_text("utf-8")}

    def workload(self, deployment: Deployment) -> list[Document]:
        replicas = {
            _REPLICA_TYPES[role.type]: {
                "replicas": role.count,
                "restartPolicy": "ExitCode",
                "template": pod_template(deployment, role, self),
            }
            for role in deployment.roles
        }
        # The job is done when its leader is; the evaluator still scores then, and all other pods end by themselves.
        # No backoffLimit: it counts restarts of containers, of which there are none.
        policy = {"cleanPodPolicy": "None"}
        return [
            {
                "apiVersion": "kubeflow.org/v1",
                "kind": "TFJob",
                "metadata": metadata(deployment),
                "spec": {"runPolicy": policy, "tfReplicaSpecs": replicas},
            }
        ]


TFJOB = TFJobKind()
