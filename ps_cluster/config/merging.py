"""Merge all sources of settings into a configuration. Later sources win.

1. defaults: the values in configs/default.yaml. If only some modes, networks, … have a setting, its default is in
   their settings classes.
2. recipe: settings that suit the chosen network, data set, mode, number of workers and batch size (config/recipe.py).
3. files: the files that the user's file extends, then the user's file.
4. environment: the variables PS_CLUSTER__SECTION__KEY.
5. options: `--set key=value`, then the command's own options.

The setting `cluster.isolation` is an exception: its strictest value wins, whichever source has it.
"""

from __future__ import annotations

import reprlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from ps_cluster.config.modes import MODES, Mode
from ps_cluster.config.recipe import recipe_for
from ps_cluster.config.schema import PAGE, ClusterSettings, RunConfig, fitted, known_keys
from ps_cluster.config.sections import (
    CHOICE_BY_SECTION,
    ISOLATION_KEY,
    NestedSettings,
    adapted_to_choices,
    check_used,
    choices_with,
    flat,
    merged,
    nested,
    strictest,
    value_in,
)
from ps_cluster.config.user_settings import (
    ISOLATION_VARIABLE,
    SettingsSource,
    names_of,
    of_environment,
    of_file,
    of_options,
)
from ps_cluster.errors import UserError, did_you_mean
from ps_cluster.files.values import first_error, join_names
from ps_cluster.files.yaml_files import read_yaml
from ps_cluster.installation import CONFIG_FOLDER

DEFAULTS = "configs/default.yaml"


@dataclass(frozen=True)
class Resolved:
    """A configuration, and the sources of settings from which it was merged. Later sources override earlier ones."""

    config: RunConfig
    sources: tuple[SettingsSource, ...]
    tree: NestedSettings  # the merged settings

    def is_chosen(self, key: str) -> bool:
        """Return whether the user has set the setting with this dotted key. Defaults and recipes do not count."""
        return any(source.has(key) for source in self.sources[2:])  # the first two are the defaults and the recipe

    def origin(self, key: str) -> str:
        """Return where the value of the setting with this dotted key comes from: a file, "default of mode async", …"""
        values = flat(self.tree)
        having = [source for source in self.sources if source.has(key)]
        if key == ISOLATION_KEY:  # the strictest value counts, not the last one
            having = [source for source in having if flat(source.settings).get(key) == values[key]] or having
        if having and key in values:  # a source may have set it for a choice that a later one replaced
            return having[-1].origin_of(key)
        section = key.partition(".")[0]
        if section not in CHOICE_BY_SECTION:
            return "default"
        choice = CHOICE_BY_SECTION[section]
        return f"default of {choice.kinds.noun} {values[choice.setting]}"


def build_config(file: Path | None = None, overrides: NestedSettings | None = None) -> RunConfig:
    """Merge the defaults, a file and options into a configuration. Arguments and errors are those of `resolve`."""
    return resolve(file, overrides).config


def resolve(
    file: Path | None = None,
    overrides: NestedSettings | None = None,
    size: SettingsSource | None = None,
    environment: Mapping[str, str] | None = None,
) -> Resolved:
    """Merge all sources of settings. Later ones win, except that the strictest `cluster.isolation` wins.

    This process may run the code files that the arguments name, because the user has written these settings.

    Args:
      file: a YAML file that overrides the defaults, or None.
      overrides: dotted key → value, e.g. `{"cluster.workers": 2}`; they win over file and environment.
      size: the numbers of workers and parameter servers of a cluster on several machines. They win over all other
        sources, and are not refused if the mode does not use them.
      environment: environment variables; those named PS_CLUSTER__SECTION__KEY win over the file.
    Raises:
      UserError: a file can't be read, a key is unknown, a value has the wrong type or range, or a setting is not used
        by the mode. In a file, such a setting is accepted if it has its default value, because the config.yaml of a
        run contains all settings.
    """
    written = [*(of_file(file) if file else ()), *of_environment(environment or {}), of_options(overrides or {})]
    of_user = [*written, size] if size else written
    isolation = nested(strictest(flat(source.settings) for source in written))
    user = merged(*(source.settings for source in of_user), isolation)
    base, defaults = defaults_for(user)
    tree, sources = merged(base, user), [*defaults, *of_user]
    try:
        config = fitted(tree)
    except ValidationError as error:
        origin = _origin(error, sources, written)
        message = _setting_of_another_choice(error, tree, origin) or first_error(error, origin, PAGE, known_keys())
        raise UserError(message) from error
    _check_used(config.mode.name, written, flat(base))
    return Resolved(config, tuple(sources), tree)


