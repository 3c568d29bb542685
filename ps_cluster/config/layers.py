"""The layers of settings that make a configuration: defaults, recipes, files, environment, options."""

from __future__ import annotations

import os
import re
import reprlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache, reduce
from operator import getitem
from pathlib import Path
from typing import Any, NamedTuple

from pydantic import BaseModel, ValidationError
from pydantic_core import to_jsonable_python

from ps_cluster.config import network_recipes
from ps_cluster.config.datasets import DataSet
from ps_cluster.config.modes import Mode
from ps_cluster.config.optimizer_rules import OptimizerRule
from ps_cluster.config.schema import PAGE, RunConfig, fitted, sections
from ps_cluster.config.sections import (
    CHOSEN,
    KEY,
    Layer,
    adapted_to_choices,
    check_used,
    chosen_kinds,
    flat,
    listed,
    merged,
    nested,
    of_choices,
    strictest,
    users,
    uses,
)
from ps_cluster.errors import UserError, did_you_mean
from ps_cluster.files.values import Malformed, first_error
from ps_cluster.files.yaml_files import parse_yaml, read_yaml
from ps_cluster.installation import CONFIG_FOLDER

# The layers of settings that a user gives: files, environment variables and options, each with its name.
#
# All of them are the user's own, so code that they name may be run. A run directory is no such layer.

EXTENDS = "extends"
MOST_FILES = 10  # that extend each other
VARIABLE = "PS_CLUSTER__"
OPTIONS = "options"
_ISOLATION = VARIABLE + KEY.upper().replace(".", "__")
_VARIABLE = re.compile(rf"{VARIABLE}[A-Z0-9]+(_[A-Z0-9]+)*(__[A-Z0-9]+(_[A-Z0-9]+)*){{1,9}}")


@dataclass(frozen=True)
class NamedLayer:
    """Settings, and where they come from.

    Attributes:
      origin: the name in messages: a file, a recipe, an environment variable, TF_CONFIG, or "options".
      settings: sections → values.
      may_repeat: whether defaults of settings that the mode does not use are taken, as the config.yaml of a run has them.
    """

    origin: str
    settings: Layer
    may_repeat: bool = False

    def has(self, field: str) -> bool:
        """Return whether a dotted key, a part of it or the whole that it is part of is among these settings."""
        return any(
            f"{key}.".startswith(f"{field}.") or f"{field}.".startswith(f"{key}.") for key in flat(self.settings)
        )


def of_file(file: Path) -> list[NamedLayer]:
    """Return a file's settings over those of the files that it extends, the lowest first.

    Raises:
      UserError: a file can't be read, or they extend each other in a circle.
    """
    found: list[NamedLayer] = []
    seen: set[Path] = set()
    where = ""  # the setting that names the file
    following: Path | None = file
    while following is not None:
        path, following = following, None
        seen.add(_real(path))
        try:
            settings = read_yaml(path)
        except UserError as error:
            raise UserError(f"{where}{error}") from error
        if EXTENDS in settings:
            if len(found) == MOST_FILES - 1:
                raise UserError(f"{path}: {EXTENDS}: at most {MOST_FILES} files extend each other: join some of them")
            following = _extended(path, settings.pop(EXTENDS), seen)
            where = f"{path}: {EXTENDS}: "
        found.append(NamedLayer(str(path), trusted(settings, path.absolute().parent), may_repeat=True))
    return found[::-1]


def settings_of_file(file: Path) -> Layer:
    """Return the settings of a file and of those that it extends. Raises UserError as `of_file`."""
    found: Layer = {}
    for layer in of_file(file):
        found = merged(found, layer.settings)
    return found


def of_environment(environment: Mapping[str, str]) -> list[NamedLayer]:
    """Return a layer for each variable PS_CLUSTER__SECTION__KEY; its value is read as YAML.

    Raises:
      UserError: a variable of another form, or a value that is no YAML.
    """
    given = ((name, _of_variable(name, environment[name])) for name in variables(environment))
    return [NamedLayer(name, trusted(layer, Path.cwd())) for name, layer in given]


