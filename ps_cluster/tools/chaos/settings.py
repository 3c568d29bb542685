"""Settings of a chaos run, and the options of `run` or `task` that follow from them."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from ps_cluster.config import RunConfig, build_config
from ps_cluster.config.modes import MODES
from ps_cluster.config.tasks import WORKER
from ps_cluster.errors import UserError
from ps_cluster.launch.topology import ClusterTopology
from ps_cluster.tools.chaos.hosts import why_not
from ps_cluster.tools.chaos.kind import Fault, FaultKind, make_fault
from ps_cluster.tools.chaos.kinds import FAULTS

# The planned steps of the disturbed run, which is drained after its last fault: the most that a run may have. They last
# for 11 days at 1,000 steps/s, and steps that are only planned cost nothing.
PLANNED_STEPS = 1_000_000_000
# Asynchronous runs of one seed differ in the order of their updates. A long cool-down brings them together again: with a
# cool-down of 1,500 of 1,720 updates, accuracies have a standard deviation of 1.1 points (verdict.py).
COOL_DOWN_FRACTION, SHORTEST_COOL_DOWN = 0.25, 1500
COOL_DOWN_END_FACTOR = 0.05


@dataclass(frozen=True)
class ChaosSettings:
    """Settings of a chaos run.

    Attributes:
      minutes: the time in which faults are injected, instead of a number of `faults`.
      kinds: the names of the kinds of fault; empty for all kinds that can hit a run on simulated hosts or, without
        `hosts`, a run on this machine.
      hosts: the number of simulated hosts. If it is None, all tasks are on this machine, and a launcher watches them.
      least_cool_down: at the end, the learning rate falls over at least this number of steps.
      lost_after_seconds: if a task on a host is silent for this time, it counts as lost.
      undisturbed_runs: the number of runs of the same work without faults. A run on hosts is not compared with any.
      more_options: further options of the command `ps-cluster run` or `ps-cluster task`.
    """

    seed: int = 0
    faults: int = 20
    minutes: float | None = None
    kinds: tuple[str, ...] = ()
    hosts: int | None = None
    mode: str = "async"
    dataset: str = "synthetic"
    model: str = "tutorial_cnn"
    workers: int = 3
    parameter_servers: int = 1
    least_cool_down: int = SHORTEST_COOL_DOWN
    # Most faults last longer than this, so the tasks that they hit count as lost, and have to join again.
    lost_after_seconds: float = 10.0
    undisturbed_runs: int = 1
    more_options: tuple[str, ...] = ()

    def run_options(self, values: Mapping[str, object]) -> tuple[str, ...]:
        """Return the options of the command `ps-cluster run`. `values`: further settings, by dotted key."""
        servers = ("--ps", str(self.parameter_servers)) if MODES[self.mode].has_parameter_servers else ()
        return ("--workers", str(self.workers), *servers, *self.task_options(values))

    def task_options(self, values: Mapping[str, object]) -> tuple[str, ...]:
        """Return the options of `ps-cluster task`, without the cluster, which TF_CONFIG describes.

        The learning rate is constant until the last fault, since the time of that fault is not known. This rate is the
        low rate at which a warm-up usually begins. With the network's full rate from the start, some runs learn
        nothing. `values`: as for `run_options`.
        """
        config = self._config()
        if (rate := config.optimizer.learning_rate) is not None:  # None: that of compile(), which has no warm-up
            values = {"optimizer.learning_rate": rate * config.schedule.start_factor, **values}
        return (
            *("--dataset", self.dataset, "--model", self.model, "--seed", str(self.seed), "--mode", self.mode),
            *(option for key, value in values.items() for option in ("--set", f"{key}={value}")),
            *self.more_options,
        )

    def check(self) -> None:
        """Raise UserError if these settings can't be used.

        The cluster may be impossible, this system may not allow simulated hosts, or a kind of fault can't be loaded.
        """
        try:
            self.wanted()
        except UserError as error:
            raise UserError(f"--kinds: {error}") from error
        if self.hosts and (reason := why_not()):
            raise UserError(f"--hosts: got {self.hosts}: {reason}")
        if self.parameter_servers > 1 and not MODES[self.mode].has_parameter_servers:
            raise UserError(f"--ps: got {self.parameter_servers}: mode {self.mode} has no parameter servers")
        self._config()

    def _config(self) -> RunConfig:
        cluster = {"cluster.workers": self.workers}
        if MODES[self.mode].has_parameter_servers:
            cluster["cluster.parameter_servers"] = self.parameter_servers
        return build_config(
            None, {"data.dataset": self.dataset, "mode.name": self.mode, "model.name": self.model} | cluster
        )

    @property
    def topology(self) -> ClusterTopology:
        """All tasks of the cluster, which faults can hit. Their ports are placeholders."""
        workers, servers = self.workers, self.parameter_servers
        return ClusterTopology.local(
            MODES[self.mode].cluster.types, workers, servers, evaluator=True, pick_port=lambda: 0
        )

    def wanted(self) -> dict[FaultKind, str | None]:
        """Return the requested kinds of fault, each with the reason why it can't hit this run, or None if it can."""
        kinds = [FAULTS[name] for name in self.kinds or FAULTS.names]
        return {kind: self._why_not(kind) for kind in kinds if self.kinds or self._is_for_it(kind)}

    def _is_for_it(self, kind: FaultKind) -> bool:
        return kind.hosted if self.hosts else kind.launched

    def _why_not(self, kind: FaultKind) -> str | None:
        if not self._is_for_it(kind):
            return "it needs the launcher, and with --hosts there is none" if self.hosts else "it needs --hosts"
        if kind.others_continue and not MODES[self.mode].cluster.on_death[WORKER].dispensable:
            return f"in mode {self.mode} no worker continues without the others"
        types = set(kind.victims) - {task.type for task in self.topology.tasks}
        return f"mode {self.mode} has no {' and no '.join(sorted(types))}" if types else None

    def plan(self, kinds: Sequence[FaultKind]) -> Iterator[Fault]:
        """Yield faults of these kinds, in an order that depends only on the settings.

        Their number is `self.faults`. If `self.minutes` is set, the iterator has no end.

        Faults that restart the whole cluster alternate with faults that don't: the launcher rightly gives up on a cluster
        that dies again and again within seconds. In both groups, each kind occurs once before any kind occurs again.
        `kinds`: at least one.
        """
        source, on_death = random.Random(self.seed), MODES[self.mode].cluster.on_death
        groups = [[kind for kind in kinds if kind.restarts_whole_cluster(on_death) is whole] for whole in (True, False)]
        decks = [_shuffled(source, group) for group in source.sample(groups, 2) if group]
        for deck in itertools.islice(itertools.cycle(decks), self.faults if self.minutes is None else None):
            yield make_fault(next(deck), source, self.topology.tasks, on_death)


