"""Plan the faults of a run, and their order: a pure function of the seed and of the kinds that are there."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from ps_cluster.catalogue.task_types import OnDeaths
from ps_cluster.chaos.kind import FaultKind, Run
from ps_cluster.cluster.topology import Task

SHORTEST_PAUSE_S, LONGEST_PAUSE_S = 1.0, 3.0


@dataclass(frozen=True)
class Fault:
    """A fault to inject, after a pause."""

    kind: FaultKind
    victims: tuple[Task, ...]
    pause_s: float
    whole_cluster: bool  # chief, parameter servers and workers start again with it


def plan(seed: int, kinds: Sequence[FaultKind], tasks: Sequence[Task], on_death: OnDeaths) -> Iterator[Fault]:
    """Faults without end; the same arguments give the same ones, and `enough_for_all` of them have every kind.

    One that takes the whole cluster along follows one that does not, in turns: the launcher gives up what dies again and
    again within seconds, which is right, and not what this is about.

    Args:
      kinds: those to take, at least one. tasks: those of the run. on_death: what follows from a death there.
    """
    source = random.Random(seed)
    decks = [_shuffled(source, deck) for deck in source.sample(_decks(kinds, on_death), 2) if deck]
    while True:
        for deck in decks:
            yield make_fault(next(deck), source, tasks, on_death)


def enough_for_all(kinds: Sequence[FaultKind], on_death: OnDeaths) -> int:
    """Return how many faults a plan needs to have every one of these kinds."""
    return 2 * max(map(len, _decks(kinds, on_death)))


def make_fault(kind: FaultKind, source: random.Random, tasks: Sequence[Task], on_death: OnDeaths) -> Fault:
    """A fault of this kind with victims and a pause out of `source`."""
    victims = kind.choose(source, tasks)
    return Fault(kind, victims, source.uniform(SHORTEST_PAUSE_S, LONGEST_PAUSE_S), kind.whole_cluster(on_death))


def sort_out(kinds: Mapping[FaultKind, str | None], run: Run) -> tuple[list[FaultKind], dict[str, str]]:
    """Returns the kinds that `run` can be hit with on this system, and why not with the others, by their names.

    Args:
      kinds: to ask about; each with why it can't be, where that is known already.
    """
    reasons = {kind: reason or kind.why_not(run) for kind, reason in kinds.items()}
    allowed = [kind for kind, reason in reasons.items() if reason is None]
    return allowed, {kind.name: reason for kind, reason in reasons.items() if reason is not None}


def _decks(kinds: Sequence[FaultKind], on_death: OnDeaths) -> list[list[FaultKind]]:
    """Those that take the whole cluster along, and the others."""
    return [[kind for kind in kinds if kind.whole_cluster(on_death) is whole] for whole in (True, False)]


def _shuffled(source: random.Random, kinds: Sequence[FaultKind]) -> Iterator[FaultKind]:
    """All kinds in some order, then all of them in another, and so on."""
    while True:
        yield from source.sample(kinds, len(kinds))