def settings_of_environment(environment: Mapping[str, str]) -> dict[str, Any]:
    """Return dotted key → value of all variables. Raises UserError as `of_environment`."""
    found: dict[str, Any] = {}
    for layer in of_environment(environment):
        sections = layer.origin.removeprefix(VARIABLE).lower().split("__")
        found[".".join(sections)] = reduce(getitem, sections, layer.settings)
    return found


def variables(environment: Iterable[str]) -> list[str]:
    """Return the names of the variables that give settings."""
    return sorted(name for name in environment if name.startswith(VARIABLE))


def without_variables(environment: Mapping[str, str]) -> dict[str, str]:
    """Return an environment without these variables: for a command whose settings are all decided.

    That of the isolation stays: the strictest that anybody asks for counts.
    """
    return {name: value for name, value in environment.items() if not name.startswith(VARIABLE) or name == _ISOLATION}


def of_options(overrides: Mapping[str, Any]) -> NamedLayer:
    """Return the layer of the options: dotted key → value."""
    return NamedLayer(OPTIONS, trusted(nested(overrides), Path.cwd()))


def trusted(layer: Layer, folder: Path) -> Layer:
    """Return a user's layer with absolute paths for the code and data that it names; that code may be run."""
    for section, (key, kinds) in CHOSEN.items():
        values = layer.get(section)
        name = values.get(key) if isinstance(values, dict) else None
        if isinstance(name, str):
            layer = merged(layer, {section: {key: kinds.named_by_user(name, folder)}})
    return layer


def names_of(layers: Iterable[NamedLayer]) -> str:
    """Return the origins of the layers that have any settings, for an error of settings that do not fit together."""
    return " and ".join(layer.origin for layer in layers if flat(layer.settings)) or OPTIONS


def _real(path: Path) -> Path:
    """Return a path without links. Unlike `Path.resolve` it also takes a link to itself, which can't be read later."""
    return Path(os.path.realpath(path))


def _extended(file: Path, name: Any, seen: set[Path]) -> Path:
    """Return the file that `file` extends; a relative path is as seen from `file`."""
    where = f"{file}: {EXTENDS}: got {name!r:.300}"
    if not isinstance(name, str) or not name or "\0" in name:
        raise UserError(f"{where}: name one file, as seen from this one")
    path = file.parent / os.path.expanduser(name)
    if _real(path) in seen:
        raise UserError(f"{where}: the files extend each other in a circle: leave it out in one of them")
    return path


def _of_variable(name: str, text: str) -> Layer:
    if not _VARIABLE.fullmatch(name):
        raise UserError(f"{name:.200}: write it as {VARIABLE}SECTION__KEY, e.g. {VARIABLE}OPTIMIZER__LEARNING_RATE=0.1")
    try:
        return nested({name.removeprefix(VARIABLE).lower().replace("__", "."): parse_yaml(text)})
    except Malformed as error:
        raise UserError(f"{name}: the value {error}") from error


# Merge the layers of settings into a configuration: defaults, the network's recipe, a file, the command's options.
#
# The defaults are in configs/default.yaml; those of settings of one mode, network, … are in its file.
# Later layers win. In order: default.yaml, safe defaults where the network is not the package's own
# (`network_recipes.of_users_network`), the recipe of the network (`Network.recipe`), that of the data set
# (`DataSet.recipe`, then `DataSet.recipes` for the network), the network's entry under `modes` for the mode, workers and
# batch (network_recipes.py; not where the data set's recipe has a rate), the staleness method of the optimizer rule, the
# files that the user's file extends, that file, environment variables, `--set key=value`, the command's options.

