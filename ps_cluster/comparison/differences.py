"""Find differences between compared runs: in their settings, and in anything else that may matter."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from ps_cluster.cluster.pinning import keeps_to_cores
from ps_cluster.comparison.groups import flat_settings
from ps_cluster.comparison.run_records import Record
from ps_cluster.config.uses import uses

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
