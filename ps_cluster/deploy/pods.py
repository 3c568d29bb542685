"""The pod of a task: its command, environment, volumes, probes, and what it is not allowed to do."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ps_cluster.catalogue.task_types import EVALUATOR
from ps_cluster.deploy import paths
from ps_cluster.deploy.deployment import Deployment, Role

if TYPE_CHECKING:
    from ps_cluster.deploy.workload_kind import WorkloadKind

Part = dict[str, Any]

TASK_INDEX = "TASK_INDEX"
_LONGEST_SILENCE_S = 300  # of a leader; it ends by itself earlier, so only one that is stuck is meant
_USER = 65532  # "nonroot" in many images; the volumes are given to the group of this number


def labels(deployment: Deployment, role: Role | None = None) -> dict[str, str]:
    """Return the labels by which the objects of a deployment, or the pods of one role, are found."""
    found = {"app.kubernetes.io/name": "ps-cluster", "app.kubernetes.io/instance": deployment.name}
    return found | ({"app.kubernetes.io/component": role.type} if role else {})


def pod_template(deployment: Deployment, role: Role, kind: WorkloadKind, **more: Any) -> Part:
    """Return the template of the pods of a role; `more` goes into its spec."""
    return {
        "metadata": {"labels": labels(deployment, role)},
        "spec": {
            **more,
            "terminationGracePeriodSeconds": role.grace_s,
            # The first process of a container does not get signals that it has no handler for. So the task is not the first.
            "shareProcessNamespace": True,
            "automountServiceAccountToken": False,
            "enableServiceLinks": False,
            "securityContext": {
                "runAsNonRoot": True,
                "runAsUser": _USER,
                "runAsGroup": _USER,
                "fsGroup": _USER,
                "fsGroupChangePolicy": "OnRootMismatch",
                "seccompProfile": {"type": "RuntimeDefault"},
            },
            "containers": [_container(deployment, role, kind)],
            "volumes": _volumes(deployment, role),
        },
    }


def _container(deployment: Deployment, role: Role, kind: WorkloadKind) -> Part:
    resources = {"cpu": role.cpu, "memory": role.memory}
    port = {"name": kind.port_name, "containerPort": deployment.port, "protocol": "TCP"}
    return {
        "name": kind.container_name,
        "image": deployment.image,
        "command": kind.command(deployment, role),
        "env": _environment(deployment, role, kind),
        **({"ports": [port]} if role.type != EVALUATOR else {}),
        # Equal, so that TensorFlow sees the cores that it may use, and no neighbour slows a worker down.
        "resources": {"requests": resources, "limits": resources},
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        },
        "volumeMounts": [
            {"name": "config", "mountPath": paths.CONFIG_FOLDER, "readOnly": True},
            {"name": "runs", "mountPath": paths.RUNS},
            {"name": "cache", "mountPath": paths.CACHE},
            {"name": "tmp", "mountPath": paths.TEMPORARY},
            *([{"name": "data", "mountPath": paths.DATA, "readOnly": True}] if deployment.data_volume else []),
        ],
        **_probes(deployment, role),
    }


def task_command(deployment: Deployment) -> list[str]:
    """Return the command `task`: the same for all tasks, and each time that one is started."""
    config = f"{paths.CONFIG_FOLDER}/{paths.CONFIG_NAME}"
    return ["ps-cluster", "task", "--run-dir", _run_dir(deployment), "--config", config, *deployment.task_options]


def _run_dir(deployment: Deployment) -> str:
    return f"{paths.RUNS}/{deployment.name}"


def _environment(deployment: Deployment, role: Role, kind: WorkloadKind) -> list[Part]:
    tf_config = kind.tf_config(deployment, role)
    return [
        # Before TF_CONFIG, which names it.
        {"name": TASK_INDEX, "valueFrom": {"fieldRef": {"fieldPath": kind.index_field}}},
        *([{"name": "TF_CONFIG", "value": tf_config}] if tf_config else []),
        {"name": "PS_CLUSTER_CACHE", "value": f"{paths.CACHE}/ps_cluster"},
        {"name": "HOME", "value": paths.TEMPORARY},
    ]


def _volumes(deployment: Deployment, role: Role) -> list[Part]:
    scratch = {"emptyDir": {"sizeLimit": deployment.scratch}}
    runs = {"persistentVolumeClaim": {"claimName": deployment.run_volume}} if role.shares else scratch
    data = {"persistentVolumeClaim": {"claimName": deployment.data_volume, "readOnly": True}}
    return [
        {"name": "config", "configMap": {"name": config_name(deployment)}},
        {"name": "runs", **runs},
        {"name": "cache", **scratch},
        {"name": "tmp", **scratch},
        *([{"name": "data", **data}] if deployment.data_volume else []),
    ]


def config_name(deployment: Deployment) -> str:
    """Return the name of the ConfigMap."""
    return f"{deployment.name}-config"


def _probes(deployment: Deployment, role: Role) -> Part:
    # A shell, because Kubernetes does not put a pod's index into the command of a probe. There is no readiness probe:
    # nobody routes requests to a task, and with some operators the names of pods that are not ready do not resolve.
    asked = f'--type {role.type} --index "${TASK_INDEX}" --probe live --max-age {_LONGEST_SILENCE_S}'
    health = f"exec ps-cluster health {_run_dir(deployment)} {asked}"
    probe = {"exec": {"command": ["sh", "-c", health]}, "timeoutSeconds": 15}
    return {
        "startupProbe": {**probe, "periodSeconds": 10, "failureThreshold": 60},
        "livenessProbe": {**probe, "periodSeconds": 30, "failureThreshold": 4},
    }
