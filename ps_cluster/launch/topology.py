"""The tasks and addresses of a cluster, its memory and cores; read TF_CONFIG or a cluster file, and write TF_CONFIG."""

from __future__ import annotations

import ipaddress
import json
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated

import portpicker
from pydantic import AfterValidator, BeforeValidator, ConfigDict, Field, TypeAdapter, ValidationError

from ps_cluster.config import RunConfig
from ps_cluster.config.modes import MODES
from ps_cluster.config.networks import NETWORKS
from ps_cluster.config.sections import nested
from ps_cluster.config.tasks import CHIEF, EVALUATOR, PS, TRAINING_TYPES, WORKER, Task
from ps_cluster.config.user_layers import NamedLayer
from ps_cluster.errors import UserError
from ps_cluster.files.json_files import parse_json
from ps_cluster.files.values import Malformed, first_error, one_line
from ps_cluster.files.yaml_files import read_yaml
from ps_cluster.runs.rows import Row, TaskRow, TaskType
from ps_cluster.system.addresses import host_and_port
from ps_cluster.system.limits import FreeMemory

_ADDRESS = re.compile(r"(?:\[([0-9A-Fa-f:.]{2,45})\]|[A-Za-z0-9_.-]{1,253}):([1-9][0-9]{0,4})")
LAST_PORT = 65535
MASTER = "master"  # the chief, in the TF_CONFIG of older programs and of some platforms

Notify = Callable[[str], None]


def _is_address(text: str) -> str:
    match = _ADDRESS.fullmatch(text)
    if not match or int(match[2]) > LAST_PORT or (match[1] and not _is_ipv6(match[1])):
        raise ValueError(f"is not host:port, with a port in 1 to {LAST_PORT}")
    return text


def _is_ipv6(text: str) -> bool:
    try:
        return ipaddress.ip_address(text).version == 6
    except ValueError:
        return False


_Jobs = dict[str, Annotated[list[Annotated[str, AfterValidator(_is_address)]], Field(min_length=1)]]


class _GivenTask(Row):
    type: Annotated[TaskType, BeforeValidator(lambda given: CHIEF if given == MASTER else given)]
    index: int = Field(ge=0)


class _GivenConfig(Row):
    """The content of TF_CONFIG (https://www.tensorflow.org/guide/distributed_training#tf_config).

    Many a TF_CONFIG has keys that TensorFlow does not know, e.g. "environment".
    """

    cluster: _Jobs
    task: _GivenTask


@dataclass(frozen=True)
class Origin:
    """The source of a cluster's description, and what its fields are called there, for messages."""

    name: str
    jobs: str  # the field with the task types; "" where they are at the top level
    type: str
    index: str

    def field(self, kind: str = "") -> str:
        """Return the name of the field with all task types, or of that of one type."""
        return ": ".join(filter(None, (self.name, ".".join(filter(None, (self.jobs, kind))))))


TF_CONFIG = Origin("TF_CONFIG", "cluster", "TF_CONFIG: task.type", "TF_CONFIG: task.index")


