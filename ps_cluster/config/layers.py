"""Merge the layers of settings into a configuration: defaults, the network's recipe, a file, the command's options.

The defaults are in configs/default.yaml; those of settings of one mode, network, … are in its file.
Later layers win. In order: default.yaml, safe defaults where the network is not the package's own
(`recipes.of_users_network`), the recipe of the network (`Network.recipe`), that of the data set
(`DataSet.recipe`, then `DataSet.recipes` for the network), the network's entry under `modes` for the mode, workers and
batch (recipes.py; not where the data set's recipe has a rate), the files that the user's file extends, that file,
environment variables, `--set key=value`, the command's options (user_layers.py).
"""

from __future__ import annotations

import re
import reprlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from ps_cluster.catalogue.datasets import DataSet
from ps_cluster.catalogue.networks import NETWORKS, Network
from ps_cluster.config import recipes
from ps_cluster.config.isolations import KEY, strictest
from ps_cluster.config.json_schema import known_keys
from ps_cluster.config.schema import PAGE, RunConfig, fitted
from ps_cluster.config.sections import CHOSEN, adapted_to_choices, chosen_kinds, of_choices, users
from ps_cluster.config.trees import Layer, flat, merged, nested
from ps_cluster.config.user_layers import (
    NamedLayer,
    beside_a_run,
    names_of,
    of_environment,
    of_file,
    of_options,
)
from ps_cluster.config.uses import check_used, listed
from ps_cluster.errors import UserError, did_you_mean
from ps_cluster.files.malformed import Malformed
from ps_cluster.files.validation import first_error
from ps_cluster.files.yaml_files import parse_yaml, read_yaml
from ps_cluster.installation import CONFIG_FOLDER

DEFAULTS = "configs/default.yaml"
_NO_CHOICE = {"data": DataSet(), "model": Network()}  # for a name that is unknown, which the validation refuses


@dataclass(frozen=True)
class Resolved:
    """A configuration, and the layers that it was merged from, the lowest first."""

    config: RunConfig
    layers: tuple[NamedLayer, ...]
    tree: Layer  # what the layers gave together

    def origin(self, key: str) -> str:
        """Return where the value of a dotted key comes from: a layer, or the default of what is chosen in its section."""
        having = [layer for layer in self.layers if layer.has(key)]
        value = flat(self.tree).get(key)
        found = [layer.origin for layer in having if flat(layer.settings).get(key) == value] if key == KEY else []
        found = found or [layer.origin for layer in having]
        if found and key in flat(self.tree):  # a layer may have had it for a choice that was not made in the end
            return found[-1]
        section = key.partition(".")[0]
        if section not in CHOSEN:
            return "default"
        chosen, kinds = CHOSEN[section]
        return f"default of {kinds.noun} {getattr(getattr(self.config, section), chosen)}"


def build_config(
    file: Path | None = None,
    overrides: Layer | None = None,
    size: NamedLayer | None = None,
    environment: Mapping[str, str] | None = None,
) -> RunConfig:
    """Return the configuration merged from all layers; arguments and errors are those of `resolve`."""
    return resolve(file, overrides, size, environment).config


def resolve(
    file: Path | None = None,
    overrides: Layer | None = None,
    size: NamedLayer | None = None,
    environment: Mapping[str, str] | None = None,
) -> Resolved:
    """Merge all layers. They are the user's own, so code that they name may be run.

    A later layer wins over those before it. But of `cluster.isolation` the strictest wins, whichever layer has it.

    Args:
      file: a YAML file that overrides the defaults, or None.
      overrides: dotted key → value, e.g. `{"cluster.workers": 2}`; they win over file and environment.
      size: that of a cluster on several machines; wins over all, whether the mode uses it or not.
      environment: environment variables; those named PS_CLUSTER__SECTION__KEY win over the file.
    Raises:
      UserError: a file that can't be read, an unknown key, a value of the wrong type or range, or a setting that the
        mode does not use. A file may repeat defaults of unused settings, as the config.yaml of a run does.
    """
    given = [*(of_file(file) if file else ()), *of_environment(environment or {}), of_options(overrides or {})]
    layers = [*given, size] if size else given
    user: Layer = {}
    for layer in layers:
        user = merged(user, layer.settings)
    user = merged(user, nested(strictest(flat(layer.settings) for layer in given)))
    base, defaults = _defaults(user)
    tree, layers = merged(base, user), [*defaults, *layers]
    try:
        config = fitted(tree)
    except ValidationError as error:
        raise UserError(_told(error, tree, _origin(error, layers, given))) from error
    _check_used(config.mode.name, given, flat(base))
    return Resolved(config, tuple(layers), tree)


def load_config(file: Path) -> RunConfig:
    """Return the complete configuration in a run's config.yaml. Raises UserError for a wrong one."""
    tree = read_yaml(file)
    try:
        return fitted(tree)
    except ValidationError as error:
        raise UserError(first_error(error, str(file), PAGE, known_keys())) from error


def loaded(file: Path, changes: Layer, environment: Mapping[str, str]) -> Resolved:
    """Return a run's config.yaml with other values for some dotted keys, and the strictest isolation of all.

    Args:
      environment: environment variables. Those of other settings do not count: the run goes on as it was.
    Raises:
      UserError: a wrong value, or a setting that the run's mode does not use.
    """
    before = load_config(file)
    layers = (NamedLayer(str(file), read_yaml(file)), *beside_a_run(environment), of_options(changes))
    try:
        check_used((before.mode.name,), changes)
    except ValueError as error:
        raise UserError(str(error)) from error
    config = before.with_values({**changes, **strictest(flat(layer.settings) for layer in layers)})
    return Resolved(config, layers, config.model_dump(mode="json"))


