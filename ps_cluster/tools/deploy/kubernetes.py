"""Manifests for Kubernetes: a pod for each task, and the kinds of workloads that start and restart the pods."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from ps_cluster.cli.command_line import (
    TEXT_FILE,
    Matching,
    OneLineErrors,
    OneOf,
    Whole,
    examples,
    option,
    write_text_to,
)
from ps_cluster.cli.options import (
    OPTIONS_OF_TASKS,
    OfTypes,
    config_layers,
    config_options,
    layered_config,
    waiting_options,
    waiting_words,
)
from ps_cluster.config import RunConfig
from ps_cluster.config.datasets import DATASETS
from ps_cluster.config.modes import CHIEF, EVALUATOR, PS, WORKER
from ps_cluster.errors import BAD_INPUT, SUPERSEDED, UserError
from ps_cluster.files.yaml_files import dump_yaml
from ps_cluster.launch.silence import LauncherLimits

Part = dict[str, Any]  # of a manifest

# A training that a scheduler runs: its roles, and where its tasks find configuration, data and run directory.

NEVER_RETRY = (BAD_INPUT, SUPERSEDED)  # exit codes of `task` after which the same command would fail again
_GRACE_S = 30  # for a worker to hand back its steps, or any task to end

OfType = tuple[str | None, Any]  # the type of a role, or None for all; a value


@dataclass(frozen=True)
class Role:
    """All tasks of one type.

    Attributes:
      alone: a task that failed is started again by itself; if not, all tasks start again with it.
      leads: its first task leads the training.
      shares: its tasks read or write the run directory of the leader.
      grace_s: seconds from SIGTERM to SIGKILL; the leader writes a snapshot in this time.
      cpu, memory: of each task, as Kubernetes writes them.
      restarts: how often tasks of the role may be restarted.
    """

    type: str
    count: int
    alone: bool
    leads: bool
    shares: bool
    grace_s: int
    cpu: str = "2"
    memory: str = "4Gi"
    restarts: int = 20


@dataclass(frozen=True)
class Deployment:
    """The request, whatever the kind of workload.

    Attributes:
      name: of the workload; the names of its objects begin with it.
      namespace: None: that of `kubectl`.
      run_volume: the claim of the volume with the run directory.
      data_volume: the claim of the volume that is mounted at `DATA`, read-only.
      scratch: the most that each folder of a pod may hold that is deleted with it, as Kubernetes writes it.
      restart_job: JobSet may recreate a single Job, which its feature gate RestartJob has to allow.
      task_options: more words for the command `task`.
    """

    name: str
    namespace: str | None
    image: str
    config: RunConfig
    roles: tuple[Role, ...]
    run_volume: str
    data_volume: str | None = None
    scratch: str = "10Gi"
    restart_job: bool = True
    task_options: tuple[str, ...] = ()


def roles_of(config: RunConfig, *, shared_by_all: bool = False, **given: Iterable[OfType]) -> tuple[Role, ...]:
    """Return the roles that the mode of `config` has, and the evaluator if it is wanted.

    Args:
      shared_by_all: all tasks get the run directory of the leader, not only those that have to.
      given: cpu, memory, restarts → values for all roles or for one.
    Raises:
      UserError: a value for a role that is not there, or two for one.
    """
    mode, cluster = config.mode_kind, config.cluster
    counts = {CHIEF: 1, PS: cluster.parameter_servers, WORKER: cluster.workers, EVALUATOR: 1}
    leader = CHIEF if CHIEF in mode.tasks else WORKER
    types = (*mode.tasks, EVALUATOR) if cluster.evaluator else mode.tasks
    drain_s = int(LauncherLimits().for_waits_of(config.longest_update_seconds()).drain_s)
    values = {field: _by_type(field, some, types) for field, some in given.items()}
    return tuple(
        Role(
            type=kind,
            count=counts[kind],
            alone=not mode.on_death[kind].whole_cluster,
            leads=kind == leader,
            shares=shared_by_all or kind in (leader, EVALUATOR),
            grace_s=_GRACE_S + (drain_s if kind == leader else 0),
            **{field: some[kind] for field, some in values.items() if kind in some},
        )
        for kind in types
    )


def check_for_tasks(config: RunConfig, min_workers: int | None) -> None:
    """Raise UserError for what each task would take in another way, or for too many or few `min_workers`."""
    from ps_cluster.launch.one_task import check_min_workers, check_named

    check_named(config)
    mode = config.mode_kind
    check_min_workers(min_workers, config.cluster.workers if WORKER in mode.tasks else 0, mode)
    if (folder := config.data.data_dir) is not None and not folder.is_absolute():
        raise UserError(f"data.data_dir: got '{folder}': name the whole path, as the tasks find it")


def _by_type(field: str, values: Iterable[OfType], types: tuple[str, ...]) -> dict[str, Any]:
    """Return a value for each type that has one. One for a type wins over one for all."""
    found: dict[str | None, Any] = {}
    for kind, value in values:
        if kind is not None and kind not in types:
            raise UserError(f"--{field}: got {kind}={value}, but this training has only {', '.join(types)}")
        if found.setdefault(kind, value) != value:
            raise UserError(f"--{field}: got {found[kind]} and {value} for {kind or 'all'}: give one of them")
    return {kind: found.get(kind, found.get(None)) for kind in types if kind in found or None in found}


# The pod of a task: its command, environment, volumes, probes, and what it is not allowed to do.

# Paths in a container.
CONFIG_FOLDER = "/etc/ps-cluster"
CONFIG_NAME = "config.yaml"
RUNS = "/runs"  # the volume with the run directory
DATA = "/data"
TEMPORARY = "/tmp"
CACHE = "/cache"  # packed data sets

PORT = 2222
TASK_INDEX = "TASK_INDEX"
_CONTAINER, _PORT_NAME = "task", "grpc"
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
    port = {"name": _PORT_NAME, "containerPort": PORT, "protocol": "TCP"}
    return {
        "name": _CONTAINER,
        "image": deployment.image,
        "command": task_command(deployment),
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
            {"name": "config", "mountPath": CONFIG_FOLDER, "readOnly": True},
            {"name": "runs", "mountPath": RUNS},
            {"name": "cache", "mountPath": CACHE},
            {"name": "tmp", "mountPath": TEMPORARY},
            *([{"name": "data", "mountPath": DATA, "readOnly": True}] if deployment.data_volume else []),
        ],
        **_probes(deployment, role),
    }


def task_command(deployment: Deployment) -> list[str]:
    """Return the command `task`: the same for all tasks, and each time that one is started."""
    config = f"{CONFIG_FOLDER}/{CONFIG_NAME}"
    return ["ps-cluster", "task", "--run-dir", _run_dir(deployment), "--config", config, *deployment.task_options]


def _run_dir(deployment: Deployment) -> str:
    return f"{RUNS}/{deployment.name}"


def _environment(deployment: Deployment, role: Role, kind: WorkloadKind) -> list[Part]:
    return [
        # Before TF_CONFIG, which names it.
        {"name": TASK_INDEX, "valueFrom": {"fieldRef": {"fieldPath": kind.index_field}}},
        {"name": "TF_CONFIG", "value": kind.tf_config(deployment, role)},
        {"name": "PS_CLUSTER_CACHE", "value": f"{CACHE}/ps_cluster"},
        {"name": "HOME", "value": TEMPORARY},
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


# What every kind of workload has beside it: the configuration, and who may reach the pods.

# Port 53 of anybody would be a way out. Names: of kube-dns and CoreDNS alike; the address: NodeLocal DNSCache.
_DNS: list[Part] = [
    {
        "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "kube-system"}},
        "podSelector": {"matchLabels": {"k8s-app": "kube-dns"}},
    },
    {"ipBlock": {"cidr": "169.254.20.10/32"}},
]


def manifest(deployment: Deployment, api: str, kind: str, *, name: str | None = None, **content: Any) -> Part:
    """Return an object of Kubernetes; `name`: None for that of the deployment."""
    namespace = {"namespace": deployment.namespace} if deployment.namespace else {}
    metadata = {"name": name or deployment.name, **namespace, "labels": labels(deployment)}
    return {"apiVersion": api, "kind": kind, "metadata": metadata, **content}


def pod_failure_policy() -> Part:
    """Return the reaction of a Job to exit codes: bad input ends it, an evicted pod does not count as a failure."""
    never = {"containerName": _CONTAINER, "operator": "In", "values": list(NEVER_RETRY)}
    disrupted = [{"type": "DisruptionTarget", "status": "True"}]
    return {"rules": [{"action": "FailJob", "onExitCodes": never}, {"action": "Ignore", "onPodConditions": disrupted}]}


def _network_policy(deployment: Deployment) -> Part:
    """Return what lets only the tasks of this deployment reach each other, and them reach only the cluster's DNS beside."""
    tasks = [{"podSelector": {"matchLabels": labels(deployment)}}]
    ports = [{"protocol": "TCP", "port": PORT}]
    names = [{"protocol": protocol, "port": 53} for protocol in ("UDP", "TCP")]
    spec = {
        "podSelector": {"matchLabels": labels(deployment)},
        "policyTypes": ["Ingress", "Egress"],
        "ingress": [{"from": tasks, "ports": ports}],
        "egress": [{"to": tasks, "ports": ports}, {"to": _DNS, "ports": names}],
    }
    return manifest(deployment, "networking.k8s.io/v1", "NetworkPolicy", spec=spec)


