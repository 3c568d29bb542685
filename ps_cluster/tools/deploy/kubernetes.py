"""Manifests for Kubernetes: a pod for each task, and the kinds of workloads that start and restart the pods."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

import click
from jinja2 import Environment, FileSystemLoader, StrictUndefined

from ps_cluster.cli.command_line import (
    PRINTED_FILE,
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
from ps_cluster.config import RunConfig, datasets
from ps_cluster.config.datasets import DATASETS
from ps_cluster.config.tasks import CHIEF, EVALUATOR, PS, WORKER
from ps_cluster.errors import BAD_INPUT, FAILED_FOR_GOOD, SUPERSEDED, UserError
from ps_cluster.launch.rules import LauncherLimits
from ps_cluster.report.terminal import print_note

# A training that a scheduler runs: its roles, and where its tasks find configuration, data and run directory.

NEVER_RETRY = (
    BAD_INPUT,
    SUPERSEDED,
    FAILED_FOR_GOOD,
)  # exit codes of `task` after which the same command would fail again
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

    @property
    def listens(self) -> bool:
        return self.type != EVALUATOR


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
    restart_job: bool = False
    task_options: tuple[str, ...] = ()

    @property
    def command(self) -> list[str]:
        """The command `task`: the same for all tasks, and each time that one is started."""
        config = "/etc/ps-cluster/config.yaml"
        return ["ps-cluster", "task", "--run-dir", f"/runs/{self.name}", "--config", config, *self.task_options]

    def health(self, role: Role) -> str:
        """Return the command of the probes of a role, for a shell."""
        asked = f'--type {role.type} --index "${TASK_INDEX}" --probe live --max-age {_LONGEST_SILENCE_S}'
        return f"exec ps-cluster health /runs/{self.name} {asked}"

    def types(self, *, alone: bool) -> list[str]:
        """Return the types of tasks that are started again alone, or those with which all are."""
        return [role.type for role in self.roles if role.alone == alone]

    @property
    def types_that_end(self) -> list[str]:
        """The types of tasks that have ended when the training has."""
        return [role.type for role in self.roles if role.leads or role.type == EVALUATOR]

    @property
    def restarts_of_all(self) -> int:
        together = [role for role in self.roles if not role.alone]
        return sum(role.restarts for role in together or self.roles)


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
    leader = CHIEF if CHIEF in mode.cluster.tasks else WORKER
    types = (*mode.cluster.tasks, EVALUATOR) if cluster.evaluator else mode.cluster.tasks
    drain_s = int(LauncherLimits().for_waits_of(config.longest_update_seconds()).drain_s)
    values = {field: _by_type(field, some, types) for field, some in given.items()}
    return tuple(
        Role(
            type=kind,
            count=counts[kind],
            alone=not mode.cluster.on_death[kind].whole_cluster,
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
    check_min_workers(min_workers, config.cluster.workers if WORKER in mode.cluster.tasks else 0, mode)
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


# The kinds of workloads: how each names the pods of a cluster, and tells a pod its index. templates/kubernetes.yaml has the
# objects of all kinds.

DATA = "/data"  # where a pod has the data set
PORT = 2222
TASK_INDEX = "TASK_INDEX"
_LONGEST_SILENCE_S = 300  # of a leader; it ends by itself earlier, so only one that is stuck is meant
_TEMPLATES = Path(__file__).with_name("templates")


@dataclass(frozen=True)
class WorkloadKind:
    """A kind of workload, which starts and restarts the pods.

    Attributes:
      name: its name; says: in a few words, who runs it.
      host: the name by which other pods reach a task, of {name}, {type} and {index}.
      index_field: the field of a pod that holds the index of its task.
    """

    name: str
    says: str
    host: str = "{name}-{type}-{index}-0.{name}"
    index_field: str = "metadata.annotations['jobset.sigs.k8s.io/job-index']"

    def manifests(self, deployment: Deployment) -> str:
        """Return all objects as YAML, each after a line `---`."""
        environment = Environment(
            loader=FileSystemLoader(_TEMPLATES),
            undefined=StrictUndefined,
            trim_blocks=True,
            lstrip_blocks=True,
            keep_trailing_newline=True,
        )
        environment.filters["q"] = json.dumps  # JSON is YAML
        template = environment.get_template("kubernetes.yaml")
        return template.render(d=deployment, kind=self, port=PORT, data=DATA, never_retry=list(NEVER_RETRY))

    def tf_config(self, deployment: Deployment, role: Role) -> str:
        """Return TF_CONFIG of the tasks of a role, with $(TASK_INDEX) for Kubernetes to replace."""
        cluster = {
            one.type: [
                f"{self.host.format(name=deployment.name, type=one.type, index=index)}:{PORT}"
                for index in range(one.count)
            ]
            for one in deployment.roles
            if one.listens
        }
        return f'{{"cluster": {json.dumps(cluster)}, "task": {{"type": "{role.type}", "index": $({TASK_INDEX})}}}}'


KINDS = {
    kind.name: kind
    for kind in (
        # Replaces the pod of a worker or an evaluator alone; if a chief or a parameter server fails, all start again.
        WorkloadKind("jobset", "JobSet"),
        # Makes such a JobSet, which gets the name of the TrainJob.
        WorkloadKind("trainjob", "Kubeflow Trainer v2"),
        # Replaces every pod alone; the tasks find each other again. What is left when the leader is given up, you delete.
        WorkloadKind(
            "jobs",
            "Kubernetes alone: indexed Jobs and a headless Service",
            host="{name}-{type}-{index}.{name}",
            index_field="metadata.annotations['batch.kubernetes.io/job-completion-index']",
        ),
    )
}


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
    help="Kinds jobset and trainjob: recreate single Jobs, for which the controller needs its feature gate RestartJob.",
)
@option("--output", type=PRINTED_FILE, metavar="FILE", default="-", help="Where to write; -: print it.")
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
    if (isolation := config.cluster.isolation) not in ("auto", "off"):
        raise UserError(
            f"cluster.isolation: got '{isolation}': containers may neither make networks nor set rules of the firewall: "
            "leave it out; the NetworkPolicy closes the ports"
        )
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


def _with_data(config: RunConfig, claim: str | None) -> RunConfig:
    """Return the configuration with the volume as the place of a data set that has to be found, unless it names another.

    Raises UserError for a data set that is made up, where nothing would read the volume, and for one that no pod reaches.
    """
    kind, own = DATASETS[config.data.dataset], datasets.parse(config.data.dataset)
    place = own.path if own else config.data.data_dir
    if place is not None and claim is None:
        print_note(f"the image has to have '{place}': no volume is mounted (--data-volume)")
    if place is not None and claim is not None and not PurePosixPath(place).is_relative_to(DATA):
        name = f"{own.form.name}:{DATA}/{place.name}" if own else f"--data-dir {DATA}/{place.name}"
        raise UserError(
            f"data.{'dataset' if own else 'data_dir'}: got '{place}', and the volume is mounted at {DATA}: give a path in it, "
            f"e.g. {name}"
        )
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