@dataclass(frozen=True)
class ClusterTopology:
    """The tasks of a cluster and their addresses; the evaluator is no member and has none.

    TensorFlow waits for every member of the cluster spec, and an evaluator never answers (tensorflow#46169). A worker
    may be absent: its address is in the cluster spec, and nobody is there yet, or any more.
    """

    # type ("chief", "ps", "worker"; only those present) → "host:port" by index
    cluster: dict[str, list[str]]
    evaluator: bool = False
    absent: frozenset[int] = frozenset()  # indices of workers that do not run: spare, stopped by `scale`, or given up
    origin: Origin = field(default=TF_CONFIG, compare=False)

    @classmethod
    def local(
        cls,
        types: Sequence[str],
        workers: int,
        parameter_servers: int,
        *,
        evaluator: bool,
        absent: frozenset[int] = frozenset(),
        pick_port: Callable[[], int] = portpicker.pick_unused_port,
    ) -> ClusterTopology:
        """Return a cluster of tasks of these types on 127.0.0.1, with ports that were free a moment ago.

        Args:
          workers: how many there may be, including those in `absent`.
        """
        counts = {CHIEF: 1, PS: parameter_servers, WORKER: workers}
        cluster = {kind: [f"127.0.0.1:{pick_port()}" for _ in range(counts[kind])] for kind in types}
        return cls(cluster, evaluator, absent)

    @classmethod
    def of_run(cls, tasks: Sequence[TaskRow]) -> ClusterTopology:
        """Return the cluster that cluster.json describes. Its rows have no gap: a worker that was stopped keeps its row."""
        cluster = {
            kind: [
                task.address
                for task in sorted(tasks, key=lambda task: task.index)
                if task.type == kind and task.address
            ]
            for kind in TRAINING_TYPES
        }
        absent = frozenset(task.index for task in tasks if task.absent)
        evaluator = any(task.type == EVALUATOR for task in tasks)
        return cls({kind: addresses for kind, addresses in cluster.items() if addresses}, evaluator, absent)

    @property
    def types(self) -> tuple[str, ...]:
        return tuple(self.cluster)

    @property
    def size(self) -> NamedLayer:
        """The number of tasks of each type, as settings."""
        keys = {WORKER: "cluster.workers", PS: "cluster.parameter_servers"}
        counts = {key: len(self.cluster[kind]) for kind, key in keys.items() if kind in self.cluster}
        return NamedLayer(self.origin.name, nested(counts))

    @property
    def tasks(self) -> tuple[Task, ...]:
        """All tasks that run."""
        places = [Task(kind, index) for kind, addresses in self.cluster.items() for index in range(len(addresses))]
        members = [task for task in places if task.type != WORKER or task.index not in self.absent]
        return (*members, Task(EVALUATOR, 0)) if self.evaluator else tuple(members)

    @property
    def leader(self) -> Task:
        """The task that writes checkpoints, rows and the result, and ends with training: the chief, else worker 0."""
        return Task(CHIEF if CHIEF in self.cluster else WORKER, 0)

    def computes_gradients(self, task: Task) -> bool:
        """Return whether `task` needs the training images: a worker does, and a chief without workers."""
        return task.type == (WORKER if WORKER in self.cluster else CHIEF)

    @property
    def workers(self) -> list[Task]:
        """The workers that run."""
        return [task for task in self.tasks if task.type == WORKER]

    @property
    def spare(self) -> list[Task]:
        """The workers that could run and do not."""
        return [Task(WORKER, index) for index in sorted(self.absent)]

    def with_workers(self, *, started: Iterable[Task] = (), stopped: Iterable[Task] = ()) -> ClusterTopology:
        """Return the same cluster after some of its workers were started or stopped."""
        absent = self.absent - {task.index for task in started} | {task.index for task in stopped}
        return replace(self, absent=absent)

    def address(self, task: Task) -> str | None:
        """Return the address of `task`; None for the evaluator, and for a ps that was given up."""
        addresses = self.cluster.get(task.type, [])
        return addresses[task.index] if task.index < len(addresses) else None

    @property
    def addresses(self) -> dict[Task, str]:
        """The addresses of all members that run."""
        return {task: address for task in self.tasks if (address := self.address(task))}

    def port(self, task: Task) -> int | None:
        """Return the port at which `task` listens; None for the evaluator, and for a task without others."""
        address = self.address(task)
        return None if address is None or len(self.tasks) == 1 else host_and_port(address)[1]

    @property
    def hosts(self) -> list[str]:
        """The hosts of all members, each once, whether they run or not."""
        addresses = (address for those in self.cluster.values() for address in those)
        return list(dict.fromkeys(host_and_port(address)[0] for address in addresses))

    def tf_config(self, task: Task) -> str:
        """Return the value of TF_CONFIG for `task`."""
        return json.dumps({"cluster": self.cluster, "task": {"type": task.type, "index": task.index}})


