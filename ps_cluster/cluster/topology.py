"""The tasks and addresses of a cluster; read and write TF_CONFIG."""

from __future__ import annotations

import ipaddress
import json
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated

import portpicker
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError

from ps_cluster.catalogue.modes import MODES
from ps_cluster.catalogue.task_types import CHIEF, EVALUATOR, PS, TRAINING_TYPES, WORKER, Task
from ps_cluster.errors import UserError
from ps_cluster.files.json_files import parse_json
from ps_cluster.files.malformed import Malformed
from ps_cluster.files.plain_text import one_line
from ps_cluster.files.validation import first_error
from ps_cluster.run.rows.cluster import TaskType

_ADDRESS = re.compile(r"(?:\[([0-9A-Fa-f:.]{2,45})\]|[A-Za-z0-9_.-]{1,253}):([1-9][0-9]{0,4})")
LAST_PORT = 65535


def _is_address(text: str) -> str:
    match = _ADDRESS.fullmatch(text)
    if not match or int(match[2]) > LAST_PORT or match[1] and not _is_ipv6(match[1]):
        raise ValueError(f"is not host:port, with a port in 1 to {LAST_PORT}")
    return text


def _is_ipv6(text: str) -> bool:
    try:
        return ipaddress.ip_address(text).version == 6
    except ValueError:
        return False


class _Given(BaseModel):
    # Many a TF_CONFIG has keys that TensorFlow does not know, e.g. "environment".
    model_config = ConfigDict(frozen=True, extra="ignore", strict=True)


class _GivenTask(_Given):
    type: TaskType
    index: int = Field(ge=0)


class _GivenConfig(_Given):
    """The content of TF_CONFIG (https://www.tensorflow.org/guide/distributed_training#tf_config)."""

    cluster: dict[str, Annotated[list[Annotated[str, AfterValidator(_is_address)]], Field(min_length=1)]]
    task: _GivenTask


@dataclass(frozen=True)
class ClusterTopology:
    """The tasks of a cluster and their addresses; the evaluator is no member and has none.

    TensorFlow waits for every member of the cluster spec, and an evaluator never answers (tensorflow#46169). It also
    numbers the members of a job from 0 without a gap. Where a worker was given up, those behind it keep their index in
    the run (files, rows, messages) and have another one in TensorFlow (`member`).
    """

    # type ("chief", "ps", "worker"; only those present) → "host:port" by TensorFlow's index
    cluster: dict[str, list[str]]
    evaluator: bool = False
    given_up: frozenset[int] = frozenset()  # indices of workers that are no longer part of the cluster

    @classmethod
    def local(
        cls,
        types: Sequence[str],
        workers: int,
        parameter_servers: int,
        *,
        evaluator: bool,
        given_up: frozenset[int] = frozenset(),
        pick_port: Callable[[], int] = portpicker.pick_unused_port,
    ) -> ClusterTopology:
        """Return a cluster of tasks of these types on 127.0.0.1, with ports that were free a moment ago.

        Args:
          workers: how many there were at first, including those in `given_up`, which are left out.
        """
        counts = {CHIEF: 1, PS: parameter_servers, WORKER: workers - len(given_up)}
        cluster = {kind: [f"127.0.0.1:{pick_port()}" for _ in range(counts[kind])] for kind in types}
        return cls(cluster, evaluator, given_up)

    @property
    def types(self) -> tuple[str, ...]:
        return tuple(self.cluster)

    @property
    def size(self) -> dict[str, int]:
        """The number of tasks of each type as settings, dotted key → value."""
        keys = {WORKER: "cluster.workers", PS: "cluster.parameter_servers"}
        return {key: len(self.cluster[kind]) for kind, key in keys.items() if kind in self.cluster}

    @property
    def tasks(self) -> tuple[Task, ...]:
        members = [Task(kind, index) for kind in self.cluster for index in self._indices(kind)]
        return (*members, Task(EVALUATOR, 0)) if self.evaluator else tuple(members)

    @property
    def leader(self) -> Task:
        """The task that writes checkpoints, rows and the result, and ends with training: the chief, else worker 0."""
        return Task(CHIEF if CHIEF in self.cluster else WORKER, 0)

    def computes_gradients(self, task: Task) -> bool:
        """Return whether `task` needs the training images: a worker does, and a chief without workers."""
        return task.type == (WORKER if WORKER in self.cluster else CHIEF)

    def _indices(self, kind: str) -> Sequence[int]:
        """Return the indices in the run of the tasks of this type, in TensorFlow's order."""
        count = len(self.cluster[kind])
        if kind != WORKER:
            return range(count)
        return [index for index in range(count + len(self.given_up)) if index not in self.given_up]

    def member(self, task: Task) -> Task:
        """Return `task` with its index in TensorFlow."""
        return task if task.type == EVALUATOR else Task(task.type, self._indices(task.type).index(task.index))

    def address(self, task: Task) -> str | None:
        """Return the address of `task`; None for one that is not, or no longer, a member."""
        if task.type == EVALUATOR or task not in self.tasks:
            return None
        return self.cluster[task.type][self.member(task).index]

    def tf_config(self, task: Task) -> str:
        """Return the value of TF_CONFIG for `task`."""
        member = self.member(task)
        return json.dumps({"cluster": self.cluster, "task": {"type": member.type, "index": member.index}})


def from_tf_config(text: str | None) -> tuple[ClusterTopology, Task]:
    """Return the cluster that TF_CONFIG describes, without its evaluator, and the task that this process is.

    Raises:
      UserError: it is not set, not JSON, or describes no cluster that a run can have.
    """
    if not text:
        raise UserError("TF_CONFIG is not set: it names the cluster and which task of it this process is")
    try:
        given = _GivenConfig.model_validate(parse_json(text))
    except Malformed as error:
        raise UserError(f"TF_CONFIG {error}") from error
    except ValidationError as error:
        raise UserError(first_error(error, "TF_CONFIG")) from error
    cluster = _cluster(given.cluster)
    task = _task(given.task, cluster)
    return ClusterTopology(cluster, evaluator=task.type == EVALUATOR), task


def _cluster(given: Mapping[str, list[str]]) -> dict[str, list[str]]:
    members = {kind: addresses for kind, addresses in given.items() if kind != EVALUATOR}
    cluster = {kind: members[kind] for kind in TRAINING_TYPES if kind in members}
    if tuple(cluster) not in {mode.tasks for mode in MODES} or len(cluster) < len(members):
        raise UserError(
            f"TF_CONFIG: cluster: got {one_line(', '.join(members), 300) or 'nothing'}; it has either chief, ps and "
            "worker, or only worker, or only chief"
        )
    if len(cluster.get(CHIEF, [""])) != 1:
        raise UserError(f"TF_CONFIG: cluster.chief must be one address, got {len(cluster[CHIEF])}")
    (address, times), *_ = Counter(address for addresses in cluster.values() for address in addresses).most_common(1)
    if times > 1:
        raise UserError(f"TF_CONFIG: cluster: {address!r} is there twice")
    return cluster


def _task(given: _GivenTask, cluster: Mapping[str, list[str]]) -> Task:
    counts = {name: len(addresses) for name, addresses in cluster.items()} | {EVALUATOR: 1}
    if given.type not in counts:
        raise UserError(f"TF_CONFIG: task.type: got {given.type!r}; it is one of {', '.join(counts)}")
    if given.index >= counts[given.type]:
        raise UserError(
            f"TF_CONFIG: task.index: got {given.index}; the cluster has {counts[given.type]} of type {given.type}"
        )
    return Task(given.type, given.index)
