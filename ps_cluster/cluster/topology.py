"""Who is in a cluster and where: tasks, addresses, and TF_CONFIG written and read."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import portpicker

from ps_cluster.config import PARAMETER_SERVER_MODES
from ps_cluster.errors import UserError

CHIEF, PS, WORKER, EVALUATOR = "chief", "ps", "worker", "evaluator"
TRAINING_TYPES = (CHIEF, PS, WORKER)
# training.mode → the types of tasks in its cluster, none of which may be missing
TYPES_OF_MODE = {**dict.fromkeys(PARAMETER_SERVER_MODES, TRAINING_TYPES), "sync": (WORKER,), "single": (CHIEF,)}

_ADDRESS = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[^\s:/]+):(\d{1,5})")


@dataclass(frozen=True, order=True)
class Task:
    """One process of a run, e.g. `worker-2`."""

    type: str
    index: int

    def __str__(self) -> str:
        return f"{self.type}-{self.index}"


@dataclass(frozen=True)
class ClusterTopology:
    """The addresses of a cluster; the evaluator is beside it and has none.

    TensorFlow waits for every member of the cluster spec, and an evaluator never answers (tensorflow#46169). It also numbers
    the members of a job from 0 without a gap: where a worker was given up, those behind it keep their own index, by which
    all else names them, and have another one in TensorFlow (`member`).
    """

    cluster: dict[str, list[str]]  # those of "chief" | "ps" | "worker" that there are → "host:port" by TensorFlow's index
    evaluator: bool = False
    given_up: frozenset[int] = frozenset()  # indices of workers that are no part of it any more

    @classmethod
    def local(
        cls,
        mode: str,
        workers: int,
        parameter_servers: int,
        *,
        evaluator: bool,
        given_up: frozenset[int] = frozenset(),
        pick_port: Callable[[], int] = portpicker.pick_unused_port,
    ) -> ClusterTopology:
        """A cluster on 127.0.0.1 with ports that were free a moment ago, of the tasks that `mode` has.

        Args:
          workers: how many there were at first; those of them that are `given_up` are left out.
        """
        counts = {CHIEF: 1, PS: parameter_servers, WORKER: workers - len(given_up)}
        cluster = {kind: [f"127.0.0.1:{pick_port()}" for _ in range(counts[kind])] for kind in TYPES_OF_MODE[mode]}
        return cls(cluster, evaluator, given_up)

    @property
    def types(self) -> tuple[str, ...]:
        return tuple(self.cluster)

    @property
    def tasks(self) -> tuple[Task, ...]:
        members = [Task(kind, index) for kind in self.cluster for index in self._indices(kind)]
        return (*members, Task(EVALUATOR, 0)) if self.evaluator else tuple(members)

    @property
    def leader(self) -> Task:
        """Who writes checkpoints, rows and the result, and ends when training is over: the chief, else worker 0."""
        return Task(CHIEF if CHIEF in self.cluster else WORKER, 0)

    def computes_gradients(self, task: Task) -> bool:
        """Whether `task` needs the training images: a worker does, and a chief without workers."""
        return task.type == (WORKER if WORKER in self.cluster else CHIEF)

    def _indices(self, kind: str) -> Sequence[int]:
        """The indices of the tasks of this type, in TensorFlow's order."""
        count = len(self.cluster[kind])
        if kind != WORKER:
            return range(count)
        return [index for index in range(count + len(self.given_up)) if index not in self.given_up]

    def member(self, task: Task) -> Task:
        """Return `task` under its index in TensorFlow."""
        return task if task.type == EVALUATOR else Task(task.type, self._indices(task.type).index(task.index))

    def address(self, task: Task) -> str | None:
        """Return where `task` listens; None for one that is no member (any more)."""
        if task.type == EVALUATOR or task not in self.tasks:
            return None
        return self.cluster[task.type][self.member(task).index]

    def tf_config(self, task: Task) -> str:
        """The value of TF_CONFIG for `task`."""
        member = self.member(task)
        return json.dumps({"cluster": self.cluster, "task": {"type": member.type, "index": member.index}})


def from_tf_config(text: str | None) -> tuple[ClusterTopology, Task]:
    """The cluster that TF_CONFIG describes and the task this process is in it; an evaluator in its cluster is dropped.

    Raises:
      UserError: it is not set, not JSON, or describes no cluster that a run can have.
    """
    if not text:
        raise UserError("TF_CONFIG is not set: it names the cluster and which task of it this process is")
    try:
        content = json.loads(text)
    except ValueError as error:
        raise UserError(f"TF_CONFIG is not JSON: {error}") from error
    cluster = _cluster(_dictionary(content, "cluster"))
    task = _task(_dictionary(content, "task"), cluster)
    return ClusterTopology(cluster, evaluator=task.type == EVALUATOR), task


def _dictionary(content: object, name: str) -> dict:
    value = content.get(name) if isinstance(content, dict) else None
    if not isinstance(value, dict):
        raise UserError(f"TF_CONFIG: '{name}' must be an object, got {value!r}")
    return value


def _cluster(given: dict) -> dict[str, list[str]]:
    members = {kind: addresses for kind, addresses in given.items() if kind != EVALUATOR}
    cluster = {kind: members[kind] for kind in TRAINING_TYPES if kind in members}
    if tuple(cluster) not in TYPES_OF_MODE.values() or len(cluster) < len(members):
        raise UserError(
            f"TF_CONFIG: cluster: got {', '.join(members) or 'nothing'}; it has either chief, ps and worker, "
            "or only worker, or only chief"
        )
    for kind, addresses in cluster.items():
        if not isinstance(addresses, list) or not addresses:
            raise UserError(f"TF_CONFIG: cluster.{kind} must be a list of host:port, got {addresses!r}")
        for address in addresses:
            _check_address(kind, address)
    if len(cluster.get(CHIEF, [""])) != 1:
        raise UserError(f"TF_CONFIG: cluster.chief must be one address, got {cluster[CHIEF]!r}")
    everywhere = [address for addresses in cluster.values() for address in addresses]
    if twice := [address for address in everywhere if everywhere.count(address) > 1]:
        raise UserError(f"TF_CONFIG: cluster: {twice[0]!r} is there twice")
    return cluster


def _check_address(kind: str, address: object) -> None:
    match = _ADDRESS.fullmatch(address) if isinstance(address, str) else None
    if not match or not 0 < int(match[2]) < 65536:
        raise UserError(f"TF_CONFIG: cluster.{kind}: {address!r} is not host:port")


def _task(given: dict, cluster: dict[str, list[str]]) -> Task:
    kind, index = given.get("type"), given.get("index")
    counts = {name: len(addresses) for name, addresses in cluster.items()} | {EVALUATOR: 1}
    if not isinstance(kind, str) or kind not in counts:
        raise UserError(f"TF_CONFIG: task.type: got {kind!r}; it is one of {', '.join(counts)}")
    if type(index) is not int or not 0 <= index < counts[kind]:
        raise UserError(f"TF_CONFIG: task.index: got {index!r}; the cluster has {counts[kind]} of type {kind}")
    return Task(kind, index)
