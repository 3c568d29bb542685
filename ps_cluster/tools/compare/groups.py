"""Group runs that differ only in their seed, and choose which groups may be compared."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from ps_cluster.config import RunConfig
from ps_cluster.config.sections import flat, uses
from ps_cluster.errors import UserError, did_you_mean
from ps_cluster.files.values import one_line
from ps_cluster.launch.local_cluster import keeps_to_cores
from ps_cluster.tools.compare.metrics import Metric, Sample
from ps_cluster.tools.compare.records import Record
from ps_cluster.training.modes import SYNC

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


# Find differences between compared runs: in their settings, and in anything else that may matter.

FIELDS = ("dataset", "dataset_kind", "model", "precision")
_ISOLATION = "cluster.isolation"  # depends on the machine, does not change training

# An arm's own settings: its method and the rate it is trained with. Tables, labels and pages show them, so nobody can
# overlook them.
_OF_AN_ARM = {
    "cluster.workers", "cluster.parameter_servers", "cluster.straggler", "training.seed",
    "training.batch_size_per_worker", "optimizer.learning_rate", "optimizer.momentum", "optimizer.beta_2",
}  # fmt: skip
_SECTIONS_OF_AN_ARM = ("mode.", "staleness.")
# Compared elsewhere (as fields and examples, or among the surroundings), or a place on this machine.
_KNOWN_OTHERWISE = {
    "data.dataset", "data.data_dir", "model.name", "model.precision", "training.epochs", "training.steps", _ISOLATION
}  # fmt: skip
_ABSENT = "not noted"


class Difference(NamedTuple):
    """Something that is not the same in all runs. `values`: each distinct value once, in the order of the runs."""

    name: str
    values: tuple[str, ...]

    def __str__(self) -> str:
        return f"{self.name}: {', '.join(self.values)}"


def in_settings(records: Sequence[Record], own: Collection[str] = ()) -> list[Difference]:
    """Return what must be equal in all runs and is not: data set, network, precision, settings that are no arm's own.

    Args:
      own: dotted keys that arms of this comparison set on purpose, besides those that always are an arm's own.
    """
    fields = [{name: getattr(record, name) for name in FIELDS} for record in records]
    settings = [
        {
            key: value
            for key, value in flat_settings(record.config).items()
            if not _may_differ(key, own) and uses(record.config.mode.name, key)
        }
        for record in records
    ]
    return [*_differing(fields), *_differing(settings, absent=None)]


def in_surroundings(records: Sequence[Record]) -> list[Difference]:
    """Return the differences in machine, TensorFlow version, commit of this code, isolation and pinning."""
    pinned = [
        {"whether workers keep to cores of their own": keeps_to_cores(record.config)}
        for record in records
        if record.config.training_workers > 1
    ]
    isolated = [{_ISOLATION: record.config.cluster.isolation} for record in records]
    return [*_differing([record.machine for record in records]), *_differing(isolated), *_differing(pinned)]


def _may_differ(key: str, own: Collection[str]) -> bool:
    return key in _OF_AN_ARM or key in _KNOWN_OTHERWISE or key.startswith(_SECTIONS_OF_AN_ARM) or key in own


def _differing(rows: Sequence[Mapping[str, Any]], absent: str | None = _ABSENT) -> Iterator[Difference]:
    """Yield what is not the same in all rows. `absent` stands for a missing value; None leaves missing values out."""
    for name in dict.fromkeys(key for row in rows for key in row):
        found = (_text(row[name]) if name in row else absent for row in rows)
        values = tuple(dict.fromkeys(value for value in found if value is not None))
        if len(values) > 1:
            yield Difference(name, values)


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)


# Check whether runs may be compared at all.

EXAMPLES_TOLERANCE = 0.02


def check(records: Sequence[Record], groups: Sequence[Group], force: bool, own: Collection[str] = ()) -> list[str]:
    """Return what is unequal among the runs, one sentence each, to be shown above everything made of them.

    Args:
      own: dotted keys of settings that the arms of this comparison set on purpose.
    Raises:
      UserError: something is unequal and `force` is not set, the metrics differ, there are no runs, or one run was given
        twice.
    """
    if not records:
        raise UserError("nothing to compare: give run directories of finished runs")
    roots = [record.root for record in records]
    twice = next((root for root in roots if roots.count(root) > 1), None)
    if twice is not None:
        raise UserError(f"run directory '{twice}' is given twice: it would count as two runs")
    metrics = list(dict.fromkeys(record.metric.name for record in records))
    if len(metrics) > 1:
        raise UserError(
            f"these runs can't be compared: some have a {metrics[0]}, others a {metrics[1]}: give runs of one data set"
        )
    unequal = [
        *(f"they differ in {difference}" for difference in in_settings(records, own)),
        *_unequal_seeds(groups),
        *_unequal_examples(records),
    ]
    if unequal and not force:
        raise UserError(_refusal(unequal))
    surroundings = (
        f"The runs differ in {difference}. A difference between arms may come from that."
        for difference in in_surroundings(records)
    )
    return [*(f"Not a fair comparison (--force): {text}." for text in unequal), *surroundings]


def _refusal(unequal: Sequence[str]) -> str:
    """Return one line for a terminal. It names one difference: enough to see that the runs don't match."""
    more = f" (and {len(unequal) - 1} more)" if len(unequal) > 1 else ""
    return (
        f"these runs can't be compared: {one_line(unequal[0], 140)}{more}; look into their config.yaml, or compare them with "
        "--force: the report then has every difference on top"
    )


def _unequal_seeds(groups: Sequence[Group]) -> Iterator[str]:
    by_seeds: dict[tuple[int, ...], list[str]] = {}
    for group in groups:
        by_seeds.setdefault(group.seeds, []).append(_place(group))
    if len(by_seeds) > 1:
        described = (f"{_list(seeds)} ({_some(places)})" for seeds, places in by_seeds.items())
        yield f"they differ in seeds: {' against '.join(described)}"
    repeated = next((group for group in groups if len(set(group.seeds)) < len(group.seeds)), None)
    if repeated:
        yield f"a seed comes more than once in one group: {_list(repeated.seeds)} ({_place(repeated)})"


def _unequal_examples(records: Sequence[Record]) -> Iterator[str]:
    least, most = (choose(records, key=lambda record: record.examples) for choose in (min, max))
    if most.examples > least.examples * (1 + EXAMPLES_TOLERANCE):
        yield (
            f"they differ in examples trained on by more than {EXAMPLES_TOLERANCE:.0%}: {least.examples:,} "
            f"('{least.root.name}') to {most.examples:,} ('{most.root.name}')"
        )


def _place(group: Group) -> str:
    return f"{group.arm}, batch {group.batch_per_worker} per worker, straggler {group.straggler}"


def _some(places: Sequence[str]) -> str:
    return places[0] if len(places) == 1 else f"{places[0]} and {len(places) - 1} more"


def _list(seeds: Sequence[int]) -> str:
    return ",".join(map(str, seeds))
