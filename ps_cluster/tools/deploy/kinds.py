"""Indexed Jobs (batch/v1), one a role, and a headless Service: Kubernetes alone, where there is no operator."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ps_cluster.config.modes import CHIEF, EVALUATOR, PS, WORKER
from ps_cluster.tools.deploy import kubernetes
from ps_cluster.tools.deploy.kubernetes import (
    NEVER_RETRY,
    Deployment,
    Document,
    Role,
    WorkloadKind,
    finishing,
    labels,
    metadata,
    pod_failure_policy,
    pod_template,
)


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


# A JobSet (jobset.sigs.k8s.io, API v1alpha2): a Job for every task.


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


# A TrainJob of Kubeflow Trainer v2 (API v1alpha1), with a runtime of its own that is the JobSet.

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


# A TFJob of Kubeflow's Training Operator v1, which sets TF_CONFIG itself.

_REPLICA_TYPES = {CHIEF: "Chief", PS: "PS", WORKER: "Worker", EVALUATOR: "Evaluator"}
_RETRY = "retry.sh"
_SCRIPT = Path(__file__).with_name("templates") / "tfjob_retry.sh"


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
        return ["sh", f"{kubernetes.CONFIG_FOLDER}/{_RETRY}", str(role.restarts), *super().command(deployment, role)]

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


# A Volcano Job (batch.volcano.sh/v1alpha1): all pods are scheduled together, and a plugin sets TF_CONFIG.


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