def from_tf_config(text: str | None, notify: Notify = lambda _: None) -> tuple[ClusterTopology, Task]:
    """Return the cluster that TF_CONFIG describes, without its evaluator, and the task that this process is.

    Args:
      notify: is told what is left out.
    Raises:
      UserError: it is not set, not JSON, or describes no cluster that a run can have.
    """
    if not text:
        raise UserError(
            "TF_CONFIG is not set: it names the cluster and which task of it this process is; "
            "or give --cluster, --type and --index"
        )
    try:
        given = _GivenConfig.model_validate(parse_json(text))
    except Malformed as error:
        raise UserError(f"TF_CONFIG {error}") from error
    except ValidationError as error:
        raise UserError(first_error(error, "TF_CONFIG")) from error
    return _topology(given.cluster, Task(given.task.type, given.task.index), TF_CONFIG, notify)


def from_file(path: Path, task: Task, notify: Notify) -> tuple[ClusterTopology, Task]:
    """Return the cluster that a YAML file describes (type → addresses), without its evaluator, and `task`.

    Args:
      task: the one that --type and --index name.
      notify: is told what is left out.
    Raises:
      UserError: the file can't be read, describes no cluster that a run can have, or has no such task.
    """
    origin = Origin(f"'{path}'", "", "--type", "--index")
    try:
        jobs = TypeAdapter(_Jobs, config=ConfigDict(strict=True)).validate_python(read_yaml(path))
    except ValidationError as error:
        raise UserError(first_error(error, origin.name)) from error
    return _topology(jobs, task, origin, notify)


def _topology(given: _Jobs, task: Task, origin: Origin, notify: Notify) -> tuple[ClusterTopology, Task]:
    if EVALUATOR in given:
        notify(f"{origin.field(EVALUATOR)}: left out: it scores checkpoints, and TensorFlow would wait for it in vain")
    cluster = _cluster(given, origin)
    _check_task(task, cluster, origin)
    return ClusterTopology(cluster, evaluator=task.type == EVALUATOR, origin=origin), task


def _cluster(given: Mapping[str, list[str]], origin: Origin) -> dict[str, list[str]]:
    if {CHIEF, MASTER} <= given.keys():
        raise UserError(f"{origin.field(MASTER)}: there is a chief too, and a master is the same: keep one of them")
    members = {CHIEF if kind == MASTER else kind: addresses for kind, addresses in given.items() if kind != EVALUATOR}
    cluster = {kind: members[kind] for kind in TRAINING_TYPES if kind in members}
    if tuple(cluster) not in {mode.cluster.tasks for mode in MODES} or len(cluster) < len(members):
        raise UserError(
            f"{origin.field()}: got {one_line(', '.join(members), 300) or 'nothing'}; it has either chief, ps and "
            "worker, or chief and worker, or only worker, or only chief"
        )
    if len(cluster.get(CHIEF, [""])) != 1:
        raise UserError(f"{origin.field(CHIEF)} must be one address, got {len(cluster[CHIEF])}")
    (address, times), *_ = Counter(address for addresses in cluster.values() for address in addresses).most_common(1)
    if times > 1:
        raise UserError(f"{origin.field()}: {address!r} is there twice")
    _check_ports_of_this_machine(cluster, origin)
    return cluster


def _check_ports_of_this_machine(cluster: Mapping[str, list[str]], origin: Origin) -> None:
    """Raise UserError where two tasks on loopback addresses have the same port."""
    taken: dict[int, str] = {}
    for address in (address for addresses in cluster.values() for address in addresses):
        host, port = host_and_port(address)
        if _is_loopback(host) and (other := taken.setdefault(port, address)) != address:
            raise UserError(
                f"{origin.field()}: {other!r} and {address!r} have the same port and are the same machine, where "
                "TensorFlow listens on all addresses: give each task on it a port of its own"
            )


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _check_task(task: Task, cluster: Mapping[str, list[str]], origin: Origin) -> None:
    """Raise UserError where the cluster has no such task."""
    counts = {name: len(addresses) for name, addresses in cluster.items()} | {EVALUATOR: 1}
    if task.type not in counts:
        raise UserError(f"{origin.type}: got {task.type!r}; it is one of {', '.join(counts)}")
    if task.index >= counts[task.type]:
        raise UserError(f"{origin.index}: got {task.index}; the cluster has {counts[task.type]} of type {task.type}")


