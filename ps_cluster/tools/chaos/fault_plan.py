"""Plan the faults of a run and their order: a pure function of the seed and the available kinds."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from ps_cluster.config.tasks import OnDeaths, Task
from ps_cluster.notices import Notify
from ps_cluster.tools.chaos.kind import ChaosFailed, FaultKind, Run

SHORTEST_PAUSE_S, LONGEST_PAUSE_S = 1.0, 3.0


@dataclass(frozen=True)
class Fault:
    """A fault to inject after a pause."""

    kind: FaultKind
    victims: tuple[Task, ...]
    pause_s: float
    whole_cluster: bool  # whether chief, parameter servers and workers restart with it


def plan(seed: int, kinds: Sequence[FaultKind], tasks: Sequence[Task], on_death: OnDeaths) -> Iterator[Fault]:
    """Yield faults without end. Equal arguments give equal faults.

    Faults that restart the whole cluster alternate with faults that don't: the launcher rightly gives up on a cluster that
    dies again and again within seconds. In both groups, each kind occurs once before any kind occurs again.

    Args:
      kinds: the kinds to draw from, at least one.
      tasks: the tasks of the run.
      on_death: the mode's table of restarts.
    """
    source = random.Random(seed)
    with_and_without = [[kind for kind in kinds if kind.whole_cluster(on_death) is whole] for whole in (True, False)]
    decks = [_shuffled(source, deck) for deck in source.sample(with_and_without, 2) if deck]
    while True:
        for deck in decks:
            yield make_fault(next(deck), source, tasks, on_death)


def make_fault(kind: FaultKind, source: random.Random, tasks: Sequence[Task], on_death: OnDeaths) -> Fault:
    """Return a fault of this kind. Its victims and pause are drawn from `source`."""
    victims = kind.choose(source, tasks)
    return Fault(kind, victims, source.uniform(SHORTEST_PAUSE_S, LONGEST_PAUSE_S), kind.whole_cluster(on_death))


def allowed_here(
    kinds: Mapping[FaultKind, str | None], run: Run, notify: Notify
) -> tuple[list[FaultKind], dict[str, str]]:
    """Return the kinds that can hit `run` on this system, and for all other kinds: name → the reason why they can't.

    Args:
      kinds: each kind, with the reason why it is impossible if that is known already, or else None.
    Raises:
      ChaosFailed: no kind is left.
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
    """Yield all kinds in random order, again and again."""
    while True:
        yield from source.sample(kinds, len(kinds))
