"""Plan the faults of a run and their order: a pure function of the seed and the available kinds."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from ps_cluster.catalogue.task_types import OnDeaths, Task
from ps_cluster.chaos.kind import ChaosFailed, FaultKind, Run

SHORTEST_PAUSE_S, LONGEST_PAUSE_S = 1.0, 3.0


@dataclass(frozen=True)
class Fault:
    """A fault to inject, after a pause."""

    kind: FaultKind
    victims: tuple[Task, ...]
    pause_s: float
    whole_cluster: bool  # chief, parameter servers and workers restart with it


def plan(seed: int, kinds: Sequence[FaultKind], tasks: Sequence[Task], on_death: OnDeaths) -> Iterator[Fault]:
    """Yield faults without end. Equal arguments give equal faults; the first `enough_for_all` contain every kind.

    Faults that restart the whole cluster alternate with faults that don't: the launcher rightly gives up on a cluster
    that dies again and again within seconds.

    Args:
      kinds: the kinds to draw from, at least one. tasks: those of the run. on_death: the mode's table of restarts.
    """
    source = random.Random(seed)
    decks = [_shuffled(source, deck) for deck in source.sample(_decks(kinds, on_death), 2) if deck]
    while True:
        for deck in decks:
            yield make_fault(next(deck), source, tasks, on_death)


def enough_for_all(kinds: Sequence[FaultKind], on_death: OnDeaths) -> int:
    """Return how many faults a plan needs to contain every one of these kinds."""
    return 2 * max(map(len, _decks(kinds, on_death)))


def make_fault(kind: FaultKind, source: random.Random, tasks: Sequence[Task], on_death: OnDeaths) -> Fault:
    """Return a fault of this kind, its victims and pause drawn from `source`."""
    victims = kind.choose(source, tasks)
    return Fault(kind, victims, source.uniform(SHORTEST_PAUSE_S, LONGEST_PAUSE_S), kind.whole_cluster(on_death))


def sort_out(kinds: Mapping[FaultKind, str | None], run: Run) -> tuple[list[FaultKind], dict[str, str]]:
    """Return the kinds that `run` can be hit with on this system, and name → reason of the others.

    Args:
      kinds: kind → reason why it is impossible, where that is known already.
    """
    reasons = {kind: reason or kind.why_not(run) for kind, reason in kinds.items()}
    allowed = [kind for kind, reason in reasons.items() if reason is None]
    return allowed, {kind.name: reason for kind, reason in reasons.items() if reason is not None}


def allowed_here(
    kinds: Mapping[FaultKind, str | None], run: Run, notify: Callable[[str], None]
) -> tuple[list[FaultKind], dict[str, str]]:
    """Return what `sort_out` does, and say why kinds are skipped. Raises ChaosFailed where none is left."""
    allowed, skipped = sort_out(kinds, run)
    for name, reason in skipped.items():
        notify(f"skipped: {name}: {reason}")
    if not allowed:
        raise ChaosFailed(f"none of the kinds of fault can be injected here: {'; '.join(skipped.values())}")
    return allowed, skipped


def _decks(kinds: Sequence[FaultKind], on_death: OnDeaths) -> list[list[FaultKind]]:
    """Return the kinds that restart the whole cluster, and the others."""
    return [[kind for kind in kinds if kind.whole_cluster(on_death) is whole] for whole in (True, False)]


def _shuffled(source: random.Random, kinds: Sequence[FaultKind]) -> Iterator[FaultKind]:
    """Yield all kinds in a random order, then all in another, without end."""
    while True:
        yield from source.sample(kinds, len(kinds))
