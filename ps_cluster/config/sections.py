"""The sections of a configuration whose settings depend on what is chosen in them."""

from __future__ import annotations

from typing import Any, NamedTuple, Protocol

from ps_cluster.catalogue.datasets import DATASETS
from ps_cluster.catalogue.kinds import Kinds
from ps_cluster.catalogue.modes import MODES
from ps_cluster.catalogue.networks import NETWORKS
from ps_cluster.catalogue.rules import RULES
from ps_cluster.catalogue.schedules import SCHEDULES
from ps_cluster.catalogue.settings import Section
from ps_cluster.catalogue.staleness import METHODS
from ps_cluster.config.trees import Layer


class Kind(Protocol):
    """An object that a section may name: `Settings` is the class of the section where it is chosen."""

    name: str

    @property
    def Settings(self) -> type[Section]: ...


class Choice(NamedTuple):
    """The key of a section that chooses its further settings, and the objects that the key may name."""

    key: str
    kinds: Kinds[Kind]


CHOSEN: dict[str, Choice] = {
    "data": Choice("dataset", DATASETS),
    "mode": Choice("name", MODES),
    "staleness": Choice("method", METHODS),
    "model": Choice("name", NETWORKS),
    "optimizer": Choice("rule", RULES),
    "schedule": Choice("kind", SCHEDULES),
}


def chosen_kinds(tree: Layer) -> dict[str, Kind]:
    """Return section → the object chosen in it, for the sections that name an existing one.

    Raises UserError where that can't be loaded.
    """
    names = {section: _name(tree, section, choice.key) for section, choice in CHOSEN.items()}
    return {section: CHOSEN[section].kinds[name] for section, name in names.items() if name in CHOSEN[section].kinds}


def adapted_to_choices(under: Layer, over: Layer) -> Layer:
    """Return `under` with the choices of `over`, and without settings that only the replaced choices have.

    Settings that the new choice has from the same class stay: `optimizer.learning_rate` between all rules,
    `data.augmentation` between data sets of images.
    """
    result = dict(under)
    for section, (key, kinds) in CHOSEN.items():
        before, now = _name(under, section, key), _name(over, section, key)
        if now is not None and now != before and isinstance(under.get(section), dict):
            shared = _shared_settings(kinds, before, now)
            kept = {name: value for name, value in under[section].items() if name in shared}
            result[section] = kept | {key: now}
    return result


def of_choices(recipe: Layer, chosen: Layer) -> Layer:
    """Return a recipe without settings of choices that are not made.

    A network of images says how to vary images, for example, and a data set of numbers has no such setting.
    """
    result = dict(recipe)
    for section, kind in chosen_kinds(chosen).items():
        if isinstance(recipe.get(section), dict):
            known = kind.Settings.model_fields
            given = recipe[section].items()
            result[section] = {name: value for name, value in given if name in known or not users(section, name)}
    return result


def _shared_settings(kinds: Kinds[Any], *names: Any) -> set[str]:
    """Return the settings that two choices have from one class; of an unknown choice those that all have."""
    known = [kinds[name].Settings for name in names if name in kinds]
    classes = known if len(known) == len(names) else [*known, kinds.settings]
    nearest = next(base for base in classes[0].__mro__ if all(issubclass(one, base) for one in classes))
    return set(nearest.model_fields)


def own_settings(section: str, kind: Kind) -> list[str]:
    """Return the settings of a section that only this choice has, and not all choices."""
    shared = CHOSEN[section].kinds.settings.model_fields
    return [name for name in kind.Settings.model_fields if name not in shared]


def users(section: str, name: str) -> list[str]:
    """Return the names of the choices in a section that have a setting of this name."""
    return [kind.name for kind in CHOSEN[section].kinds.with_settings if name in kind.Settings.model_fields]


def _name(tree: Layer, section: str, key: str) -> Any:
    values = tree.get(section)
    return values.get(key) if isinstance(values, dict) else None
