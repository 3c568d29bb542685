"""Group runs that differ only in their seed, and choose which groups may be compared."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ps_cluster.comparison.metrics import Metric
from ps_cluster.comparison.run_records import Record
from ps_cluster.comparison.statistics import Sample
from ps_cluster.config import RunConfig
from ps_cluster.config.trees import flat
from ps_cluster.errors import UserError, did_you_mean
from ps_cluster.training.modes.sync import SYNC

BATCH_TOLERANCE = 0.02  # 3 workers can't split 128 images evenly: 3 x 43 = 129 counts as the same batch
NO_STRAGGLER = "none"
_SHORT = {
    "optimizer.learning_rate": "lr", "optimizer.momentum": "momentum", "cluster.workers": "workers",
    "cluster.parameter_servers": "ps", "mode.beta": "beta", "staleness.strength": "lambda",
}  # fmt: skip
# Settings that don't make a different method: the seed, what the group and its label show already, and where and how
# often something is read or written.
_NOT_IN_LABELS = {
    "training.seed", "training.batch_size_per_worker", "training.epochs", "training.steps",
    "staleness.method", "cluster.straggler", "cluster.isolation", "cluster.evaluator", "data.dataset", "data.data_dir",
    "model.name", "model.precision", "checkpoints.every_seconds", "checkpoints.snapshot_every_seconds",
    "checkpoints.keep",
}  # fmt: skip


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
        """The word for several examples."""
        return self.first.unit

    @property
    def bar(self) -> float | None:
        """The metric from which a network counts as having learned; None if it is unknown what a guess gives."""
        guess = self.first.guess
        return None if guess is None else self.metric.bar(guess)

    @property
    def batch(self) -> int:
        """Examples per update."""
        return self.first.batch

    @property
    def seeds(self) -> tuple[int, ...]:
        return tuple(record.seed for record in self.records)

    @property
    def key(self) -> tuple[str, int, str]:
        return self.arm, self.batch_per_worker, self.straggler

    @property
    def diverged(self) -> int:
        """Number of runs that diverged."""
        return sum(record.diverged for record in self.records)

    def values(self, of: Callable[[Record], float | None]) -> list[float]:
        """Return the values of the runs that have one."""
        return [value for record in self.records if (value := of(record)) is not None]

    def sample(self, of: Callable[[Record], float | None]) -> Sample:
        """Return one value per run. Raises ValueError where a run has none, such as the metric of one that diverged."""
        values = self.values(of)
        if len(values) < len(self.records):
            raise ValueError(f"{self.arm}: only {len(values)} of {len(self.records)} runs have the value")
        return Sample(self.seeds, tuple(values))


@dataclass(frozen=True)
class View:
    """Groups that are compared with each other: the same straggler, and equal batches per update or per worker."""

    straggler: str
    batch: str  # in words, e.g. "same batch per update: 128 images"
    groups: tuple[Group, ...]
    baseline: Group | None  # one of `groups`; None where there is no fair baseline

    @property
    def others(self) -> tuple[Group, ...]:
        return tuple(group for group in self.groups if group is not self.baseline)


def make_groups(records: Sequence[Record]) -> list[Group]:
    """Group the runs by (arm, batch per worker, straggler), in the order in which each group first appears.

    Arms that differ in a setting their label doesn't show get it appended, e.g. "async lr=0.1".
    """
    by_key: dict[tuple[str, int, str], list[Record]] = {}
    for record in _told_apart(records):
        by_key.setdefault((record.arm, record.batch_per_worker, record.straggler), []).append(record)
    return [Group(*key, tuple(sorted(runs, key=lambda run: run.seed))) for key, runs in by_key.items()]


def arms(groups: Sequence[Group]) -> list[str]:
    return list(dict.fromkeys(group.arm for group in groups))


def stragglers(groups: Sequence[Group]) -> list[str]:
    """Return the stragglers in the order of the groups, "none" first."""
    return sorted(dict.fromkeys(group.straggler for group in groups), key=lambda text: text != NO_STRAGGLER)


def make_views(groups: Sequence[Group], baseline: str | None = None) -> list[View]:
    """Return views for each straggler: groups with the baseline's batch per update, and with its batch per worker.

    The baseline is the arm called `baseline`; without a name it is the arm "sync" if there is one, else the first.
    Groups that share neither batch with it come last, in a view without a baseline.

    Raises:
      UserError: no arm is called `baseline`.
    """
    names = arms(groups)
    if baseline is not None and baseline not in names:
        hint = did_you_mean(baseline, names)
        raise UserError(f"baseline: no arm is called '{baseline}': {hint}there are {', '.join(names)}")
    baseline_arm = baseline or (SYNC.name if SYNC.name in names else names[0])
    return [view for straggler in stragglers(groups) for view in _views_of(groups, straggler, baseline_arm)]


def flat_settings(config: RunConfig) -> dict[str, Any]:
    """Return dotted key → value of the whole configuration."""
    return flat(config.model_dump(mode="json"))


def _told_apart(records: Sequence[Record]) -> list[Record]:
    labelled = []
    for record in records:
        mine = flat_settings(record.config)
        alike = [flat_settings(other.config) for other in records if _same_place(record, other)]
        differing = [
            key
            for key in mine
            if not _is_said(key, record.config) and any(other.get(key) != mine[key] for other in alike)
        ]
        words = [f"{_SHORT.get(key, key)}={mine[key]}" for key in differing]
        labelled.append(replace(record, arm=" ".join((record.arm, *words))))
    return labelled


def _is_said(key: str, config: RunConfig) -> bool:
    """Return whether the label shows a setting already, or the setting does not make a different method."""
    section, _, name = key.partition(".")
    return key in _NOT_IN_LABELS or section == "mode" and name not in config.mode_kind.unlabelled


def _same_place(record: Record, other: Record) -> bool:
    """Return whether two runs have the same arm and batch. A learning rate that comes with a batch makes no new arm."""
    return (record.arm, record.batch_per_worker) == (other.arm, other.batch_per_worker)


def _views_of(groups: Sequence[Group], straggler: str, baseline_arm: str) -> Iterator[View]:
    here = [group for group in groups if group.straggler == straggler]
    seen: set[tuple[str, int, str]] = set()
    for baseline in (group for group in here if group.arm == baseline_arm):
        per_update = [group for group in here if group is baseline or _comparable(group, baseline, _same_update)]
        per_worker = [group for group in here if group is baseline or _comparable(group, baseline, _same_worker)]
        for batch, chosen in _named(baseline, per_update, per_worker):
            seen.update(group.key for group in chosen)
            yield View(straggler, batch, tuple(chosen), baseline)
    left = tuple(group for group in here if group.key not in seen)
    if left:
        yield View(straggler, "other batches", left, None)


def _comparable(group: Group, baseline: Group, same: Callable[[Group, Group], bool]) -> bool:
    return group.arm != baseline.arm and same(group, baseline)


def _same_update(group: Group, other: Group) -> bool:
    return abs(group.batch - other.batch) <= BATCH_TOLERANCE * other.batch


def _same_worker(group: Group, other: Group) -> bool:
    return group.batch_per_worker == other.batch_per_worker


def _named(baseline: Group, per_update: list[Group], per_worker: list[Group]) -> Iterator[tuple[str, list[Group]]]:
    unit, worker = baseline.unit, baseline.batch_per_worker
    if per_update == per_worker:
        if len(per_update) > 1:
            yield f"same batch: {worker} {unit} per worker, {baseline.batch} per update", per_update
        return
    if len(per_update) > 1:
        yield f"same batch per update: {baseline.batch} {unit}", per_update
    if len(per_worker) > 1:
        yield f"same batch per worker: {worker} {unit}", per_worker
