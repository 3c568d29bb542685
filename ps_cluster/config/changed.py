"""Tell which settings of a run differ from the defaults: default.yaml with the recipes of what is chosen."""

from __future__ import annotations

from typing import Any, NamedTuple

from pydantic_core import to_jsonable_python

from ps_cluster.config.layers import default_layer
from ps_cluster.config.schema import RunConfig
from ps_cluster.config.sections import CHOSEN
from ps_cluster.config.trees import flat, nested

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


class Changed(NamedTuple):
    """The value of a setting, and the default that it replaces."""

    value: Any
    default: Any


def changed(config: RunConfig) -> dict[str, Changed]:
    """Return dotted key → value and default, of the settings that differ from the defaults."""
    values = flat(config.model_dump(mode="json"))
    others = tuple(key for key in values if key not in (*_DECIDE_RECIPES, *_DECIDE_RATES))
    found: dict[str, Changed] = {}
    for keys in (_DECIDE_RECIPES, _DECIDE_RATES, others):
        chosen = nested({key: one.value for key, one in found.items()})
        default = _of_classes(config) | flat(default_layer(chosen))
        found |= {key: Changed(values[key], default.get(key)) for key in keys if values[key] != default.get(key)}
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
