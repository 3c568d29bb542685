"""Define the roles of a training that a scheduler runs. A role is all tasks of one type."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TypeVar

from ps_cluster.config import RunConfig
from ps_cluster.config.tasks import CHIEF, EVALUATOR, PS, WORKER, leader_type
from ps_cluster.errors import UserError
from ps_cluster.launch.stages import RunLimits

_GRACE_S = 30  # time for a worker to hand back its steps, or for any task to end

Value = TypeVar("Value", str, int)
OfType = tuple[str | None, Value]  # the type of a role, or None for all roles; the value for it


@dataclass(frozen=True)
class Role:
    """All tasks of one type.

    Attributes:
      count: the number of tasks.
      alone: whether a task that failed is restarted alone. If it is false, all tasks restart with it.
      leads: whether the first of these tasks leads the training.
      shares: whether these tasks read or write the run directory of the leader.
      grace_s: the seconds from SIGTERM to SIGKILL. The leader writes a snapshot in this time.
      cpu: the cores of each task, as Kubernetes writes them.
      memory: the memory of each task, as Kubernetes writes it.
      restarts: how often these tasks may be restarted.
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

    @property
    def ends_with_training(self) -> bool:
        return self.leads or self.type == EVALUATOR


def roles_of(
    config: RunConfig,
    *,
    shared_by_all: bool = False,
    cpu: Iterable[OfType[str]] = (),
    memory: Iterable[OfType[str]] = (),
    restarts: Iterable[OfType[int]] = (),
) -> tuple[Role, ...]:
    """Return the roles that the mode of `config` has, and the evaluator if it is wanted.

    Args:
      shared_by_all: whether all tasks get the run directory of the leader, not only those that need it.
      cpu, memory, restarts: pairs of a task type and the value for its role. A pair with None as the type is for all
        roles that have no pair of their own.
    Raises:
      UserError: a pair is for a type that this training does not have, or two pairs of a type have different values.
    """
    mode, cluster = config.chosen_mode, config.cluster
    counts = {CHIEF: 1, PS: cluster.parameter_servers, WORKER: cluster.workers, EVALUATOR: 1}
    leader = leader_type(mode.cluster.types)
    types = (*mode.cluster.types, EVALUATOR) if cluster.evaluator else mode.cluster.types
    drain_s = int(RunLimits().for_waits_of(config.longest_update_seconds()).drain_s)
    cpus = _by_type("cpu", cpu, types, Role.cpu)
    memories = _by_type("memory", memory, types, Role.memory)
    most_restarts = _by_type("restarts", restarts, types, Role.restarts)
    return tuple(
        Role(
            type=kind,
            count=counts[kind],
            alone=not mode.cluster.on_death[kind].restarts_whole_cluster,
            leads=kind == leader,
            shares=shared_by_all or kind in (leader, EVALUATOR),
            grace_s=_GRACE_S + (drain_s if kind == leader else 0),
            cpu=cpus[kind],
            memory=memories[kind],
            restarts=most_restarts[kind],
        )
        for kind in types
    )


def check_for_tasks(config: RunConfig, min_workers: int | None) -> None:
    """Raise UserError if a setting could have different values in different tasks, e.g. because it is `auto`.

    Raise it also if this training can't begin with `min_workers` workers.
    """
    from ps_cluster.launch.one_task import check_min_workers, check_no_auto

    check_no_auto(config)
    mode = config.chosen_mode
    check_min_workers(min_workers, config.cluster.workers if WORKER in mode.cluster.types else 0, mode)
    if (folder := config.data.data_dir) is not None and not folder.is_absolute():
        raise UserError(f"data.data_dir: got '{folder}': name the absolute path at which the tasks find this folder")


def _by_type(field: str, values: Iterable[OfType[Value]], types: tuple[str, ...], default: Value) -> dict[str, Value]:
    """Return the value of each type. A value for a type replaces a value for all types, which replaces the default."""
    found: dict[str | None, Value] = {}
    for kind, value in values:
        if kind is not None and kind not in types:
            raise UserError(f"--{field}: got {kind}={value}, but this training has only {', '.join(types)}")
        if found.setdefault(kind, value) != value:
            raise UserError(f"--{field}: got {found[kind]} and {value} for {kind or 'all'}: give only one of them")
    return {kind: found.get(kind, found.get(None, default)) for kind in types}
