"""The command `ps-cluster k8s render`."""

from __future__ import annotations

from pathlib import Path, PurePosixPath

import click

from ps_cluster.cli.command_line import OneLineErrors, examples, option, write_text_to
from ps_cluster.cli.options import (
    OPTIONS_OF_TASKS,
    GivenSettings,
    OfTypes,
    config_and_set_options,
    config_options,
    waiting_options,
    waiting_words,
)
from ps_cluster.cli.value_types import PRINTED_FILE, Integer, Matching, OneOf
from ps_cluster.config import RunConfig
from ps_cluster.config.datasets import DATASETS, parse_format_path
from ps_cluster.errors import UserError
from ps_cluster.report.terminal import print_note
from ps_cluster.tools.deploy.kubernetes import DATA, KINDS, Deployment
from ps_cluster.tools.deploy.roles import OfType, check_for_tasks, roles_of

_NAME = Matching(r"[a-z]([-a-z0-9]{0,38}[a-z0-9])?", "up to 40 lowercase letters, digits and -, a letter first")
_CLAIM = Matching(r"[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?", "the name of a PersistentVolumeClaim")
_NAMESPACE = Matching(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?", "the name of a namespace")
_IMAGE = Matching(r"[a-z0-9][A-Za-z0-9._:/@-]{0,499}", "an image: REGISTRY/NAME:TAG or NAME@sha256:DIGEST")
_CPU = OfTypes(Matching(r"[1-9][0-9]{0,5}m?|[0-9]{1,4}\.[0-9]{1,3}", "a number of cores: 4, 0.5 or 500m"))
_AMOUNT = r"[1-9][0-9]{0,14}([KMGT]i)?"
_MEMORY = OfTypes(Matching(_AMOUNT, "an amount of memory: 4Gi or 500Mi"))
_SIZE = Matching(_AMOUNT, "a size: 10Gi or 500Mi")
_RESTARTS = OfTypes(Integer(0, 10_000))

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
    help=f"What starts and restarts tasks: {', '.join(f'{one.name} ({one.controller})' for one in KINDS.values())}.",
)
@option(
    "--name",
    type=_NAME,
    default="ps-cluster",
    help="Name of the run directory, and prefix of the names of all objects.",
)
@option("--namespace", type=_NAMESPACE, help="The namespace of all objects; default: the one that kubectl uses.")
@option("--image", type=_IMAGE, required=True, help="The container image, built from the Containerfile.")
@option("--run-volume", type=_CLAIM, required=True, metavar="CLAIM", help="The volume for the run directory.")
@option(
    "--share-run-dir/--no-share-run-dir",
    help="Mount the run volume in all pods, not only in those of the leader and the evaluator.",
)
@option("--data-volume", type=_CLAIM, metavar="CLAIM", help="A volume with the data set; mounted at /data, read-only.")
@option(
    "--scratch", type=_SIZE, default="10Gi", help="Size limit of each temporary folder of a pod, such as the cache."
)
@option("--cpu", type=_CPU, multiple=True, help="Cores of each pod, or of the pods of one type; default: 2.")
@option("--memory", type=_MEMORY, multiple=True, help="Memory of each pod, or of the pods of one type; default: 4Gi.")
@option(
    "--restarts",
    type=_RESTARTS,
    multiple=True,
    help="How often the tasks of each type, or of one type, may be restarted; default: 20.",
)
@option(
    "--restart-job/--no-restart-job",
    help="With --kind jobset or trainjob, recreate only the Job that failed, where the mode allows it. The JobSet controller "
    "needs its feature gate RestartJob for this.",
)
@option("--output", type=PRINTED_FILE, metavar="FILE", default="-", help="The file to write; -: standard output.")
@waiting_options()
@config_options(*OPTIONS_OF_TASKS)
@config_and_set_options
def render(
    given: GivenSettings, kind: str, output: Path, data_volume: str | None, scratch: str,
    cpu: tuple[OfType[str], ...], memory: tuple[OfType[str], ...], restarts: tuple[OfType[int], ...],
    share_run_dir: bool, restart_job: bool, name: str, namespace: str | None, image: str, run_volume: str,
    wait_seconds: float | None, min_workers: int | None,
) -> None:  # fmt: skip
    """Print the manifests of a training on Kubernetes.

    It takes the settings of `run`, as options or in files, and the options --wait-seconds and --min-workers of `task`.
    """
    config = given.resolved().config
    if (isolation := config.cluster.isolation) not in ("auto", "off"):
        raise UserError(
            f"cluster.isolation: got '{isolation}': containers may neither make networks nor change the firewall: "
            "leave it out; the NetworkPolicy closes the ports"
        )
    if config.cluster.on_gpus:
        raise UserError(
            "cluster.gpus: got 'auto': the manifests ask Kubernetes for no GPU, and the image has no CUDA: leave it out"
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
    """Return `config`, completed so that a data set on disk is read from the data volume.

    A path that the settings name stays as it is. `claim`: the name of the volume's PersistentVolumeClaim; None if there
    is no data volume. Raises UserError if the data set is generated, but there is a data volume, or if no pod can read
    the data.
    """
    kind, own = DATASETS[config.data.dataset], parse_format_path(config.data.dataset)
    place = own.path if own else config.data.data_dir
    if claim is None:
        if place is not None:
            print_note(f"the image must contain '{place}', as no volume is mounted (--data-volume)")
        elif kind.is_on_disk:
            raise UserError(
                f"data.dataset: got '{kind.name}', which no pod can download, as pods reach only each other and DNS: give "
                "--data-volume CLAIM or, if the image contains the data, --data-dir"
            )
        return config
    if kind.generated:
        raise UserError(
            f"--data-volume: got '{claim}', but the data set '{kind.name}' is generated: leave --data-volume out"
        )
    if place is None:
        return config.with_values({"data.data_dir": DATA}) if kind.is_on_disk else config
    if not PurePosixPath(place).is_relative_to(DATA):
        name = f"{own.data_format.name}:{DATA}/{place.name}" if own else f"--data-dir {DATA}/{place.name}"
        raise UserError(
            f"data.{'dataset' if own else 'data_dir'}: got '{place}', and the volume is mounted at {DATA}: give a path in it, "
            f"e.g. {name}"
        )
    return config
