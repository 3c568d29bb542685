"""Plan the members of an ensemble: each a run with its own network, seed and part of the data."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic_core import to_jsonable_python

from ps_cluster.config import LONGEST_SECONDS, build_config, user_code
from ps_cluster.config.sections import flat, joined
from ps_cluster.config.setting_types import AUTO
from ps_cluster.config.user_settings import of_options, settings_of_file
from ps_cluster.data.packed import PackedDataset
from ps_cluster.errors import UserError
from ps_cluster.files.values import with_noun
from ps_cluster.launch import memory
from ps_cluster.launch.config_completion import complete_config
from ps_cluster.tools.fleet import Job, config_at_once
from ps_cluster.tools.sweep.sweep_plan import mode_of

FOLDER = "members"  # the folder of the members' run directories
MEMBERS, MOST_MEMBERS = 4, 32

# Name of a split → `training.sample` of member number `index` of `count` members.
SPLITS = {"all": "all", "shards": "shard:{index}/{count}", "bootstrap": "bootstrap:{index}"}


@dataclass(frozen=True)
class Ensemble:
    """An ensemble of networks whose predictions are averaged.

    Attributes:
      models: the networks.
      seeds: the number of members of each network.
      split: one of `SPLITS`.
      settings: the settings of all members, by dotted key.
    """

    models: tuple[str, ...]
    seeds: int
    split: str
    settings: dict[str, Any]

    @property
    def count(self) -> int:
        return len(self.models) * self.seeds


def read_ensemble(
    file: Path | None, overrides: dict[str, Any], *, models: tuple[str, ...] | None, seeds: int | None, split: str
) -> Ensemble:
    """Return the ensemble that a command line describes.

    Args:
      file: the settings of all members, as `run --config` takes them.
      overrides: dotted key → value; they replace settings of the file.
      models: the networks; None for the one network that the settings name.
      seeds: the number of seeds of each network. None means `MEMBERS` for one network, and 1 for several networks.
      split: one of `SPLITS`.
    Raises:
      UserError: the file can't be read, or the arguments don't fit together.
    """
    from_file = flat(settings_of_file(file)) if file else {}
    given = joined([from_file, flat(of_options(overrides).settings)])
    settings = to_jsonable_python({"mode.name": "single", **given})  # paths become texts
    if models and "model.name" in settings:
        raise UserError(f"--models: model.name is also set to '{settings['model.name']}': leave one of them out")
    for key in ("training.seed", "training.sample"):
        if key in settings:
            raise UserError(
                f"{key}: got {settings[key]!r:.80}: --members and --split choose a value for each member: leave "
                "this setting out"
            )
    named = models or (build_config(None, dict(settings)).model.name,)
    seeds = seeds or (1 if len(named) > 1 else MEMBERS)
    ensemble = Ensemble(named, seeds, split, settings)
    if len(set(named)) < len(named):
        raise UserError(
            f"--models: got {', '.join(named)}: a network occurs twice; --members 2 gives each network two seeds"
        )
    if not 2 <= ensemble.count <= MOST_MEMBERS:
        raise UserError(
            f"--members: there would be {with_noun(ensemble.count, 'member')}: an ensemble needs from 2 to {MOST_MEMBERS}"
        )
    return ensemble


def members_of(ensemble: Ensemble, output: Path, dataset: PackedDataset | None = None) -> list[Job]:
    """Return the runs that train the members. Their run directories are in the folder `output`.

    Their configurations are complete only if `dataset` is given. Raises UserError if a member's settings are invalid.
    """
    members = []
    for index in range(ensemble.count):
        model = ensemble.models[index // ensemble.seeds]
        own = {
            "model.name": model,
            "training.seed": index,  # differs between networks too: equal seeds would give them the same batches
            "training.sample": SPLITS[ensemble.split].format(index=index, count=ensemble.count),
        }
        config = config_at_once({**ensemble.settings, **own})
        if config.checkpoints.every_seconds == AUTO:  # only the last checkpoint is used
            config = config.with_values({"checkpoints.every_seconds": LONGEST_SECONDS})
        if dataset is not None:
            config = complete_config(config, dataset.holding_out(config.evaluation.validation_examples))
        short = re.sub(r"[^\w.]+", "_", Path(user_code.short_name(model)).stem)
        name = f"{index}-{short}-seed{index}"
        members.append(Job(index, f"member {name}", Path(os.path.realpath(output / FOLDER / name)), config))
    return members


def preview(ensemble: Ensemble, at_once: int) -> Iterator[str]:
    """Yield a line for each member, then lines about the mode and the expected memory.

    Raises UserError if a member's settings are invalid.
    """
    members = members_of(ensemble, Path())
    for member in members:
        yield f"{member.root.name} (training examples: {member.config.training.sample})"
    yield mode_of(ensemble.settings, (), "member")
    expected = memory.expected((member.config for member in members), min(at_once, len(members)))
    yield f"members: {len(members)}, {at_once} at once; memory expected: {expected}; nothing was started"