def rates_found(config: RunConfig) -> recipes.Found | None:
    """Return the recipe's rates for a configuration's network, mode, workers and batch, used or not, else None."""
    place = (*config.mode_kind.place(config.cluster.workers), config.training.batch_size_per_worker)
    _, found = _recipe(NETWORKS[config.model.name])
    return next((rates for rates in found if rates.place == place), None)


def has_rates(config: RunConfig) -> bool:
    """Return whether the network's recipe has rates for any single mode."""
    _, found = _recipe(NETWORKS[config.model.name])
    return bool(found)


def parse_assignment(text: str) -> tuple[str, Any]:
    """Return `('optimizer.learning_rate', 0.1)` for `'optimizer.learning_rate=0.1'`; the value is read as YAML."""
    key, separator, value = text.partition("=")
    if not separator or not re.fullmatch(r"\w+(\.\w+){1,9}", key.strip()):
        hint = did_you_mean(key.strip(), known_keys())
        raise UserError(f"--set {text!r:.300}: {hint}write it as section.key=value, e.g. optimizer.learning_rate=0.1")
    try:
        return key.strip(), parse_yaml(value)
    except Malformed as error:
        raise UserError(f"--set {text!r:.300}: the value {error}") from error


def default_layer(user: Layer) -> Layer:
    """Return what is below the user's layers: the defaults, and the recipes of the chosen network and data set.

    Settings that belong to a mode, network, … that is not chosen are left out.
    """
    base, _ = _defaults(user)
    return base


def _defaults(user: Layer) -> tuple[Layer, list[NamedLayer]]:
    """Return what is below the user's layers, merged, and the layers that it was merged from, the lowest first."""
    base = adapted_to_choices(read_yaml(CONFIG_FOLDER / "default.yaml"), user)
    layers = [NamedLayer(DEFAULTS, base)]
    data_set = _of_chosen("data", base, user)
    network = _of_chosen("model", merged(base, data_set.recipe), user)
    layer, found = _recipe(network)
    safe: Layer = {}
    if network.name and network.name not in NETWORKS.own:
        chosen = merged(merged(layer, data_set.recipe), user).get("optimizer")
        safe = recipes.of_users_network(chosen.get("rule") if isinstance(chosen, Mapping) else None)
    of_both = data_set.recipes.get(network.name, {})
    both = f"recipe of data set {data_set.name} for network {network.name}"
    for origin, recipe in (
        ("safe default for a network of your own", safe),
        (f"recipe of network {network.name}", layer),
        (f"recipe of data set {data_set.name}", data_set.recipe),
        (both, merged({"model": {"name": network.name}}, of_both) if of_both else {}),
    ):
        used = of_choices(recipe, merged(merged(base, recipe), user))
        base = merged(adapted_to_choices(base, recipe), used)
        layers.append(NamedLayer(origin, used))
    base = adapted_to_choices(base, user)
    rates = recipes.found_for(found, merged(base, user), merged(merged(data_set.recipe, of_both), user))
    layers.append(NamedLayer(f"rates of network {network.name} for this mode", dict(rates)))
    return merged(base, rates), layers


def _of_chosen(section: str, base: Layer, user: Layer) -> Any:
    """Return the object chosen in a section; one without a recipe if the user's choice is none."""
    return chosen_kinds(merged(base, user)).get(section, _NO_CHOICE[section])


def _recipe(network: Network) -> tuple[Layer, tuple[recipes.Found, ...]]:
    """Return the recipe of a network, and its rates for single modes."""
    recipe = network.recipe
    layer = {key: value for key, value in recipe.items() if key != recipes.MODES}
    return layer, recipes.read_modes(recipe, f"the recipe of network {network.name}")


def _told(error: ValidationError, tree: Layer, origin: str) -> str:
    """Return one line about the first problem, with the known key that is nearest to an unknown one."""
    return _of_another(error, tree, origin) or first_error(error, origin, PAGE, known_keys())


def _of_another(error: ValidationError, tree: Layer, origin: str) -> str | None:
    """Return the message for a setting of a mode, network, … that is not chosen; None for any other error."""
    first = error.errors(include_url=False)[0]
    if first["type"] != "extra_forbidden" or len(first["loc"]) != 2:
        return None
    section, name = map(str, first["loc"])
    if section not in CHOSEN:
        return None
    key, kinds = CHOSEN[section]
    having, chosen = users(section, name), tree[section][key]
    if not having:
        known = listed(list(kinds[chosen].Settings.model_fields))
        hint = did_you_mean(f"{section}.{name}", known_keys())
        return f"{origin}: unknown key '{section}.{name}'; {hint}{kinds.noun} {chosen} has {known}"
    value = reprlib.repr(first["input"])
    return (
        f"{origin}: {section}.{name}: got {value}: {kinds.noun} {chosen} does not use it (it is of "
        f"{listed(having)}): leave it out"
    )


def _check_used(mode: str, given: Sequence[NamedLayer], defaults: Mapping[str, Any]) -> None:
    """Raise UserError for a setting of the user's that the mode does not use."""
    for layer in given:
        values = flat(layer.settings)
        if layer.may_repeat:
            values = {key: value for key, value in values.items() if value != defaults.get(key)}
        try:
            check_used((mode,), values)
        except ValueError as error:
            raise UserError(f"{layer.origin}: {error}") from error


def _origin(error: ValidationError, layers: Sequence[NamedLayer], given: Sequence[NamedLayer]) -> str:
    """Return where the first wrong value came from; values that don't fit together may come from several layers."""
    field = ".".join(str(part) for part in error.errors()[0]["loc"])
    found = [layer.origin for layer in layers if field and layer.has(field)]
    return found[-1] if found else names_of(given)
