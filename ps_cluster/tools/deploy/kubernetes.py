"""Write manifests for Kubernetes, with a pod for each task.

A workload of one of several kinds (`KINDS`) starts and restarts the pods.
templates/kubernetes.yaml has the objects of all kinds of workload.
"""

from __future__ import annotations

import json
from dataclasses import dataclass

from ps_cluster.config import RunConfig
from ps_cluster.errors import NEVER_RETRY
from ps_cluster.tools.deploy.rendering import render
from ps_cluster.tools.deploy.roles import Role

DATA = "/data"  # where a pod has the data set
PORT = 2222


@dataclass(frozen=True)
class Deployment:
    """The settings of a deployment, which are the same for every kind of workload."""

    name: str  # of the workload; the names of its objects begin with it
    namespace: str | None  # of the objects; None for the one that `kubectl` uses
    image: str
    config: RunConfig
    roles: tuple[Role, ...]
    run_volume: str  # the claim of the volume with the run directory
    data_volume: str | None = None  # the claim of the volume that is mounted at `DATA`, read-only
    scratch: str = "10Gi"  # the size limit of each folder that is deleted with its pod, as Kubernetes writes it
    restart_job: bool = False  # whether JobSet may recreate a single Job (its feature gate RestartJob)
    task_options: tuple[str, ...] = ()  # further options of the command `task`


@dataclass(frozen=True)
class WorkloadKind:
    """A kind of workload of Kubernetes, such as a JobSet, which starts and restarts the pods."""

    name: str
    controller: str  # the software that runs the workload, in a few words
    host: str = "{name}-{type}-{index}-0.{name}"  # the name by which other pods reach a task
    # The field of a pod that holds the index of its task.
    index_field: str = "metadata.annotations['jobset.sigs.k8s.io/job-index']"

    def manifests(self, deployment: Deployment) -> str:
        """Return all objects as YAML, each after a line `---`."""
        return render("kubernetes.yaml", d=deployment, kind=self, port=PORT, data=DATA, never_retry=list(NEVER_RETRY))

    def tf_config(self, deployment: Deployment, role: Role) -> str:
        """Return TF_CONFIG for the tasks of a role. Kubernetes replaces $(TASK_INDEX) in this text."""
        cluster = {
            one.type: [
                f"{self.host.format(name=deployment.name, type=one.type, index=index)}:{PORT}"
                for index in range(one.count)
            ]
            for one in deployment.roles
            if one.listens
        }
        return f'{{"cluster": {json.dumps(cluster)}, "task": {{"type": "{role.type}", "index": $(TASK_INDEX)}}}}'


KINDS = {
    kind.name: kind
    for kind in (
        # Replaces only the failed pod of a worker or an evaluator; if a chief or a parameter server fails, all pods restart.
        WorkloadKind("jobset", "JobSet"),
        # Creates a JobSet that behaves like the one above, and has the name of the TrainJob.
        WorkloadKind("trainjob", "Kubeflow Trainer v2"),
        # Replaces only the failed pod; the tasks find each other again. If Kubernetes stops restarting the leader, the user
        # has to delete the remaining objects.
        WorkloadKind(
            "jobs",
            "Kubernetes alone: indexed Jobs and a headless Service",
            host="{name}-{type}-{index}.{name}",
            index_field="metadata.annotations['batch.kubernetes.io/job-completion-index']",
        ),
    )
}
