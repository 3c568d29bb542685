"""Check which settings a mode uses. A setting that it does not use is refused if the user gives it, never ignored."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ps_cluster.catalogue.modes import MODES
from ps_cluster.catalogue.task_types import PS, WORKER

_OF_TASKS = {
    "cluster.workers": WORKER, "cluster.min_workers": WORKER, "cluster.max_workers": WORKER,
    "cluster.intra_op_threads": WORKER, "cluster.parameter_servers": PS,
}  # fmt: skip
# Settings that switch on something that not all modes use → their value for "off".
SWITCHES = {"staleness.method": "none", "lookahead.every_updates": 0}


def uses(mode: str, key: str) -> bool:
    """Return whether a mode reads the setting of a dotted key, e.g. "mode.max_staleness"."""
    kind = MODES[mode]
    section, _, name = key.partition(".")
    if section == "mode":
        return name in kind.Settings.model_fields
    if key in _OF_TASKS:
        return _OF_TASKS[key] in kind.tasks
    return section not in kind.ignores and key not in kind.ignores


def check_used(modes: Sequence[str], given: Mapping[str, Any]) -> None:
    """Raise ValueError for the first of the settings `given` (dotted key → value) that none of `modes` uses."""
    for key, value in given.items():
        users = tuple(name for name in MODES.own if uses(name, key))
        if users and not any(uses(mode, key) for mode in modes):  # a key that no mode uses is unknown: told elsewhere
            nobody = f"mode {modes[0]} does not use it" if len(modes) == 1 else "no mode here uses it"
            raise ValueError(f"{key}: got {value!r:.80}: {nobody} (it is of {listed(users)}): leave it out")


def check_switches(mode: str, settings: Mapping[str, Any]) -> None:
    """Raise ValueError for a switch that is on and not used by `mode`. `settings`: all, as dotted key → value."""
    check_used((mode,), {key: settings[key] for key, off in SWITCHES.items() if settings[key] != off})


def switched_off(mode: str) -> dict[str, Any]:
    """Return dotted key → off value, for all switches that `mode` does not use."""
    return {key: off for key, off in SWITCHES.items() if not uses(mode, key)}


def without_unused(mode: str, layer: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return a layer of settings, in sections or with dotted keys, without those that `mode` does not use."""
    kept = {}
    for key, value in layer.items():
        if isinstance(value, Mapping):
            kept[key] = without_unused(mode, value, f"{prefix}{key}.")
        elif uses(mode, prefix + key) or not any(uses(name, prefix + key) for name in MODES.own):
            kept[key] = value
    return kept


def listed(names: Sequence[str]) -> str:
    """Return names with commas and an \"and\" between them."""
    return f"{', '.join(names[:-1])} and {names[-1]}" if len(names) > 1 else names[0]
