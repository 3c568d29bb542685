"""Settings of a chaos run, the options of `run` that follow from them, and the plan of the faults."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ps_cluster.config import RunConfig, build_config
from ps_cluster.config.modes import MODES
from ps_cluster.config.tasks import WORKER, OnDeaths, Task
from ps_cluster.errors import UserError
from ps_cluster.launch.topology import ClusterTopology
from ps_cluster.tools.chaos.disturbed_runs import Run
from ps_cluster.tools.chaos.hosts import why_not
from ps_cluster.tools.chaos.kind import ChaosFailed, FaultKind
from ps_cluster.tools.chaos.kinds import FAULTS

# More steps than fit between two faults. Each costs 128 bytes on every parameter server.
STEPS_PER_FAULT, STEPS_PER_MINUTE = 10_000, 20_000
MOST_STEPS = 10_000_000
# Asynchronous runs of one seed differ in the order of their updates. A long cool-down brings them together again: of
# 1,720 updates 1,500 leave a standard deviation of 1.1 points of accuracy (verdict.py).
COOL_DOWN_FRACTION, SHORTEST_COOL_DOWN = 0.25, 1500
COOL_DOWN_END_FACTOR = 0.05


@dataclass(frozen=True)
class ChaosSettings:
    """Settings of a chaos run, which injects `faults` faults or, where given, faults for `minutes`."""

    seed: int = 0
    faults: int = 20
    minutes: float | None = None
    kinds: tuple[str, ...] = ()  # empty: all that there are for such a run
    hosts: int | None = None  # None: all tasks are on this machine, and a launcher watches them
    mode: str = "async"
    model: str = "tutorial_cnn"
    workers: int = 3
    parameter_servers: int = 1
    least_cool_down: int = SHORTEST_COOL_DOWN  # steps
    # On hosts. Less than most faults last, so that what they hit counts as lost and has to be taken in again.
    lost_after_seconds: float = 10.0
    undisturbed_runs: int = 1  # of the same work, to compare with; none beside a run on hosts
    more_options: tuple[str, ...] = ()  # of `run`, or of `task`

    def most_steps(self) -> int:
        """Return the steps of the disturbed run if it were not drained after the last fault."""
        wanted = STEPS_PER_FAULT * self.faults if self.minutes is None else STEPS_PER_MINUTE * (self.minutes + 1)
        return min(MOST_STEPS, int(wanted))

    def run_options(self, values: Mapping[str, Any]) -> tuple[str, ...]:
        """Return the options of `run`. `values`: dotted key → value of further settings."""
        servers = ("--ps", str(self.parameter_servers)) if self._on_parameter_servers else ()
        return ("--workers", str(self.workers), *servers, *self.task_options(values))

    def task_options(self, values: Mapping[str, Any]) -> tuple[str, ...]:
        """Return the options of `task`, whose cluster TF_CONFIG describes. `values`: as for `run_options`.

        The learning rate is constant until the last fault, as nobody knows when that will be. So it is the rate that a
        training of this kind begins with: without a warm-up its highest rate makes some runs learn nothing at all.
        """
        config = self._config()
        values = {"optimizer.learning_rate": config.optimizer.learning_rate * config.schedule.start_factor, **values}
        return (
            *("--dataset", "synthetic", "--model", self.model, "--seed", str(self.seed), "--mode", self.mode),
            *(option for key, value in values.items() for option in ("--set", f"{key}={value}")),
            *self.more_options,
        )

    def check(self) -> None:
        """Raise UserError for an impossible cluster, no hosts, or a kind of fault that can't be loaded."""
        try:
            self.wanted()
        except UserError as error:
            raise UserError(f"--kinds: {error}") from error
        if self.hosts and (reason := why_not()):
            raise UserError(f"--hosts: got {self.hosts}: {reason}")
        if self.parameter_servers > 1 and not self._on_parameter_servers:
            raise UserError(f"--ps: got {self.parameter_servers}: mode {self.mode} has no parameter servers")
        self._config()

    def _config(self) -> RunConfig:
        cluster = {"cluster.workers": self.workers}
        if self._on_parameter_servers:
            cluster["cluster.parameter_servers"] = self.parameter_servers
        return build_config(None, {"mode.name": self.mode, "model.name": self.model} | cluster)

    @property
    def _on_parameter_servers(self) -> bool:
        return MODES[self.mode].has_parameter_servers

    @property
    def topology(self) -> ClusterTopology:
        """The tasks that can be hit. Only the launcher knows their addresses."""
        workers, servers = self.workers, self.parameter_servers
        return ClusterTopology.local(
            MODES[self.mode].cluster.tasks, workers, servers, evaluator=True, pick_port=lambda: 0
        )

    def wanted(self) -> dict[FaultKind, str | None]:
        """Return kind → why the mode can't have it, of the kinds asked for; None where it can."""
        kinds = [FAULTS[name] for name in self.kinds or FAULTS.names]
        return {kind: self._why_not(kind) for kind in kinds if self.kinds or self._is_for_it(kind)}

    def _is_for_it(self, kind: FaultKind) -> bool:
        return kind.hosted if self.hosts else kind.launched

    def _why_not(self, kind: FaultKind) -> str | None:
        if not self._is_for_it(kind):
            return "it needs the launcher, and with --hosts there is none" if self.hosts else "it needs --hosts"
        if kind.others_go_on and not MODES[self.mode].cluster.on_death[WORKER].dispensable:
            return f"in mode {self.mode} no worker goes on without the others"
        types = set(kind.victims) - {task.type for task in self.topology.tasks}
        return f"mode {self.mode} has no {' and no '.join(sorted(types))}" if types else None

    def plan(self, kinds: Sequence[FaultKind]) -> Iterator[Fault]:
        """Yield the faults, of these kinds; without end if `minutes` limits them."""
        faults = plan(self.seed, kinds, self.topology.tasks, MODES[self.mode].cluster.on_death)
        return itertools.islice(faults, self.faults) if self.minutes is None else faults