def load_config(file: Path) -> RunConfig:
    """Read a run's config.yaml, which contains all settings. Raises UserError if a setting is wrong."""
    tree = read_yaml(file)
    try:
        return fitted(tree)
    except ValidationError as error:
        raise UserError(first_error(error, str(file), PAGE, known_keys())) from error


def load_mode_and_cluster(file: Path) -> tuple[Mode, ClusterSettings]:
    """Read only the mode and the section `cluster` of a run's config.yaml. No code of the network or data is loaded.

    Raises UserError if the mode or the section is wrong, or if the mode is user code that is named only in this
    config.yaml: such code is not trusted until the user names it too.
    """
    tree = read_yaml(file)
    name = value_in(tree, "mode", "name")
    if not isinstance(name, str) or "cluster" not in tree:
        raise UserError(
            f"{file}: mode.name or the section 'cluster' is missing, so this is not the config.yaml of a run"
        )
    try:
        return MODES[name], ClusterSettings.model_validate(tree["cluster"])
    except ValidationError as error:
        raise UserError(first_error(error, f"{file}: cluster", PAGE, known_keys())) from error


def resolve_resumed(file: Path, changes: NestedSettings, environment: Mapping[str, str]) -> Resolved:
    """Merge the settings of a resumed run: its config.yaml and `changes`. The strictest `cluster.isolation` wins.

    Args:
      changes: dotted key → new value.
      environment: environment variables. Only the one for `cluster.isolation` counts, because a resumed run keeps all
        other settings.
    Raises:
      UserError: a value is wrong, or the run's mode does not use a setting.
    """
    before = load_config(file)
    of_isolation = of_environment({name: value for name, value in environment.items() if name == ISOLATION_VARIABLE})
    sources = (SettingsSource(str(file), read_yaml(file)), *of_isolation, of_options(changes))
    try:
        check_used((before.mode.name,), changes)
    except ValueError as error:
        raise UserError(str(error)) from error
    config = before.with_values({**changes, **strictest(flat(source.settings) for source in sources)})
    return Resolved(config, sources, config.model_dump(mode="json"))


def _setting_of_another_choice(error: ValidationError, tree: NestedSettings, origin: str) -> str | None:
    """Describe a wrong setting that belongs to a mode, network, … that is not chosen. Return None for other errors."""
    first = error.errors(include_url=False)[0]
    if first["type"] != "extra_forbidden" or len(first["loc"]) != 2:
        return None
    section, name = map(str, first["loc"])
    if section not in CHOICE_BY_SECTION:
        return None
    kinds = CHOICE_BY_SECTION[section].kinds
    having, chosen = choices_with(section, name), tree[section][CHOICE_BY_SECTION[section].key]
    if not having:
        known = list(kinds[chosen].Settings.model_fields)
        hint = did_you_mean(f"{section}.{name}", [*known_keys(), *(f"{section}.{one}" for one in known)])
        return f"{origin}: unknown key '{section}.{name}'; {hint}{kinds.noun} {chosen} has {join_names(known)}"
    value = reprlib.repr(first["input"])
    return (
        f"{origin}: {section}.{name}: got {value}: {kinds.noun} {chosen} does not use it (it belongs "
        f"to {join_names(having)}): leave it out"
    )


def _check_used(mode: str, given: Sequence[SettingsSource], defaults: Mapping[str, Any]) -> None:
    """Raise UserError if the user has given a setting that the mode does not use."""
    for source in given:
        values = flat(source.settings)
        if source.may_repeat:
            values = {key: value for key, value in values.items() if value != defaults.get(key)}
        try:
            check_used((mode,), values)
        except ValueError as error:
            raise UserError(f"{source.origin}: {error}") from error


def _origin(error: ValidationError, sources: Sequence[SettingsSource], given: Sequence[SettingsSource]) -> str:
    """Return the origin of the first wrong value.

    If several values don't fit together, return the origins of all sources in `given`, the sources of the user.
    """
    field = ".".join(str(part) for part in error.errors()[0]["loc"])
    found = [source.origin for source in sources if field and source.has(field)]
    return found[-1] if found else names_of(given)


def defaults_for(user: NestedSettings) -> tuple[NestedSettings, tuple[SettingsSource, SettingsSource]]:
    """Return the defaults with the recipe merged into them, and their two sources: the defaults and the recipe.

    The settings in `user` choose the recipe, and are merged over the result later. Settings that belong only to a mode,
    network, … that is not chosen are left out.
    """
    defaults = read_yaml(CONFIG_FOLDER / "default.yaml")
    base, recipe = recipe_for(defaults, user)
    return base, (SettingsSource(DEFAULTS, adapted_to_choices(defaults, user)), recipe)
