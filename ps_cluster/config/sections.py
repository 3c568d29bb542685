"""Convert and merge settings: trees of sections, and dotted keys."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from ps_cluster.config.datasets import DATASETS
from ps_cluster.config.modes import MODES
from ps_cluster.config.networks import NETWORKS
from ps_cluster.config.optimizer_rules import RULES
from ps_cluster.config.registry import Named, Registry
from ps_cluster.config.schedules import SCHEDULES
from ps_cluster.config.setting_types import Section
from ps_cluster.config.staleness_methods import METHODS
from ps_cluster.config.tasks import PS, WORKER
from ps_cluster.errors import UserError
from ps_cluster.files.values import join_names

NestedSettings = dict[str, Any]


def flat(settings: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Convert nested sections to a flat dictionary, dotted key → value."""
    found: dict[str, Any] = {}
    for key, value in settings.items():
        found |= flat(value, f"{prefix}{key}.") if isinstance(value, Mapping) else {f"{prefix}{key}": value}
    return found


def nested(dotted: Mapping[str, Any]) -> NestedSettings:
    """Convert a flat dictionary, dotted key → value, to nested sections. Raises UserError if a section has a value."""
    tree: NestedSettings = {}
    for key, value in dotted.items():
        *sections, name = key.split(".")
        branch = tree
        for section in sections:
            branch = branch.setdefault(section, {})
            if not isinstance(branch, dict):
                raise UserError(f"{key}: '{section}' is {branch!r:.300}, but it has to be a section with settings")
        branch[name] = value
    return tree


def value_in(settings: Mapping[str, Any], section: str, name: str) -> Any:
    """Return the value of a setting, or None if `settings` lacks it. The settings need not be valid."""
    values = settings.get(section)
    return values.get(name) if isinstance(values, dict) else None


def merged(*given: Mapping[str, Any]) -> NestedSettings:
    """Merge several nested dictionaries of settings. Later values win. Lists are replaced, not merged."""
    result: NestedSettings = {}
    for settings in given:
        for key, value in settings.items():
            both_sections = isinstance(value, dict) and isinstance(result.get(key), dict)
            result[key] = merged(result[key], value) if both_sections else value
    return result


# The sections of a configuration whose settings depend on what is chosen in them.


Kind = TypeVar("Kind", bound=Named, covariant=True)


@dataclass(frozen=True)
class Choice(Generic[Kind]):
    """A setting that names an object of the registry `kinds`, e.g. a mode.

    The object decides which other settings the section has.
    """

    section: str
    key: str
    kinds: Registry[Kind]

    @property
    def setting(self) -> str:
        """The dotted key of the setting."""
        return f"{self.section}.{self.key}"

    def name_in(self, settings: Mapping[str, Any]) -> Any:
        """Return the name that `settings` choose, or None if they lack this key. The settings need not be valid."""
        return value_in(settings, self.section, self.key)

    def chosen_in(self, settings: Mapping[str, Any]) -> Kind | None:
        """Return the object (a mode, a network, …) that `settings` name; None if there is none of this name.

        Raises:
          UserError: the object can't be loaded.
        """
        name = self.name_in(settings)
        if name not in self.kinds:
            return None
        return self.kinds[name]


DATA_SET = Choice("data", "dataset", DATASETS)
MODE = Choice("mode", "name", MODES)
STALENESS_METHOD = Choice("staleness", "method", METHODS)
NETWORK = Choice("model", "name", NETWORKS)
RULE = Choice("optimizer", "rule", RULES)
SCHEDULE = Choice("schedule", "kind", SCHEDULES)
CHOICES: tuple[Choice[Named], ...] = (DATA_SET, MODE, STALENESS_METHOD, NETWORK, RULE, SCHEDULE)
CHOICE_BY_SECTION = {choice.section: choice for choice in CHOICES}
CHOICE_BY_SETTING = {choice.setting: choice for choice in CHOICES}  # by dotted key


def chosen_kinds(tree: NestedSettings) -> dict[str, Named]:
    """Return the object (a mode, a network, …) that is chosen in each section, by section name.

    Sections that name no object, or an unknown one, are left out.

    Raises:
      UserError: the chosen object can't be loaded.
    """
    kinds = {section: choice.chosen_in(tree) for section, choice in CHOICE_BY_SECTION.items()}
    return {section: kind for section, kind in kinds.items() if kind is not None}


def adapted_to_choices(under: NestedSettings, over: Mapping[str, Any]) -> NestedSettings:
    """Return the settings `under`, adapted to the mode, network, … that the settings `over` choose.

    Settings that belong only to the replaced choices are left out. A setting is kept if the old and the new choice
    inherit it from the same class. For example, all rules share `optimizer.learning_rate`, and all data sets of images
    share `data.augmentation`.
    """
    result = dict(under)
    for section, choice in CHOICE_BY_SECTION.items():
        before, now = choice.name_in(under), choice.name_in(over)
        if now is not None and now != before and isinstance(under.get(section), dict):
            shared = _shared_settings(choice.kinds, before, now)
            kept = {name: value for name, value in under[section].items() if name in shared}
            result[section] = kept | {choice.key: now}
    return result