DEFAULTS = "configs/default.yaml"
# For a name that is unknown, which the validation refuses.
_NO_CHOICE = {"data": DataSet(), "model": network_recipes.Network()}


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
      environment: environment variables. That of the isolation alone counts: the run goes on as it was.
    Raises:
      UserError: a wrong value, or a setting that the run's mode does not use.
    """
    before = load_config(file)
    of_isolation = of_environment({name: value for name, value in environment.items() if name == _ISOLATION})
    layers = (NamedLayer(str(file), read_yaml(file)), *of_isolation, of_options(changes))
    try:
        check_used((before.mode.name,), changes)
    except ValueError as error:
        raise UserError(str(error)) from error
    config = before.with_values({**changes, **strictest(flat(layer.settings) for layer in layers)})
    return Resolved(config, layers, config.model_dump(mode="json"))


def rates_found(config: RunConfig) -> network_recipes.FoundRates | None:
    """Return the recipe's rates for a configuration's network, mode, workers and batch, used or not, else None."""
    place = (*network_recipes.rated_as(config.mode_kind, config.cluster.workers), config.training.batch_size_per_worker)
    _, found = _recipe(network_recipes.NETWORKS[config.model.name])
    return next((rates for rates in found if rates.place == place), None)


def has_rates(config: RunConfig) -> bool:
    """Return whether the network's recipe has rates for any single mode."""
    _, found = _recipe(network_recipes.NETWORKS[config.model.name])
    return bool(found)


def rate_origin(config: RunConfig) -> str:
    """Return in words where the learning rate of a complete configuration comes from."""
    rule, model = config.optimizer.rule, config.model.name
    if "optimizer.learning_rate" in changed(config):
        return "as given" if model in network_recipes.NETWORKS.own else "as given, or as the network was compiled"
    mode, workers = network_recipes.rated_as(config.mode_kind, config.cluster.workers)
    place = f"{mode} with {workers} worker{'s' * (workers != 1)} and batches of {config.training.batch_size_per_worker}"
    found = rates_found(config)
    if found is not None and found.learning_rate == config.optimizer.learning_rate:
        return f"found by a sweep for {place}"
    if found is not None:
        return f"the one that {model} has for all modes; what was found for {place} belongs to other settings"
    if has_rates(config):
        others = _recipe(network_recipes.NETWORKS[model])[1]
        known = [f"{one.workers} x {one.batch_size_per_worker}" for one in others if one.mode == mode]
        have = f" (there is one for workers x batch of {', '.join(known)})" if known else ""
        return f"the one that {model} has for all modes, because none was found for {place}{have}"
    return f"the default of {model}" if model in network_recipes.NETWORKS.own else f"usual for {rule}"


def parse_assignment(text: str) -> tuple[str, Any]:
    """Return `('optimizer.learning_rate', 0.1)` for `'optimizer.learning_rate=0.1'`; the value is read as YAML."""
    key, separator, value = text.partition("=")
    if not separator or not re.fullmatch(r"\w+(\.\w+){1,9}", key.strip()):
        hint = did_you_mean(key.strip(), [known for known in known_keys() if "." in known])
        raise UserError(f"--set {text!r:.300}: {hint}write it as section.key=value, e.g. optimizer.learning_rate=0.1")
    try:
        return key.strip(), parse_yaml(value)
    except Malformed as error:
        raise UserError(f"--set {text!r:.300}: the value {error}") from error


def _defaults(user: Layer) -> tuple[Layer, list[NamedLayer]]:
    """Return what is below the user's layers, merged, and the layers that it was merged from, the lowest first.

    These are the defaults, and the recipes of the chosen network and data set. Settings that belong to a mode, network, …
    that is not chosen are left out.
    """
    base = adapted_to_choices(read_yaml(CONFIG_FOLDER / "default.yaml"), user)
    layers = [NamedLayer(DEFAULTS, base)]
    data_set = _of_chosen("data", base, user)
    network = _of_chosen("model", merged(base, data_set.recipe), user)
    layer, found = _recipe(network)
    safe: Layer = {}
    if network.name and network.name not in network_recipes.NETWORKS.own:
        chosen = merged(merged(layer, data_set.recipe), user).get("optimizer")
        safe = network_recipes.of_users_network(chosen.get("rule") if isinstance(chosen, Mapping) else None)
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
    rates = network_recipes.found_for(found, merged(base, user), merged(merged(data_set.recipe, of_both), user))
    layers.append(NamedLayer(f"rates of network {network.name} for this mode", dict(rates)))
    base = merged(base, rates)
    if not any(layer.has("staleness.method") for layer in layers[1:]):
        layers.append(_staleness_method(merged(base, user)))
        base = merged(base, layers[-1].settings)
    return base, layers