def constant_rate(steps: int) -> dict[str, Any]:
    """Return settings with the same learning rate at every step."""
    return {"training.steps": steps, "schedule.kind": "constant", "schedule.warmup_fraction": 0.0}


def with_cool_down(steps: int, least: int) -> dict[str, Any]:
    """Return settings with `steps` steps at the same learning rate, then at least `least` in which it falls."""
    total = steps + max(least, int(COOL_DOWN_FRACTION * steps))
    return {
        "training.steps": total,
        "schedule.kind": "triangle",
        "schedule.start_factor": 1.0,  # makes the "warm-up" the constant part
        "schedule.warmup_fraction": steps / total,
        "schedule.end_factor": COOL_DOWN_END_FACTOR,
    }


# Plan the faults of a run and their order: a pure function of the seed and the available kinds.

SHORTEST_PAUSE_S, LONGEST_PAUSE_S = 1.0, 3.0


@dataclass(frozen=True)
class Fault:
    """A fault to inject, after a pause."""

    kind: FaultKind
    victims: tuple[Task, ...]
    pause_s: float
    whole_cluster: bool  # chief, parameter servers and workers restart with it


def plan(seed: int, kinds: Sequence[FaultKind], tasks: Sequence[Task], on_death: OnDeaths) -> Iterator[Fault]:
    """Yield faults without end. Equal arguments give equal faults. All kinds come before one comes twice among those like it.

    Faults that restart the whole cluster alternate with faults that don't: the launcher rightly gives up on a cluster
    that dies again and again within seconds.

    Args:
      kinds: the kinds to draw from, at least one. tasks: those of the run. on_death: the mode's table of restarts.
    """
    source = random.Random(seed)
    with_and_without = [[kind for kind in kinds if kind.whole_cluster(on_death) is whole] for whole in (True, False)]
    decks = [_shuffled(source, deck) for deck in source.sample(with_and_without, 2) if deck]
    while True:
        for deck in decks:
            yield make_fault(next(deck), source, tasks, on_death)


def make_fault(kind: FaultKind, source: random.Random, tasks: Sequence[Task], on_death: OnDeaths) -> Fault:
    """Return a fault of this kind, its victims and pause drawn from `source`."""
    victims = kind.choose(source, tasks)
    return Fault(kind, victims, source.uniform(SHORTEST_PAUSE_S, LONGEST_PAUSE_S), kind.whole_cluster(on_death))


def allowed_here(
    kinds: Mapping[FaultKind, str | None], run: Run, notify: Callable[[str], None]
) -> tuple[list[FaultKind], dict[str, str]]:
    """Return the kinds that `run` can be hit with on this system, and name → reason of the others, which are notified.

    Args:
      kinds: kind → reason why it is impossible, where that is known already.
    Raises:
      ChaosFailed: none is left.
    """
    reasons = {kind: reason or kind.why_not(run) for kind, reason in kinds.items()}
    allowed = [kind for kind, reason in reasons.items() if reason is None]
    skipped = {kind.name: reason for kind, reason in reasons.items() if reason is not None}
    for name, reason in skipped.items():
        notify(f"skipped: {name}: {reason}")
    if not allowed:
        raise ChaosFailed(f"none of the kinds of fault can be injected here: {'; '.join(skipped.values())}")
    return allowed, skipped


def _shuffled(source: random.Random, kinds: Sequence[FaultKind]) -> Iterator[FaultKind]:
    """Yield all kinds in a random order, then all in another, without end."""
    while True:
        yield from source.sample(kinds, len(kinds))
