"""Merge the layers of settings into a configuration: defaults, the network's recipe, a file, the command's options.

The defaults are in configs/default.yaml; those of settings of one mode, network, … are in its file.
Later layers win. In order: default.yaml, the recipe of the network (`Network.recipe`), that of the data set
(`DataSet.recipe`, then `DataSet.recipes` for the network), the network's entry under `modes` for the mode, workers and
batch (recipes.py; not where the data set's recipe has a rate), the user's file, `--set key=value`, the command's
options.
"""

from __future__ import annotations

import re
import reprlib
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from ps_cluster.catalogue.datasets import DataSet
from ps_cluster.catalogue.networks import NETWORKS, Network
from ps_cluster.config import recipes
from ps_cluster.config.schema import RunConfig, fitted
from ps_cluster.config.sections import CHOSEN, adapted_to_choices, chosen_kinds, of_choices, users
from ps_cluster.config.trees import Layer, flat, merged, nested
from ps_cluster.config.uses import check_used, listed
from ps_cluster.errors import UserError
from ps_cluster.files.malformed import Malformed
from ps_cluster.files.validation import first_error
from ps_cluster.files.yaml_files import parse_yaml, read_yaml
from ps_cluster.installation import CONFIG_FOLDER

_ALL_SETTINGS = "configs/default.yaml"
_NO_CHOICE = {"data": DataSet(), "model": Network()}  # for a name that is unknown, which the validation refuses


def build_config(file: Path | None = None, overrides: Layer | None = None, tf_config: Layer | None = None) -> RunConfig:
    """Return the configuration merged from all layers. They are the user's own, so code that they name may be run.

    Args:
      file: a YAML file that overrides the defaults, or None.
      overrides: dotted key → value, e.g. `{"cluster.workers": 2}`; they win over the file.
      tf_config: dotted key → value, the cluster's size by TF_CONFIG; wins over all, whether the mode uses it or not.
    Raises:
      UserError: a file that can't be read, an unknown key, a value of the wrong type or range, or a setting that the
        mode does not use. A file may repeat defaults of unused settings, as the config.yaml of a run does.
    """
    from_file = trusted(read_yaml(file), file.absolute().parent) if file else {}
    from_options = trusted(nested(overrides or {}), Path.cwd())
    user = merged(merged(from_file, from_options), nested(tf_config or {}))
    base = default_layer(user)
    whole = merged(base, user)
    given_here, defaults = flat(from_options), flat(base)
    changed = {key: value for key, value in flat(from_file).items() if value != defaults.get(key)}
    try:
        config = fitted(whole)
    except ValidationError as error:
        origin = _origin(error, file, given_here, tf_config or {})
        raise UserError(_of_another(error, whole, origin) or first_error(error, origin, _ALL_SETTINGS)) from error
    _check_used(config.mode.name, given_here, changed, file)
    return config


def load_config(file: Path) -> RunConfig:
    """Return the complete configuration in a run's config.yaml. Raises UserError for a wrong one."""
    tree = read_yaml(file)
    try:
        return fitted(tree)
    except ValidationError as error:
        raise UserError(first_error(error, str(file), _ALL_SETTINGS)) from error


def rates_found(config: RunConfig) -> recipes.Found | None:
    """Return the recipe's rates for a configuration's network, mode, workers and batch, used or not, else None."""
    place = (config.mode.name, config.training_workers, config.training.batch_size_per_worker)
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
        raise UserError(f"--set {text!r:.300}: write it as section.key=value, e.g. optimizer.learning_rate=0.1")
    try:
        return key.strip(), parse_yaml(value)
    except Malformed as error:
        raise UserError(f"--set {text!r:.300}: the value {error}") from error


def trusted(layer: Layer, folder: Path) -> Layer:
    """Return a user's layer with absolute paths for the code and data that it names; that code may be run."""
    for section, (key, kinds) in CHOSEN.items():
        values = layer.get(section)
        name = values.get(key) if isinstance(values, dict) else None
        if isinstance(name, str):
            layer = merged(layer, {section: {key: kinds.named_by_user(name, folder)}})
    return layer


def default_layer(user: Layer) -> Layer:
    """Return the layers below the user's: the defaults, and the recipes of the chosen network and data set.

    Settings that belong to a mode, network, … that is not chosen are left out.
    """
    base = adapted_to_choices(read_yaml(CONFIG_FOLDER / "default.yaml"), user)
    data_set = _of_chosen("data", base, user)
    network = _of_chosen("model", merged(base, data_set.recipe), user)
    of_data = merged(data_set.recipe, data_set.recipes.get(network.name, {}))
    layer, found = _recipe(network)
    for recipe in (layer, of_data):
        base = merged(adapted_to_choices(base, recipe), of_choices(recipe, merged(merged(base, recipe), user)))
    base = adapted_to_choices(base, user)
    return merged(base, recipes.found_for(found, merged(base, user), merged(of_data, user)))


def _of_chosen(section: str, base: Layer, user: Layer) -> Any:
    """Return the object chosen in a section; one without a recipe if the user's choice is none."""
    return chosen_kinds(merged(base, user)).get(section, _NO_CHOICE[section])


def _recipe(network: Network) -> tuple[Layer, tuple[recipes.Found, ...]]:
    """Return the recipe of a network, and its rates for single modes."""
    recipe = network.recipe
    layer = {key: value for key, value in recipe.items() if key != recipes.MODES}
    return layer, recipes.read_modes(recipe, f"the recipe of network {network.name}")


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
        return f"{origin}: unknown key '{section}.{name}'; {kinds.noun} {chosen} has {known}"
    value = reprlib.repr(first["input"])
    return (
        f"{origin}: {section}.{name}: got {value}: {kinds.noun} {chosen} does not use it (it is of "
        f"{listed(having)}): leave it out"
    )


def _check_used(mode: str, options: dict[str, Any], changed: dict[str, Any], file: Path | None) -> None:
    """Raise UserError for a setting of the user's that the mode does not use."""
    for origin, given in (("options", options), (str(file), changed)):
        try:
            check_used((mode,), given)
        except ValueError as error:
            raise UserError(f"{origin}: {error}") from error


def _origin(error: ValidationError, file: Path | None, options: Layer, tf_config: Layer) -> str:
    """Return where the first wrong value came from; for values that don't fit together it may be file and options."""
    field = ".".join(str(part) for part in error.errors()[0]["loc"])
    if field in tf_config:
        return "TF_CONFIG"
    if file is None or field and any(f"{field}.".startswith(f"{key}.") for key in options):
        return "options"
    return str(file) if field or not options else f"{file} and options"
