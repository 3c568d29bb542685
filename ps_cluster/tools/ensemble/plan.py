"""The plan of an ensemble: its members, each a run with a network, a seed and a part of the data of its own."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic_core import to_jsonable_python

from ps_cluster.config import LONGEST_SECONDS, RunConfig, build_config, registry
from ps_cluster.config.cluster_settings import joined
from ps_cluster.config.layers import settings_of_file, trusted
from ps_cluster.config.sections import flat, nested
from ps_cluster.data.packed import PackedDataset
from ps_cluster.errors import UserError
from ps_cluster.launch import topology
from ps_cluster.launch.local_run import complete_config

MEMBERS, MOST_MEMBERS = 4, 32

# Name → `training.sample` of member i of n.
SPLITS: dict[str, Callable[[int, int], str]] = {
    "all": lambda index, count: "all",
    "shards": lambda index, count: f"shard:{index}/{count}",
    "bootstrap": lambda index, count: f"bootstrap:{index}",
}


@dataclass(frozen=True)
class Ensemble:
    """An ensemble: each of `models` with so many seeds. `settings`: dotted key → value, of all members."""

    models: tuple[str, ...]
    seeds: int
    split: str
    settings: dict[str, Any]

    @property
    def count(self) -> int:
        return len(self.models) * self.seeds

    def content(self) -> dict[str, Any]:
        """Return what the file of the plan has."""
        return {"models": list(self.models), "seeds": self.seeds, "split": self.split, "settings": self.settings}


@dataclass(frozen=True)
class Member:
    """A member. `name`: of its run directory."""

    index: int
    name: str
    config: RunConfig


def read_ensemble(
    file: Path | None, overrides: dict[str, Any], *, models: tuple[str, ...] | None, seeds: int | None, split: str
) -> Ensemble:
    """Return the ensemble of a command line.

    Args:
      file: settings of all members, as of a run. overrides: dotted key → value, over it.
      models: networks; None: the one of the settings. seeds: of each network; None: 1 of several, else `MEMBERS`.
    Raises:
      UserError: the file can't be read, or these don't fit together.
    """
    from_file = flat(settings_of_file(file)) if file else {}
    given = joined([from_file, flat(trusted(nested(overrides), Path.cwd()))])
    settings = to_jsonable_python({"mode.name": "single", **given})  # a path as text
    if models and "model.name" in settings:
        raise UserError(f"--models: model.name is also set to '{settings['model.name']}': leave one of them out")
    for key in ("training.seed", "training.sample"):
        if key in settings:
            raise UserError(
                f"{key}: got {settings[key]!r:.80}: each member has its own (--members, --split): leave it out"
            )
    named = models or (build_config(None, dict(settings)).model.name,)
    seeds = seeds or (1 if len(named) > 1 else MEMBERS)
    ensemble = Ensemble(named, seeds, split, settings)
    if len(set(named)) < len(named):
        raise UserError(f"--models: got {', '.join(named)}: one comes twice; --members 2 gives each network two seeds")
    if not 2 <= ensemble.count <= MOST_MEMBERS:
        raise UserError(f"--members: {ensemble.count} in all: an ensemble has from 2 to {MOST_MEMBERS}")
    return ensemble


def members_of(ensemble: Ensemble, dataset: PackedDataset | None = None) -> list[Member]:
    """Return the members; with a data set their configurations are complete. Raises UserError for what doesn't fit."""
    models = [model for model in ensemble.models for _ in range(ensemble.seeds)]
    return [_member(ensemble, index, model, dataset) for index, model in enumerate(models)]


def preview(ensemble: Ensemble, at_once: int) -> Iterator[str]:
    """Yield a line for each member, then what all take. Raises UserError as `members_of`."""
    members = members_of(ensemble)
    for member in members:
        yield f"{member.name}: {member.config.training.sample} of the training examples"
    expected = topology.expected((member.config for member in members), min(at_once, len(members)))
    yield f"members: {len(members)}, {at_once} at once; memory expected: {expected}; nothing was started"


def _member(ensemble: Ensemble, index: int, model: str, dataset: PackedDataset | None) -> Member:
    sample = SPLITS[ensemble.split](index, ensemble.count)
    own = {
        "model.name": model,
        "training.seed": index,  # also of two networks: equal seeds would give both the same batches
        "training.sample": sample,
        "evaluation.draw_results": False,
        "cluster.evaluator": True,
    }
    config = build_config(None, {**ensemble.settings, **own})
    config.check_fits_one_machine()
    changes: dict[str, Any] = {}
    if config.cluster.pin_workers == "auto":  # members at once would share the cores that they are pinned to
        changes["cluster.pin_workers"] = False
    if config.checkpoints.every_seconds == "auto":  # only the last one is used
        changes["checkpoints.every_seconds"] = LONGEST_SECONDS
    config = config.with_values(changes)
    if dataset is not None:
        config = complete_config(config, dataset.holding_out(config.evaluation.validation_examples))
    short = re.sub(r"[^\w.]+", "_", Path(registry.short_name(model)).stem)
    return Member(index, f"{index}-{short}-seed{config.training.seed}", config)
