"""What each run was: its settings against the defaults, the command that makes it again, and the machine."""

from __future__ import annotations

import json
import shlex
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from ps_cluster.comparison.groups import Group, flat_settings
from ps_cluster.comparison.records import Record
from ps_cluster.config import build_config
from ps_cluster.config.recipes import BELONG_TOGETHER
from ps_cluster.installation import PROGRAM

_PLACES = ("data.data_dir",)  # of this machine: another has the data elsewhere


def common_settings(groups: Sequence[Group]) -> dict[str, str]:
    """What all runs have set otherwise than the defaults, as `section.key` → value in YAML's flow style."""
    changed = [_changed(record) for group in groups for record in group.records]
    return {key: value for key, value in changed[0].items() if all(other.get(key) == value for other in changed)}


def group_settings(group: Group, common: Mapping[str, str]) -> str:
    """What this group has set besides, as options of the command line; the seed is named beside it."""
    changed = _changed(group.first)
    return _options({key: value for key, value in changed.items() if key not in common and key != "training.seed"})


def command(record: Record) -> str:
    """A command that trains the same run again."""
    return f"{PROGRAM} run {_options(_changed(record))}".rstrip()


def machines(groups: Sequence[Group]) -> list[dict[str, str]]:
    """Each machine that runs were trained on, with how many of them, as they have written it down; older ones have not."""
    noted = Counter(json.dumps(record.machine) for group in groups for record in group.records if record.machine)
    return [
        {"runs": str(runs)} | {name: _flow(value) for name, value in json.loads(machine).items()}
        for machine, runs in noted.items()
    ]


def _changed(record: Record) -> dict[str, str]:
    # Settings of another mode, rule, … than the default's have no default here, and are named.
    defaults = flat_settings(build_config(None, {"model.name": record.config.model.name}))
    settings = flat_settings(record.config)
    named = {key for key, value in settings.items() if key not in defaults or value != defaults[key]} | {"model.name"}
    together = {f"optimizer.{name}" for name in BELONG_TOGETHER}
    if named & together:  # one of them given keeps the others from being taken from the recipe's table
        named |= together
    return {key: _flow(value) for key, value in settings.items() if key in named and key not in _PLACES}


def _flow(value: Any) -> str:
    """JSON is YAML; plain words stay without quotes."""
    return value if isinstance(value, str) else json.dumps(value)


def _options(settings: Mapping[str, str]) -> str:
    return " ".join(f"--set {shlex.quote(f'{key}={value}')}" for key, value in settings.items())
