"""A TrainJob of Kubeflow Trainer v2 (API v1alpha1), with a runtime of its own that is the JobSet."""

from __future__ import annotations

from ps_cluster.deploy.deployment import Deployment
from ps_cluster.deploy.kinds.jobset import JobSetKind
from ps_cluster.deploy.kubernetes_yaml import Document
from ps_cluster.deploy.workload_kind import metadata

_API = "trainer.kubeflow.org/v1alpha1"


class TrainJobKind(JobSetKind):
    """Lets Trainer make the JobSet, which gets the name of the TrainJob.

    The runtime names no framework, so Trainer's plugin PlainML takes it. No job has the label of an ancestor: Trainer
    would give that one a single replica, and put its own command into it.
    """

    name = "trainjob"
    says = "Kubeflow Trainer v2"

    def workload(self, deployment: Deployment) -> list[Document]:
        return [
            {
                "apiVersion": _API,
                "kind": "TrainingRuntime",
                "metadata": metadata(deployment),
                "spec": {"mlPolicy": {"numNodes": 1}, "template": {"spec": self.spec(deployment)}},
            },
            {
                "apiVersion": _API,
                "kind": "TrainJob",
                "metadata": metadata(deployment),
                "spec": {
                    "runtimeRef": {
                        "apiGroup": "trainer.kubeflow.org",
                        "kind": "TrainingRuntime",
                        "name": deployment.name,
                    }
                },
            },
        ]


TRAINJOB = TrainJobKind()