# The kinds of workloads: how each names the pods of a cluster, tells a pod its index, and restarts what has failed.


class WorkloadKind:
    """The base class of the kinds.

    Attributes:
      name: its name; says: in a few words, who runs it.
      index_field: the field of a pod that holds the index of its task.
    """

    name = ""
    says = ""
    index_field = ""

    def workload(self, deployment: Deployment) -> list[Part]:
        """Return the objects that start the tasks."""
        raise NotImplementedError

    def host(self, deployment: Deployment, role: Role, index: int) -> str:
        """Return the name by which other pods reach a task."""
        raise NotImplementedError

    def manifests(self, deployment: Deployment) -> str:
        """Return all objects as YAML, each after a line `---`."""
        content = {CONFIG_NAME: deployment.config.to_yaml()}
        config = manifest(deployment, "v1", "ConfigMap", name=config_name(deployment), data=content)
        objects = [config, _network_policy(deployment), *self.workload(deployment)]
        return "".join(f"---\n{dump_yaml(one)}" for one in objects)

    def tf_config(self, deployment: Deployment, role: Role) -> str:
        """Return TF_CONFIG of the tasks of a role, with $(TASK_INDEX) for Kubernetes to replace."""
        cluster = {
            one.type: [f"{self.host(deployment, one, index)}:{PORT}" for index in range(one.count)]
            for one in deployment.roles
            if one.type != EVALUATOR
        }
        return f'{{"cluster": {json.dumps(cluster)}, "task": {{"type": "{role.type}", "index": $({TASK_INDEX})}}}}'


