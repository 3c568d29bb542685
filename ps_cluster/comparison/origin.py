"""Say where each run comes from: its settings against the defaults, the command that repeats it, and the machine."""

from __future__ import annotations

import json
import shlex
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from ps_cluster.comparison.groups import Group, flat_settings
from ps_cluster.comparison.run_records import Record
from ps_cluster.config import build_config
from ps_cluster.config.recipes import BELONG_TOGETHER
from ps_cluster.installation import PROGRAM

_PLACES = ("data.data_dir",)  # depend on the machine


def common_settings(groups: Sequence[Group]) -> dict[str, str]:
    """Return the non-default settings that all runs share, as `section.key` → value in YAML's flow style."""
    changed = [_changed(record) for group in groups for record in group.records]
    return {key: value for key, value in changed[0].items() if all(other.get(key) == value for other in changed)}


def group_settings(group: Group, common: Mapping[str, str]) -> str:
    """Return the further settings of this group as command-line options. The seed is shown beside them."""
    changed = _changed(group.first)
    return _options({key: value for key, value in changed.items() if key not in common and key != "training.seed"})


def command(record: Record) -> str:
    """Return a command that trains the same run again."""
    return f"{PROGRAM} run {_options(_changed(record))}".rstrip()


def machines(groups: Sequence[Group]) -> list[dict[str, str]]:
    """Return each machine that runs were trained on, with its number of runs. Older runs did not record it."""
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
    if named & together:  # giving one of them stops the recipe's table from filling in the others
        named |= together
    return {key: _flow(value) for key, value in settings.items() if key in named and key not in _PLACES}


def _flow(value: Any) -> str:
    """Return a value in YAML's flow style. JSON is YAML; plain words stay without quotes."""
    return value if isinstance(value, str) else json.dumps(value)


def _options(settings: Mapping[str, str]) -> str:
    return " ".join(f"--set {shlex.quote(f'{key}={value}')}" for key, value in settings.items())
