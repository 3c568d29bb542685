"""Which settings belong to which modes, in one table. No TensorFlow."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Literal, get_args

Mode = Literal["async", "bounded", "sync-ps", "elastic", "sync", "single"]
MODES: tuple[Mode, ...] = get_args(Mode)
PARAMETER_SERVER_MODES = MODES[:4]

_SEVERAL_PROCESSES = MODES[:5]
# A setting, or a whole section → the modes that use it. What is not here, all modes use.
USED_BY: dict[str, tuple[str, ...]] = {
    "cluster.workers": _SEVERAL_PROCESSES,
    "cluster.parameter_servers": PARAMETER_SERVER_MODES,
    "cluster.intra_op_threads": _SEVERAL_PROCESSES,
    "training.max_staleness": ("bounded",),
    "training.max_clock_lag": ("bounded",),
    "training.backup_workers": ("sync-ps",),
    "training.simulate_workers": ("async",),
    "training.staleness_method": ("async",),
    "delay_compensation": ("async",),
    "elastic": ("elastic",),
    "lookahead": ("async", "bounded", "sync-ps", "sync", "single"),
}
# Those that are switched on by a value → the value that is none. A complete configuration has them in every mode.
SWITCHED_OFF: dict[str, Any] = {
    "training.max_staleness": None,
    "training.max_clock_lag": None,
    "training.backup_workers": 0,
    "training.simulate_workers": None,
    "training.staleness_method": "none",
    "lookahead.every_updates": 0,
}


def uses(mode: str, key: str) -> bool:
    """Say if `mode` reads the setting `key`, e.g. "training.max_staleness"."""
    return mode in _users(key)


def check_switches(mode: str, settings: Mapping[str, Any]) -> None:
    """Raise ValueError where something is switched on that `mode` does not use. `settings`: complete, dotted key → value."""
    check_used((mode,), {key: settings[key] for key, off in SWITCHED_OFF.items() if settings[key] != off})


def switched_off(mode: str) -> dict[str, Any]:
    """Return dotted key → the value that is none, of all switches that `mode` does not use."""
    return {key: off for key, off in SWITCHED_OFF.items() if not uses(mode, key)}


def check_used(modes: tuple[str, ...], given: Mapping[str, Any]) -> None:
    """Raise ValueError for the first of the settings `given` (dotted key → value) that none of `modes` uses."""
    for key, value in given.items():
        if not any(uses(mode, key) for mode in modes):
            nobody = f"mode {modes[0]} does not use it" if len(modes) == 1 else "no mode here uses it"
            raise ValueError(f"{key}: got {value!r:.80}: {nobody} (it is of {_and(_users(key))}): leave it out")


def without_unused(mode: str, layer: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return a layer of settings, in sections or with dotted keys, without those that `mode` does not use."""
    kept = {}
    for key, value in layer.items():
        if isinstance(value, Mapping):
            kept[key] = without_unused(mode, value, f"{prefix}{key}.")
        elif uses(mode, prefix + key):
            kept[key] = value
    return kept


def flat(layer: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return a layer as dotted key → value."""
    return dict(_leaves(layer, prefix))


def _leaves(layer: Mapping[str, Any], prefix: str) -> Iterator[tuple[str, Any]]:
    for key, value in layer.items():
        if isinstance(value, Mapping):
            yield from _leaves(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def _users(key: str) -> tuple[str, ...]:
    return USED_BY.get(key) or USED_BY.get(key.partition(".")[0]) or MODES


def _and(names: tuple[str, ...]) -> str:
    return f"{', '.join(names[:-1])} and {names[-1]}" if len(names) > 1 else names[0]
