"""Compute the recipe: the settings that suit the chosen network, data set, mode, workers and batch size.

The key `modes` in the recipe of a network (`Network.recipe`) holds a table of learning rates and momenta that were
found on held-out examples. An entry is used only for its own mode, number of workers and batch size. Its learning rate
is never scaled for another number of workers or another batch size. The key `divided` holds settings for the modes that
divide the network among the workers, because not every optimizer rule works with these modes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import Field, TypeAdapter, ValidationError, field_validator

from ps_cluster.config.datasets import DataSet
from ps_cluster.config.modes import Mode
from ps_cluster.config.networks import NETWORKS, Network
from ps_cluster.config.optimizer_rules import RULES
from ps_cluster.config.schedules import CONSTANT
from ps_cluster.config.schema import RunConfig
from ps_cluster.config.sections import (
    DATA_SET,
    MODE,
    NETWORK,
    RULE,
    STALENESS_METHOD,
    NestedSettings,
    adapted_to_choices,
    flat,
    merged,
    of_choices,
    uses,
    value_in,
)
from ps_cluster.config.setting_types import COMPILED, Section
from ps_cluster.config.user_settings import SettingsSource
from ps_cluster.errors import UserError
from ps_cluster.files.values import first_error

OF_MODES = "modes"  # the key of this table in a recipe
OF_DIVIDED = "divided"  # the key of a recipe's settings for modes that divide the network among the workers
METHOD = STALENESS_METHOD.setting
# These settings belong together: if the user sets one of them, none is taken from the table.
BELONG_TOGETHER = (
    "optimizer.rule",
    "optimizer.learning_rate",
    "optimizer.momentum",
    "optimizer.beta_2",
    METHOD,
)


class FoundRates(Section):
    """Optimizer settings, and the mode, number of workers (1 in mode single) and batch size for which they were found.

    Attributes:
      optimizer: the settings of the section `optimizer` that replace those of the network's recipe. They include a
        learning rate. They can't include the rule, so that all modes use the same rule and can be compared.
    """

    mode: str
    workers: int = Field(ge=1)
    batch_size_per_worker: int = Field(ge=1)
    optimizer: dict[str, Any]

    @field_validator("optimizer")
    @classmethod
    def _has_a_rate(cls, optimizer: dict[str, Any]) -> dict[str, Any]:
        if "learning_rate" not in optimizer or "rule" in optimizer:
            raise ValueError("the settings have to include learning_rate, but not rule")
        return optimizer

    @property
    def place(self) -> tuple[str, int, int]:
        return self.mode, self.workers, self.batch_size_per_worker

    @property
    def settings(self) -> NestedSettings:
        """The optimizer settings of this entry, in their section: {"optimizer": {…}}."""
        return {"optimizer": self.optimizer}

    def are_used_by(self, config: RunConfig) -> bool:
        """Return whether a configuration has this learning rate and momentum, and the rule's default staleness method.

        In modes that use no staleness method outside of outer steps, the method does not count.
        """
        names = self.optimizer.keys() & {"learning_rate", "momentum"}
        usual = value_in(_staleness_method(config.model_dump(mode="json")).settings, "staleness", "method")
        return usual in (None, config.staleness.method) and all(
            getattr(config.optimizer, name, None) == self.optimizer[name] for name in names
        )


_TABLE = TypeAdapter(dict[str, tuple[FoundRates, ...]])


def of_users_network(rule: object) -> dict[str, Any]:
    """Return safe settings for a network that is not in this package. They replace those of configs/default.yaml.

    The settings in that file were chosen for airbench on CIFAR-10. Many of them harm other networks.

    Args:
      rule: the name of the chosen optimizer rule, or None for the rule of the network's compile().
    """
    chosen = RULES[rule if isinstance(rule, str) and rule in RULES else COMPILED]
    # The class of rule `compiled` also has a default weight decay: None, which stands for the decay of compile().
    own = {name: field.default for name, field in chosen.Settings.model_fields.items() if not field.is_required()}
    return {
        "data": {"augmentation": {"crop_padding_pixels": 0, "flip": "none"}},
        "model": {"precision": "float32"},
        "training": {"label_smoothing": 0.0},
        "optimizer": {"weight_decay": 0.0}
        | own
        | {"rule": chosen.name, "learning_rate": chosen.usual_rate, "learning_rate_factors": []},
        "schedule": {"kind": COMPILED if chosen.name == COMPILED else CONSTANT, "warmup_fraction": 0.0},
    }


def found_rates(network: Network[Any]) -> tuple[FoundRates, ...]:
    """Return the table `modes` of a network's recipe: learning rates by mode, workers and batch size; () if none.

    Raises UserError if the table is invalid.
    """
    origin = f"the recipe of network {network.name}"
    try:
        table = _TABLE.validate_python({OF_MODES: network.recipe.get(OF_MODES) or ()})[OF_MODES]
    except ValidationError as error:
        raise UserError(first_error(error, origin)) from error
    places = [found.place for found in table]
    if len(set(places)) < len(places):
        raise UserError(f"{origin}: modes: two entries have the same mode, number of workers and batch size")
    return table


def rates_listed_under(mode: Mode, workers: object) -> tuple[str, object]:
    """Return the mode and the number of workers under which a recipe lists the learning rates that `mode` uses.

    Most modes have learning rates of their own. But some modes use the rates of mode single, with 1 worker, because
    their optimizer works as in a single process. These are the modes with local steps that work with any rule, and the
    modes that divide the network among the workers.

    The caller has to check whether the recipe has the key `divided`. If so, modes that divide the network use the
    settings of this key, and no listed rates.

    Args:
      workers: `cluster.workers`, which may not be validated yet.
    """
    steps_alone = mode.synchrony.takes_local_steps and mode.own_rule is None
    if steps_alone or mode.shares_steps:
        return "single", 1
    return mode.name, workers if mode.has_workers else 1


def found_for(table: Sequence[FoundRates], settings: Mapping[str, Any], user: Mapping[str, Any]) -> NestedSettings:
    """Return the optimizer settings that a table has for the mode, workers and batch size of `settings`; {} if none.

    Args:
      table: the `found_rates` of the network.
      settings: the merged settings of all sources, not yet validated.
      user: the user's settings. If they contain a setting in `BELONG_TOGETHER`, the result is {}. Of these settings,
        `staleness.method` counts only if the mode takes no local steps and the method is not the rule's default.
    """
    mode, rule = MODE.chosen_in(settings), RULE.chosen_in(settings)
    if mode is None:
        return {}  # the validation refuses it later
    # With local steps, the staleness method is used in the outer step, and the rates of the table in the local steps.
    is_usual = mode.synchrony.takes_local_steps or (
        rule is not None and STALENESS_METHOD.name_in(settings) == rule.staleness_method
    )
    if {key for key in BELONG_TOGETHER if not (key == METHOD and is_usual)} & flat(user).keys():
        return {}
    batch_size = value_in(settings, "training", "batch_size_per_worker")
    place = (*rates_listed_under(mode, value_in(settings, "cluster", "workers")), batch_size)
    return next((found.settings for found in table if found.place == place), {})


def recipe_for(base: NestedSettings, user: NestedSettings) -> tuple[NestedSettings, SettingsSource]:
    """Return the defaults with the recipe merged into them, and the recipe alone.

    Args:
      base: the defaults.
      user: the user's settings. They choose network, data set, mode, workers and batch size.
    """
    # An unknown name, which the validation refuses, has no recipe.
    data_set = DATA_SET.chosen_in(merged(base, user)) or DataSet()
    network = NETWORK.chosen_in(merged(base, data_set.recipe, user)) or Network()
    of_network = {key: value for key, value in network.recipe.items() if key not in (OF_MODES, OF_DIVIDED)}
    mode = MODE.chosen_in(merged(base, data_set.recipe, user))
    divided = network.recipe.get(OF_DIVIDED, {}) if mode is not None and mode.shares_steps else {}
    is_own = not network.name or network.name in NETWORKS.own
    of_both = data_set.recipes.get(network.name, {})
    safe = {} if is_own else of_users_network(RULE.name_in(merged(of_network, data_set.recipe, of_both, user)))
    parts: list[SettingsSource] = []
    for origin, settings in (
        ("safe default for a network of your own", safe),
        (f"recipe of network {network.name}", of_network),
        (f"recipe of network {network.name} for modes that divide it", divided),
        (f"recipe of data set {data_set.name}", data_set.recipe),
        (
            f"recipe of data set {data_set.name} for network {network.name}",
            merged({"model": {"name": network.name}}, of_both) if of_both else {},
        ),
    ):
        used = of_choices(settings, merged(base, settings, user))
        parts += [_usual_rate(settings, base), SettingsSource(origin, used)]
        base = merged(adapted_to_choices(base, settings), parts[-2].settings, used)
    parts.append(_usual_rate(user, base))
    base = merged(adapted_to_choices(base, user), parts[-1].settings)
    table = () if divided else found_rates(network)
    found = found_for(table, merged(base, user), merged(data_set.recipe, of_both, user))
    parts.append(SettingsSource(f"learning rates of network {network.name} for this mode", found))
    base = merged(base, found)
    if not any(part.has(METHOD) for part in parts):
        parts.append(_staleness_method(merged(base, user)))
        base = merged(base, parts[-1].settings)
    return base, SettingsSource("recipe", merged(*(part.settings for part in parts)), parts=tuple(parts))


def _usual_rate(settings: Mapping[str, Any], base: NestedSettings) -> SettingsSource:
    """Return the usual learning rate of the optimizer rule that `settings` chooses, if `base` has another rule.

    Otherwise return no settings. The caller merges `settings` over the result, so a learning rate in `settings` wins.
    """
    rule = RULE.chosen_in(settings)
    if rule is None or rule is RULE.chosen_in(base):
        return SettingsSource("", {})
    return SettingsSource(f"default of rule {rule.name}", {"optimizer": {"learning_rate": rule.usual_rate}})


def _staleness_method(settings: NestedSettings) -> SettingsSource:
    """Return the setting `staleness.method` with the default of the chosen optimizer rule.

    Return no settings if the mode uses no staleness method, or if it takes local steps. With local steps, the rule's
    default does not suit the parameter servers, because the workers apply the rule.
    """
    rule, mode = RULE.chosen_in(settings), MODE.chosen_in(settings)
    if not (rule and mode) or mode.synchrony.takes_local_steps or not uses(mode.name, METHOD):
        return SettingsSource("", {})
    return SettingsSource(f"default of rule {rule.name}", {"staleness": {"method": rule.staleness_method}})


def rates_found(config: RunConfig) -> FoundRates | None:
    """Return the recipe's rates for the mode, workers and batch of a configuration, or None if the recipe has none.

    The configuration may use other rates.
    """
    network = NETWORKS[config.model.name]
    if config.chosen_mode.shares_steps and OF_DIVIDED in network.recipe:
        return None
    place = (*rates_listed_under(config.chosen_mode, config.cluster.workers), config.training.batch_size_per_worker)
    return next((rates for rates in found_rates(network) if rates.place == place), None)


def uses_found_rates(config: RunConfig) -> bool:
    """Return whether a configuration uses the recipe's rates for its mode, workers and batch."""
    found = rates_found(config)
    return found is not None and found.are_used_by(config)


def has_rates(config: RunConfig) -> bool:
    """Return whether the recipe of the chosen network has a table of learning rates."""
    return bool(found_rates(NETWORKS[config.model.name]))
