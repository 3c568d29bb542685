"""Group runs that differ only in their seed, and choose which groups are compared with each other."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from ps_cluster.tools.compare.estimates import SeededValues
from ps_cluster.tools.compare.labels import baseline_of, labels
from ps_cluster.tools.compare.metric import Metric
from ps_cluster.tools.compare.records import Record

BATCH_TOLERANCE = 0.02  # 3 workers can't split 128 images evenly: 3 x 43 = 129 counts as the same batch
NO_STRAGGLER = "none"


@dataclass(frozen=True)
class Group:
    """Runs that differ only in the seed, ordered by seed."""

    arm: str
    batch_per_worker: int
    straggler: str
    records: tuple[Record, ...]

    @property
    def first(self) -> Record:
        return self.records[0]

    @property
    def metric(self) -> Metric:
        return self.first.metric

    @property
    def unit(self) -> str:
        return self.first.summary.unit

    @property
    def batch(self) -> int:
        """The number of examples per update."""
        return self.first.config.examples_per_update

    @property
    def seeds(self) -> tuple[int, ...]:
        return tuple(record.seed for record in self.records)

    @property
    def key(self) -> tuple[str, int, str]:
        return self.arm, self.batch_per_worker, self.straggler

    @property
    def diverged(self) -> int:
        """The number of runs that diverged."""
        return sum(record.diverged for record in self.records)

    def values(self, of: Callable[[Record], float | None]) -> list[float]:
        """Return `of(run)` for each run for which this is not None."""
        return [value for record in self.records if (value := of(record)) is not None]

    def sample(self, of: Callable[[Record], float | None]) -> SeededValues | None:
        """Return `of(run)` for all runs, with their seeds; None if `of` returns None for at least one run."""
        values = self.values(of)
        return SeededValues(self.seeds, tuple(values)) if len(values) == len(self.records) else None


@dataclass(frozen=True)
class View:
    """Groups of runs that are compared with each other.

    They have the same straggler. They also have the same batch per update, or the same batch per worker.
    """

    straggler: str
    batch: str  # in words, e.g. "same batch per update: 128 images"
    groups: tuple[Group, ...]
    baseline: Group | None  # one of `groups`; None if there is no fair baseline


def make_groups(records: Sequence[Record]) -> list[Group]:
    """Group the runs by (arm, batch per worker, straggler), in the order in which each group first appears."""
    by_key: dict[tuple[str, int, str], list[Record]] = {}
    for arm, record in zip(labels([record.config for record in records]), records):
        by_key.setdefault((arm, record.batch_per_worker, record.straggler), []).append(record)
    return [Group(*key, tuple(sorted(runs, key=lambda run: run.seed))) for key, runs in by_key.items()]


def arms(groups: Sequence[Group]) -> list[str]:
    return list(dict.fromkeys(group.arm for group in groups))


def stragglers(groups: Sequence[Group]) -> list[str]:
    """Return the straggler settings of the groups, each once, in the order of the groups, but "none" first."""
    return sorted(dict.fromkeys(group.straggler for group in groups), key=lambda text: text != NO_STRAGGLER)


def make_views(groups: Sequence[Group], baseline: str | None = None) -> list[View]:
    """Return the views, i.e. the sets of groups that are compared with each other.

    Groups with different stragglers are in different views. For each straggler, one view has all groups with the same
    batch per update as the baseline, and another view has all groups with the same batch per worker. Groups that share
    neither batch with the baseline are in a last view, which has no baseline. The baseline is the arm called `baseline`.
    If this is None, it is the arm "sync" if there is one, else the first arm.

    Raises:
      UserError: no arm is called `baseline`.
    """
    chosen = baseline_of(arms(groups), baseline)
    return [view for straggler in stragglers(groups) for view in _views_of(groups, straggler, chosen)]


def _views_of(groups: Sequence[Group], straggler: str, baseline_arm: str) -> Iterator[View]:
    here = [group for group in groups if group.straggler == straggler]
    seen: set[tuple[str, int, str]] = set()
    for baseline in (group for group in here if group.arm == baseline_arm):
        unit, worker = baseline.unit, baseline.batch_per_worker
        others = [group for group in here if group is baseline or group.arm != baseline.arm]
        near = BATCH_TOLERANCE * baseline.batch
        per_update = tuple(group for group in others if abs(group.batch - baseline.batch) <= near)
        per_worker = tuple(group for group in others if group.batch_per_worker == worker)
        named = {
            f"same batch per update: {baseline.batch} {unit}": per_update,
            f"same batch per worker: {worker} {unit}": per_worker,
        }
        if per_update == per_worker:
            named = {f"same batch per update and per worker: {baseline.batch} and {worker} {unit}": per_update}
        for batch, chosen in named.items():
            if len(chosen) > 1:
                seen.update(group.key for group in chosen)
                yield View(straggler, batch, chosen, baseline)
    left = tuple(group for group in here if group.key not in seen)
    if left:
        yield View(straggler, "not compared with the baseline", left, None)