def _shuffled(source: random.Random, kinds: Sequence[FaultKind]) -> Iterator[FaultKind]:
    """Yield all kinds in random order, again and again."""
    while True:
        yield from source.sample(kinds, len(kinds))


# With a schedule of image sizes, the first part of the steps would use smaller images, and the planned length of a run
# would decide which steps these are. The disturbed run and the undisturbed runs have different planned lengths.
WHOLE_IMAGES: Mapping[str, object] = {"schedule.image_scales": []}


def constant_rate() -> dict[str, object]:
    """Return settings with a constant learning rate, for a run that is drained long before its last step."""
    return {
        "training.steps": PLANNED_STEPS,
        "schedule.kind": "constant",
        "schedule.warmup_fraction": 0.0,
        **WHOLE_IMAGES,
    }


def steps_with_cool_down(steps: int, least: int) -> int:
    """Return the number of steps of a run with a cool-down, in which the learning rate falls.

    `steps`: the number of steps before the cool-down. `least`: the smallest number of steps of the cool-down.
    """
    return steps + max(least, int(COOL_DOWN_FRACTION * steps))


def with_cool_down(steps: int, total: int) -> dict[str, object]:
    """Return settings for a learning rate that is constant for `steps` steps and then falls until step `total`."""
    return {
        "training.steps": total,
        "schedule.kind": "triangle",
        "schedule.start_factor": 1.0,  # makes the "warm-up" the constant part
        "schedule.warmup_fraction": steps / total,
        "schedule.end_factor": COOL_DOWN_END_FACTOR,
        **WHOLE_IMAGES,
    }