def of_choices(recipe: Mapping[str, Any], chosen: NestedSettings) -> NestedSettings:
    """Return the settings of a recipe that exist with the user's choices, such as the mode and the network.

    For example, the recipe of a network for images sets the augmentation, but a data set of numbers has no such setting.
    """
    result = dict(recipe)
    for section, kind in chosen_kinds(chosen).items():
        if isinstance(recipe.get(section), dict):
            known = kind.Settings.model_fields
            given = recipe[section].items()
            result[section] = {name: value for name, value in given if name in known or not choices_with(section, name)}
    return result


def _shared_settings(kinds: Registry[Named], *names: Any) -> set[str]:
    """Return the names of the settings that all choices in `names` inherit from their nearest common class.

    An unknown choice counts as one that has only the settings that all choices share.
    """
    known = [kinds[name].Settings for name in names if name in kinds]
    classes = known if len(known) == len(names) else [*known, kinds.settings]
    bases = (base for base in classes[0].__mro__ if issubclass(base, Section))
    nearest = next(base for base in bases if all(issubclass(one, base) for one in classes))
    return set(nearest.model_fields)


def own_settings(section: str, kind: Named) -> list[str]:
    """Return the names of the settings of `kind`, without those that all choices of the section share."""
    shared = CHOICE_BY_SECTION[section].kinds.settings.model_fields
    return [name for name in kind.Settings.model_fields if name not in shared]


def choices_with(section: str, name: str) -> list[str]:
    """Return the names of the choices in a section that have a setting of this name."""
    return [kind.name for kind in CHOICE_BY_SECTION[section].kinds.with_settings if name in kind.Settings.model_fields]


# Check which settings a mode uses. If the user gives an unused setting, it is refused, never ignored.

_TASK_OF_SETTING = {
    "cluster.workers": WORKER, "cluster.min_workers": WORKER, "cluster.max_workers": WORKER,
    "cluster.intra_op_threads": WORKER, "cluster.parameter_servers": PS,
}  # fmt: skip
# Settings that switch on a feature that not all modes have → the value that switches it off.
SWITCHES = {
    STALENESS_METHOD.setting: "none", "lookahead.every_updates": 0, "optimizer.clip_norm": None,
    "optimizer.global_clip_norm": None,
}  # fmt: skip


def uses(mode: str, key: str) -> bool:
    """Return whether a mode uses the setting with this dotted key, e.g. "mode.max_staleness"."""
    kind = MODES[mode]
    section, _, name = key.partition(".")
    if section == "mode":
        return name in kind.Settings.model_fields
    if key in _TASK_OF_SETTING:
        return _TASK_OF_SETTING[key] in kind.cluster.types
    return section not in kind.unused_settings and key not in kind.unused_settings


def check_used(modes: Sequence[str], given: Mapping[str, Any]) -> None:
    """Raise ValueError for the first setting in `given` (dotted key → value) that none of `modes` uses."""
    for key, value in given.items():
        users = tuple(name for name in MODES.own if uses(name, key))
        if users and not any(uses(mode, key) for mode in modes):  # unknown keys are reported elsewhere
            names = tuple(dict.fromkeys(modes))
            reason = f"mode {names[0]} does not use it"
            if len(names) > 1:
                reason = f"none of the modes {join_names(names)} uses it"
            raise ValueError(f"{key}: got {value!r:.80}: {reason} (it belongs to {join_names(users)}): leave it out")


def check_switches(mode: str, settings: Mapping[str, Any]) -> None:
    """Raise ValueError if a setting in `SWITCHES` switches on a feature that `mode` does not have.

    Args:
      settings: all settings, as dotted key → value.
    """
    check_used((mode,), {key: settings[key] for key, off in SWITCHES.items() if settings[key] != off})


def switched_off(mode: str) -> dict[str, Any]:
    """Return the settings in `SWITCHES` that `mode` does not use, as dotted key → the value that switches it off."""
    return {key: off for key, off in SWITCHES.items() if not uses(mode, key)}


def without_unused(mode: str, settings: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return settings, in sections or with dotted keys, without those that `mode` does not use."""
    kept = {}
    for key, value in settings.items():
        if isinstance(value, Mapping):
            kept[key] = without_unused(mode, value, f"{prefix}{key}.")
        elif uses(mode, prefix + key) or not any(uses(name, prefix + key) for name in MODES.own):
            kept[key] = value
    return kept


# Join several sources of settings. The strictest `cluster.isolation` wins, so that a request for protection is always met.

ISOLATION_KEY = "cluster.isolation"
_STRICTER = ("off", "auto", "require")  # in ascending order; an interface is stricter than all of them


def joined(given: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """Join settings with dotted keys. Later ones win, except that the strictest `cluster.isolation` wins."""
    given = list(given)
    return {key: value for settings in given for key, value in settings.items()} | strictest(given)


def strictest(given: Iterable[Mapping[str, Any]]) -> dict[str, str]:
    """Return the strictest `cluster.isolation` of several sources, as {dotted key: value}; {} if none sets it."""
    asked = [value for settings in given if isinstance(value := settings.get(ISOLATION_KEY), str)]
    if not asked:
        return {}
    return {ISOLATION_KEY: max(asked, key=lambda one: _STRICTER.index(one) if one in _STRICTER else len(_STRICTER))}
