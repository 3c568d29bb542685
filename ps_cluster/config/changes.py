"""Find the settings of a run that differ from the defaults in default.yaml, the recipes and the settings classes."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from pydantic_core import to_jsonable_python

from ps_cluster.config.merging import defaults_for
from ps_cluster.config.networks import NETWORKS
from ps_cluster.config.recipe import (
    BELONG_TOGETHER,
    OF_DIVIDED,
    found_rates,
    has_rates,
    rates_found,
    rates_listed_under,
    uses_found_rates,
)
from ps_cluster.config.schema import RunConfig
from ps_cluster.config.sections import CHOICES, DATA_SET, MODE, NETWORK, RULE, flat, nested

# The defaults of later keys depend on the values of earlier keys. Network, data set and mode decide the default rule and
# batch size. The rule decides the default schedule and staleness method, and all of these the default learning rate.
_DECIDE_RECIPES = (NETWORK.setting, DATA_SET.setting, MODE.setting)
_DECIDES_METHOD = (RULE.setting,)
_DECIDE_RATES = (
    "cluster.workers",
    "training.batch_size_per_worker",
    *(choice.setting for choice in CHOICES if choice.setting not in (*_DECIDE_RECIPES, *_DECIDES_METHOD)),
)

_ALWAYS_SHOWN = (
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
    """Return the settings that differ from their defaults, by dotted key: the value and the default of each."""
    values, class_defaults = flat(config.model_dump(mode="json")), _class_defaults(config)

    def differing(keys: Iterable[str], chosen: Mapping[str, ChangedSetting]) -> dict[str, ChangedSetting]:
        as_given = nested({key: one.value for key, one in chosen.items()})
        default = class_defaults | flat(defaults_for(as_given)[0])
        return {key: ChangedSetting(values[key], default.get(key)) for key in keys if values[key] != default.get(key)}

    found: dict[str, ChangedSetting] = {}
    before = (_DECIDE_RECIPES, _DECIDES_METHOD, _DECIDE_RATES)
    for keys in before:
        found |= differing(keys, found)
    others = [key for key in values if key not in itertools.chain(*before)]
    # If a setting in BELONG_TOGETHER differs from the recipe's value for the mode, the user has set at least one of
    # these settings. The run then uses none of the recipe's rates, and `defaults_for` leaves these rates out as well,
    # if the settings that it gets contain such a setting.
    unlike_found_rates = differing([key for key in others if key in BELONG_TOGETHER], found)
    found |= differing(others, found | unlike_found_rates)
    return {key: found[key] for key in values if key in found}


def distinguishing_settings(config: RunConfig) -> dict[str, Any]:
    """Return the settings that distinguish a run from other runs, as dotted key → value.

    These are all settings that differ from their defaults, and some that are always included, such as the mode, the
    network and the learning rate.
    """
    values = flat(config.model_dump(mode="json"))
    keys = dict.fromkeys((*_DECIDE_RECIPES, *_DECIDES_METHOD, *_DECIDE_RATES, *_ALWAYS_SHOWN, *changed(config)))
    return {key: values[key] for key in keys if key in values}


def _class_defaults(config: RunConfig) -> dict[str, Any]:
    """Return the defaults, by dotted key, that the classes of the sections define."""
    found: dict[str, Any] = {}
    for section, settings in config:
        for name, field in type(settings).model_fields.items():
            if not field.is_required():
                default = to_jsonable_python(field.get_default(call_default_factory=True))
                found |= flat({name: default}, f"{section}.")
    return found


def rate_origin(config: RunConfig) -> str:
    """Describe where the learning rate of a configuration comes from.

    A `RunConfig` does not record which source of settings a value comes from. So if the user has set the same rate as
    the recipe, the result says that the rate comes from the recipe. (`Resolved.origin` returns the true source.)
    """
    rule, model = config.optimizer.rule, config.model.name
    if "optimizer.learning_rate" in changed(config):
        return "as given" if model in NETWORKS.own else "set by you, or by the compile() of the network"
    chosen = {key: value for key, value in flat(config.model_dump(mode="json")).items() if key in _DECIDE_RECIPES}
    if model not in NETWORKS.own or rule != RULE.name_in(defaults_for(nested(chosen))[0]):
        return f"the usual rate for {rule}"
    if config.chosen_mode.shares_steps and OF_DIVIDED in NETWORKS[model].recipe:
        return f"the rate of {model} for modes that divide the network"
    mode, workers = rates_listed_under(config.chosen_mode, config.cluster.workers)
    place = f"{mode} with {workers} worker{'s' * (workers != 1)} and batches of {config.training.batch_size_per_worker}"
    if uses_found_rates(config):
        return f"found by a sweep for {place}"
    if rates_found(config) is not None:
        return f"the rate of {model} for all modes, because the rate for {place} was found with other settings"
    if has_rates(config):
        others = found_rates(NETWORKS[model])
        known = [f"{one.workers} x {one.batch_size_per_worker}" for one in others if one.mode == mode]
        have = f" (rates were found for these pairs of workers x batch size: {', '.join(known)})" if known else ""
        return f"the rate of {model} for all modes, because no rate was found for {place}{have}"
    return f"the default of {model}"