# Estimate whether a run's processes fit into the available memory, to warn before the kernel kills one.
#
# This is for networks that are measured. training/session.py has an estimate for the others.

_MB = 10**6
# Fitted to `peak_memory_bytes` of runs with 3 workers, 1 ps and an evaluator (batch 128, float32, 90 steps, n = 1
# each): 1,785 MB airbench, 1,330 cifar_tf_cnn, 1,224 resnet_small, 750 to 850 tutorial_cnn. The tasks' peaks do not all
# come at the same time.
SHARED_MB = 100  # the launcher, and the process that tasks are forked from
SERVING_MB = 160  # each: the chief, a parameter server, the evaluator
EMPTY_WORKER_MB, MEASURED_BATCH = 130, 128
HOLDS_ALL_MB = 70  # additional, for a worker that holds all parameters itself


def needed_bytes(config: RunConfig) -> int | None:
    """Return the estimated peak memory of all processes of a run together; None for a network without a measurement."""
    measured_mb = NETWORKS[config.model.name].worker_mb
    if measured_mb is None:
        return None
    images = config.training.batch_size_per_worker / MEASURED_BATCH
    worker = EMPTY_WORKER_MB + (measured_mb - EMPTY_WORKER_MB) * images
    kind = config.mode_kind
    serving = int(config.cluster.evaluator) + (kind.trainer_type != CHIEF and CHIEF in kind.cluster.tasks)
    if config.mode_kind.has_parameter_servers:
        serving += config.shards
    else:
        worker += HOLDS_ALL_MB
    return round((SHARED_MB + SERVING_MB * serving + worker * config.most_workers) * _MB)


def expected(configs: Iterable[RunConfig], at_once: int = 1) -> str:
    """Return in words what the largest of several runs takes, so many of them at once."""
    needed = [needed_bytes(config) for config in configs]
    if not needed or None in needed:
        return "unknown, as a network was not measured"
    return f"up to {at_once * max(filter(None, needed)) / 1e9:.1f} GB"


def warning(config: RunConfig, room: FreeMemory) -> str | None:
    """Return a line for the user where the run will take more memory than there is room for, else None."""
    needed = needed_bytes(config)
    if needed is None or needed <= room.memory_bytes:
        return None
    return (
        f"memory: the run takes about {needed / 1e9:.1f} GB and {room}: the system may end processes of it; fewer "
        "cluster.workers, a smaller training.batch_size_per_worker or --no-evaluator take less"
    )


# Choose the cores of this machine that each worker is pinned to.
#
# A worker that moves between cores loses its caches, and workers on the same core evict each other's data. In modes
# without waiting, workers need not be equally fast, so each can keep its core. Nobody is pinned under a quota (a
# container with `--cpus`) below the number of visible processors: only the system then knows which of them are free.


def cores_of(worker: int, config: RunConfig, cores: Sequence[int], *, usable: int) -> Sequence[int]:
    """Return the cores that a worker may use: its own part where workers are pinned, else all.

    "auto" does not pin in modes where fast workers wait for slow ones: three workers on two cores are not equally fast.

    Args:
      usable: how many of `cores` may be busy at the same time.
    """
    if usable < len(cores) or not keeps_to_cores(config):
        return cores
    return own_cores(worker, config.most_workers, cores)


def keeps_to_cores(config: RunConfig) -> bool:
    """Return whether each worker is pinned to a part of the cores."""
    chosen = config.cluster.pin_workers
    return config.mode_kind.cluster.pins_workers if chosen == "auto" else chosen


def own_cores(worker: int, workers: int, cores: Sequence[int]) -> Sequence[int]:
    """Return the worker's equal share of `cores`; a single core where there are more workers than cores."""
    if workers > len(cores):
        return [cores[worker % len(cores)]]
    each = len(cores) // workers
    return cores[worker * each : (worker + 1) * each]