def _staleness_method(settings: Layer) -> NamedLayer:
    """Return a layer with the staleness method of the chosen rule; an empty one where the servers do not use that rule."""
    chosen = chosen_kinds(settings)
    rule, mode = chosen.get("optimizer"), chosen.get("mode")
    if not (isinstance(rule, OptimizerRule) and isinstance(mode, Mode)) or mode.promise.takes_local_steps:
        return NamedLayer("", {})
    if uses(mode.name, "staleness.method"):
        return NamedLayer(f"default of rule {rule.name}", {"staleness": {"method": rule.staleness_method}})
    return NamedLayer("", {})


def _of_chosen(section: str, base: Layer, user: Layer) -> Any:
    """Return the object chosen in a section; one without a recipe if the user's choice is none."""
    return chosen_kinds(merged(base, user)).get(section, _NO_CHOICE[section])


def _recipe(network: network_recipes.Network) -> tuple[Layer, tuple[network_recipes.FoundRates, ...]]:
    """Return the recipe of a network, and its rates for single modes."""
    recipe = network.recipe
    layer = {key: value for key, value in recipe.items() if key != network_recipes.OF_MODES}
    return layer, network_recipes.read_modes(recipe, f"the recipe of network {network.name}")


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


# Tell which settings of a run differ from the defaults: default.yaml with the recipes of what is chosen.

# The defaults of later keys follow from the values of earlier ones: network, data set and mode choose a rule and a batch,
# and these choose a learning rate.
_DECIDE_RECIPES = ("model.name", "data.dataset", "mode.name")
_DECIDE_RATES = (
    "cluster.workers",
    "training.batch_size_per_worker",
    *(key for section, choice in CHOSEN.items() if (key := f"{section}.{choice.key}") not in _DECIDE_RECIPES),
)

_ALWAYS_TOLD = (
    "cluster.parameter_servers",
    "optimizer.learning_rate",
    "training.epochs",
    "training.steps",
    "training.seed",
)


class ChangedSetting(NamedTuple):
    """The value of a setting, and the default that it replaces."""

    value: Any
    default: Any


def changed(config: RunConfig) -> dict[str, ChangedSetting]:
    """Return dotted key → value and default, of the settings that differ from the defaults."""
    values = flat(config.model_dump(mode="json"))
    others = tuple(key for key in values if key not in (*_DECIDE_RECIPES, *_DECIDE_RATES))
    found: dict[str, ChangedSetting] = {}
    for keys in (_DECIDE_RECIPES, _DECIDE_RATES, others):
        chosen = nested({key: one.value for key, one in found.items()})
        default = _of_classes(config) | flat(_defaults(chosen)[0])
        found |= {key: ChangedSetting(values[key], default.get(key)) for key in keys if values[key] != default.get(key)}
    return {key: found[key] for key in values if key in found}


def telling(config: RunConfig) -> dict[str, Any]:
    """Return dotted key → value of the settings by which runs are told apart: the usual ones, and what was changed."""
    values = flat(config.model_dump(mode="json"))
    keys = dict.fromkeys((*_DECIDE_RECIPES, *_DECIDE_RATES, *_ALWAYS_TOLD, *changed(config)))
    return {key: values[key] for key in keys if key in values}


def _of_classes(config: RunConfig) -> dict[str, Any]:
    """Return dotted key → the default in its section's class, of the settings that have one."""
    found: dict[str, Any] = {}
    for section in type(config).model_fields:
        for name, field in type(getattr(config, section)).model_fields.items():
            if not field.is_required():
                default = to_jsonable_python(field.get_default(call_default_factory=True))
                found |= flat({name: default}, f"{section}.")
    return found


@lru_cache
def known_keys() -> tuple[str, ...]:
    """Return the dotted keys of all settings, also those of single modes, networks, …, and the names of the sections."""
    found = dict.fromkeys(sections())
    for section, model in sections().items():
        kinds = CHOSEN[section].kinds.with_settings if section in CHOSEN else ()
        for settings in (model, *(kind.Settings for kind in kinds)):
            found |= dict.fromkeys(_keys(settings, f"{section}."))
    return tuple(found)


def _keys(model: type[BaseModel], prefix: str) -> Iterator[str]:
    for name, field in model.model_fields.items():
        if isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel):
            yield from _keys(field.annotation, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}"
