"""Name the arms of a comparison: the mode, and each setting in which arms of one mode differ."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ps_cluster.config import RunConfig
from ps_cluster.config.sections import flat
from ps_cluster.errors import UserError, did_you_mean
from ps_cluster.files.values import one_line_text
from ps_cluster.server.staleness.none import NoneMethod
from ps_cluster.training.modes.sync import Sync

_SHORT = {
    "optimizer.learning_rate": "lr", "optimizer.momentum": "momentum", "optimizer.beta_2": "beta_2",
    "optimizer.global_clip_norm": "clip", "cluster.workers": "workers",
    "cluster.parameter_servers": "ps", "mode.beta": "beta", "staleness.strength": "lambda",
}  # fmt: skip
# Settings that don't make a different method: the seed, settings that the group or its label already shows, and settings
# of where and how often something is read or written.
_NOT_IN_LABELS = {
    "training.seed", "training.batch_size_per_worker", "training.epochs", "training.steps",
    "staleness.method", "cluster.straggler", "cluster.isolation", "cluster.evaluator", "data.dataset", "data.data_dir",
    "model.name", "model.precision", "checkpoints.every_seconds", "checkpoints.snapshot_every_seconds",
    "checkpoints.keep",
}  # fmt: skip


def labels(configs: Sequence[RunConfig]) -> list[str]:
    """Return the label of each run's arm: its mode, its staleness method, and the settings that distinguish it.

    Only runs with the same mode, staleness method and batch per worker are compared, and the settings in which they
    differ become part of the label. So a learning rate that was scaled with the batch does not make a new arm.
    """
    settings = [flat_settings(config) for config in configs]
    places = [(_label(config), config.training.batch_size_per_worker) for config in configs]
    found = {place: _differing([one for one, where in zip(settings, places) if where == place]) for place in places}
    named = []
    for mine, place in zip(settings, places):
        own = {
            key: "none" if value is None else one_line_text(value) for key, value in mine.items() if key in found[place]
        }
        named.append(" ".join((place[0], *(f"{_SHORT.get(key, key)}={text}" for key, text in own.items()))))
    return named


def _label(config: RunConfig) -> str:
    label, method = config.chosen_mode.label(config), config.staleness.method
    return label if method == NoneMethod.name else f"{label} {method}"


def _differing(settings: Sequence[Mapping[str, object]]) -> set[str]:
    """Return the keys, except `_NOT_IN_LABELS`, that do not have the same value in all settings."""
    first = settings[0]
    keys = {key for one in settings for key in one} - _NOT_IN_LABELS
    return {key for key in keys if any(one.get(key) != first.get(key) for one in settings)}


def flat_settings(config: RunConfig) -> dict[str, object]:
    """Return dotted key → value of the whole configuration."""
    return flat(config.model_dump(mode="json"))


def baseline_of(names: Sequence[str], chosen: str | None) -> str:
    """Return the arm that other arms are compared with: the chosen one, else "sync" if there is one, else the first.

    Raises:
      UserError: no arm has the chosen name.
    """
    if chosen is not None and chosen not in names:
        there = ", ".join(dict.fromkeys(names))
        raise UserError(f"--baseline: no arm is called '{chosen}': {did_you_mean(chosen, names)}there are {there}")
    return chosen or (Sync.name if Sync.name in names else names[0])