class JobSetKind(WorkloadKind):
    """Replaces the pod of a worker or an evaluator alone; if a chief or a parameter server fails, all start again."""

    name = "jobset"
    says = "JobSet"
    index_field = "metadata.annotations['jobset.sigs.k8s.io/job-index']"

    def host(self, deployment: Deployment, role: Role, index: int) -> str:
        return f"{deployment.name}-{role.type}-{index}-0.{deployment.name}"

    def workload(self, deployment: Deployment) -> list[Part]:
        return [manifest(deployment, "jobset.x-k8s.io/v1alpha2", "JobSet", spec=self.spec(deployment))]

    def spec(self, deployment: Deployment) -> Part:
        """Return the spec of the JobSet."""
        return {
            "network": {
                "enableDNSHostnames": True,
                "subdomain": deployment.name,
                "publishNotReadyAddresses": True,  # tasks look for each other before any is ready
            },
            "successPolicy": {
                "operator": "All",
                "targetReplicatedJobs": [
                    role.type for role in deployment.roles if role.leads or role.type == EVALUATOR
                ],
            },
            "failurePolicy": self._failure_policy(deployment),
            "replicatedJobs": [self._replicated_job(deployment, role) for role in deployment.roles],
        }

    def _failure_policy(self, deployment: Deployment) -> Part:
        alone = [role for role in deployment.roles if role.alone]
        together = [role for role in deployment.roles if not role.alone]
        rules: list[Part] = [
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

    def _replicated_job(self, deployment: Deployment, role: Role) -> Part:
        job = {
            "parallelism": 1,
            "completions": 1,
            "completionMode": "Indexed",
            "backoffLimit": role.restarts if role.alone else 0,
            "podFailurePolicy": pod_failure_policy(),
            "podReplacementPolicy": "Failed",  # the new pod takes the place of one that is gone
            "template": pod_template(deployment, role, self, restartPolicy="Never"),
        }
        return {"name": role.type, "replicas": role.count, "template": {"spec": job}}


def _rule(name: str, action: str, roles: list[Role]) -> Part:
    return {"name": name, "action": action, "targetReplicatedJobs": [role.type for role in roles]}


class TrainJobKind(JobSetKind):
    """Lets Kubeflow Trainer v2 make the JobSet, which gets the name of the TrainJob.

    The runtime names no framework, so Trainer's plugin PlainML takes it. No job has the label of an ancestor: Trainer
    would give that one a single replica, and put its own command into it.
    """

    name = "trainjob"
    says = "Kubeflow Trainer v2"

    def workload(self, deployment: Deployment) -> list[Part]:
        runtime = {"mlPolicy": {"numNodes": 1}, "template": {"spec": self.spec(deployment)}}
        named = {"apiGroup": "trainer.kubeflow.org", "kind": "TrainingRuntime", "name": deployment.name}
        return [
            manifest(deployment, "trainer.kubeflow.org/v1alpha1", "TrainingRuntime", spec=runtime),
            manifest(deployment, "trainer.kubeflow.org/v1alpha1", "TrainJob", spec={"runtimeRef": named}),
        ]


class IndexedJobsKind(WorkloadKind):
    """Replaces every pod alone; the tasks find each other again. What is left when the leader is given up, you delete."""

    name = "jobs"
    says = "Kubernetes alone: indexed Jobs and a headless Service"
    index_field = "metadata.annotations['batch.kubernetes.io/job-completion-index']"

    def host(self, deployment: Deployment, role: Role, index: int) -> str:
        return f"{deployment.name}-{role.type}-{index}.{deployment.name}"

    def workload(self, deployment: Deployment) -> list[Part]:
        service = {
            "clusterIP": "None",
            "publishNotReadyAddresses": True,  # tasks look for each other before any is ready
            "selector": labels(deployment),
            "ports": [{"name": _PORT_NAME, "port": PORT}],
        }
        return [
            manifest(deployment, "v1", "Service", spec=service),
            *(self._job(deployment, role) for role in deployment.roles),
        ]

    def _job(self, deployment: Deployment, role: Role) -> Part:
        spec = {
            "completionMode": "Indexed",
            "completions": role.count,
            "parallelism": role.count,
            "backoffLimitPerIndex": role.restarts,
            "podFailurePolicy": pod_failure_policy(),
            "podReplacementPolicy": "Failed",  # the new pod takes the place of one that is gone
            "template": pod_template(deployment, role, self, restartPolicy="Never", subdomain=deployment.name),
        }
        return manifest(deployment, "batch/v1", "Job", name=f"{deployment.name}-{role.type}", spec=spec)


KINDS: dict[str, WorkloadKind] = {one.name: one for one in (JobSetKind(), TrainJobKind(), IndexedJobsKind())}


# The command `ps-cluster k8s render`.

_NAME = Matching(r"[a-z]([-a-z0-9]{0,38}[a-z0-9])?", "up to 40 small letters, digits and -, the first a letter")
_CLAIM = Matching(r"[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?", "the name of a PersistentVolumeClaim")
_NAMESPACE = Matching(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?", "the name of a namespace")
_IMAGE = Matching(r"[a-z0-9][A-Za-z0-9._:/@-]{0,499}", "an image: REGISTRY/NAME:TAG or NAME@sha256:DIGEST")
_CPU = OfTypes(Matching(r"[1-9][0-9]{0,5}m?|[0-9]{1,4}\.[0-9]{1,3}", "a number of cores: 4, 0.5 or 500m"))
_AMOUNT = r"[1-9][0-9]{0,14}([KMGT]i)?"
_MEMORY = OfTypes(Matching(_AMOUNT, "an amount of memory: 4Gi or 500Mi"))
_SIZE = Matching(_AMOUNT, "a size: 10Gi or 500Mi")
_RESTARTS = OfTypes(Whole(0, 10_000))

_EXAMPLES = (
    "k8s render --run-volume runs --image me/ps-cluster:1 --dataset synthetic --precision float32",
    "k8s render --kind trainjob --workers 8 --ps 2 --run-volume runs --data-volume cifar "
    "--image me/ps-cluster:1 --dataset cifar10 --precision bfloat16 --output train.yaml",
    "k8s render --kind jobs --cpu 4 --cpu ps=2 --memory worker=8Gi --restarts worker=50 "
    "--run-volume runs --image me/ps-cluster:1 --dataset synthetic --precision float32",
)


@click.group(cls=OneLineErrors, epilog=examples(*_EXAMPLES))
def k8s() -> None:
    """Write manifests for Kubernetes."""


@k8s.command(epilog=examples(*_EXAMPLES))
@option(
    "--kind",
    type=OneOf(tuple(KINDS)),
    default="jobset",
    help=f"Who starts and restarts the tasks: {', '.join(f'{one.name} ({one.says})' for one in KINDS.values())}.",
)
@option("--name", type=_NAME, default="ps-cluster", help="The names of all objects and of the run directory.")
@option("--namespace", type=_NAMESPACE, help="Default: the one that kubectl uses.")
@option("--image", type=_IMAGE, required=True, help="The container image, built from the Containerfile.")
@option("--run-volume", type=_CLAIM, required=True, metavar="CLAIM", help="The volume for the run directory.")
@option(
    "--share-run-dir/--no-share-run-dir",
    help="Mount it in all pods, not only in those of the leader and the evaluator.",
)
@option("--data-volume", type=_CLAIM, metavar="CLAIM", help="A volume with the data set; mounted at /data, read-only.")
@option(
    "--scratch", type=_SIZE, default="10Gi", help="Most that the cache of a pod, and its other own folders, may hold."
)
@option("--cpu", type=_CPU, multiple=True, help="Cores of each pod, or of those of one type; default: 2.")
@option("--memory", type=_MEMORY, multiple=True, help="Memory of each pod, or of those of one type; default: 4Gi.")
@option("--restarts", type=_RESTARTS, multiple=True, help="Most restarts of all, or one type of task; default: 20.")
@option(
    "--restart-job/--no-restart-job",
    default=True,
    help="Kinds jobset and trainjob: recreate single Jobs, for which the controller needs its feature gate RestartJob.",
)
@option("--output", type=TEXT_FILE, metavar="FILE", default="-", help="Where to write; -: print it.")
@waiting_options()
@config_options(*OPTIONS_OF_TASKS)
@config_layers
def render(
    kind: str, output: Path, file: Path | None, assignments: tuple[str, ...], data_volume: str | None,
    scratch: str, cpu: tuple[tuple[str | None, str], ...], memory: tuple[tuple[str | None, str], ...],
    restarts: tuple[tuple[str | None, int], ...], share_run_dir: bool, restart_job: bool,
    name: str, namespace: str | None, image: str, run_volume: str, wait_seconds: float | None, min_workers: int | None,
    **options: Any,
) -> None:  # fmt: skip
    """Print the manifests of a training on Kubernetes.

    Options and files of settings are those of `run`; --wait-seconds and --min-workers are those of `task`.
    """
    config = layered_config(file, assignments, options)
    _check_isolation(config.cluster.isolation)
    check_for_tasks(config, min_workers)
    config = _with_data(config, data_volume)
    roles = roles_of(config, shared_by_all=share_run_dir, cpu=cpu, memory=memory, restarts=restarts)
    deployment = Deployment(
        name=name,
        namespace=namespace,
        image=image,
        config=config,
        roles=roles,
        run_volume=run_volume,
        data_volume=data_volume,
        scratch=scratch,
        restart_job=restart_job,
        task_options=waiting_words(wait_seconds, min_workers),
    )
    write_text_to(output, KINDS[kind].manifests(deployment))


def _check_isolation(setting: str) -> None:
    """Raise UserError for an isolation that a pod can't make."""
    if setting not in ("auto", "off"):
        raise UserError(
            f"cluster.isolation: got '{setting}': containers may neither make networks nor set rules of the firewall: "
            "leave it out; the NetworkPolicy closes the ports"
        )


def _with_data(config: RunConfig, claim: str | None) -> RunConfig:
    """Return the configuration with the volume as the place of a data set that has to be found, unless it names another.

    Raises UserError for a data set that is made up, where nothing would read the volume, and for one that no pod reaches.
    """
    kind = DATASETS[config.data.dataset]
    if claim is None:
        if kind.is_on_disk and config.data.data_dir is None:
            raise UserError(
                f"data.dataset: got '{kind.name}', which no pod can download, as it reaches only the others and DNS: give "
                "--data-volume CLAIM, or --data-dir if it is in the image"
            )
        return config
    if kind.generated:
        raise UserError(f"--data-volume: got '{claim}', but the data set '{kind.name}' is generated: leave it out")
    if config.data.data_dir is not None or not kind.is_on_disk:
        return config
    return config.with_values({"data.data_dir": DATA})
