"""Describe a cluster: its tasks, their addresses, and the TF_CONFIG of each task."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace

import portpicker

from ps_cluster.config.sections import nested
from ps_cluster.config.tasks import CHIEF, EVALUATOR, PS, TRAINING_TYPES, WORKER, Task, leader_type
from ps_cluster.config.user_settings import SettingsSource
from ps_cluster.process_variables import TF_CONFIG
from ps_cluster.runs.rows import TaskRow
from ps_cluster.system.addresses import host_and_port


@dataclass(frozen=True)
class Origin:
    """The source of a cluster's description, and the names of the fields in this source, for messages."""

    name: str
    jobs: str  # the field with the task types; "" if they are at the top level
    type: str
    index: str

    def field(self, kind: str = "") -> str:
        """Return the name of the field with the addresses of task type `kind`.

        If `kind` is empty, return the name of the field that contains all task types.
        """
        return ": ".join(filter(None, (self.name, ".".join(filter(None, (self.jobs, kind))))))


OF_TF_CONFIG = Origin(TF_CONFIG, "cluster", f"{TF_CONFIG}: task.type", f"{TF_CONFIG}: task.index")


@dataclass(frozen=True)
class ClusterTopology:
    """The tasks of a cluster and their addresses. The evaluator is not a member of the cluster and has no address.

    TensorFlow waits for every member of the cluster spec, and an evaluator never answers (tensorflow#46169). A worker
    may be absent: its address is in the cluster spec, but its process has not started yet, or has ended permanently.
    """

    # type ("chief", "ps", "worker"; only those present) → "host:port" by index
    cluster: dict[str, list[str]]
    evaluator: bool = False
    absent: frozenset[int] = frozenset()  # indices of workers that do not run: spare, stopped by `scale`, or given up
    origin: Origin = field(default=OF_TF_CONFIG, compare=False)

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

        `workers`: the number of workers, including those in `absent`.
        """
        counts = {CHIEF: 1, PS: parameter_servers, WORKER: workers}
        cluster = {kind: [f"127.0.0.1:{pick_port()}" for _ in range(counts[kind])] for kind in types}
        return cls(cluster, evaluator, absent)

    @classmethod
    def of_run(cls, tasks: Sequence[TaskRow]) -> ClusterTopology:
        """Return the cluster that the rows of cluster.json describe. They include the workers that were stopped."""
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
    def size(self) -> SettingsSource:
        """The numbers of workers and parameter servers, as settings."""
        keys = {WORKER: "cluster.workers", PS: "cluster.parameter_servers"}
        counts = {key: len(self.cluster[kind]) for kind, key in keys.items() if kind in self.cluster}
        return SettingsSource(self.origin.name, nested(counts))

    @property
    def tasks(self) -> tuple[Task, ...]:
        """All tasks that run."""
        places = [Task(kind, index) for kind, addresses in self.cluster.items() for index in range(len(addresses))]
        members = [task for task in places if task.type != WORKER or task.index not in self.absent]
        return (*members, Task(EVALUATOR, 0)) if self.evaluator else tuple(members)

    def of_types(self, types: Sequence[str]) -> list[Task]:
        """Return the tasks of these types that run."""
        return [task for task in self.tasks if task.type in types]

    @property
    def leader(self) -> Task:
        """The task that writes checkpoints, progress rows and the result. Its process ends when training ends."""
        return Task(leader_type(self.cluster), 0)

    def computes_gradients(self, task: Task) -> bool:
        """Return whether `task` computes gradients from examples. True for workers, and for a chief without workers."""
        return task.type == (WORKER if WORKER in self.cluster else CHIEF)

    @property
    def workers(self) -> list[Task]:
        return self.of_types((WORKER,))

    @property
    def absent_workers(self) -> list[Task]:
        """The workers that have an address in the cluster but do not run."""
        return [Task(WORKER, index) for index in sorted(self.absent)]

    def with_workers(self, *, started: Iterable[Task] = (), stopped: Iterable[Task] = ()) -> ClusterTopology:
        """Return the cluster after workers were started or stopped."""
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
        """Return the port at which `task` listens; None for the evaluator, and for the only task of a cluster."""
        address = self.address(task)
        return None if address is None or len(self.tasks) == 1 else host_and_port(address)[1]

    @property
    def hosts(self) -> list[str]:
        """The hosts of all members, without duplicates, including members that do not run."""
        addresses = (address for those in self.cluster.values() for address in those)
        return list(dict.fromkeys(host_and_port(address)[0] for address in addresses))

    def tf_config(self, task: Task) -> str:
        return json.dumps({"cluster": self.cluster, "task": {"type": task.type, "index": task.index}})
