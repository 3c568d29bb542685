"""Turn the optimizer of a model's compile() into settings."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np

from ps_cluster.config.keras_schedules import FUNCTIONS_OF_KERAS, highest_rate
from ps_cluster.config.optimizer_rules import RULES, Values, check_without_effect
from ps_cluster.config.schedules import SCHEDULES
from ps_cluster.config.setting_types import COMPILED
from ps_cluster.private_names import attributes_outside_config


def optimizer_of(model: keras.Model) -> keras.Optimizer | None:
    """Return the optimizer of a model's compile(), or None for a model that was not compiled."""
    return getattr(model, "optimizer", None)


def optimizer_settings(model: keras.Model) -> dict[str, Any]:
    """Return settings for the section `optimizer` that are equivalent to the optimizer of a model's compile().

    Return {} if the model was not compiled. Raises ValueError if no update rule of this package is equivalent to the
    optimizer. The message says what to set instead.
    """
    optimizer = optimizer_of(model)
    if optimizer is None:
        return {}
    values = {name: _plain(value) for name, value in optimizer.get_config().items()}
    rate, schedule = values["learning_rate"], schedule_settings(model)
    try:
        rule, own = _equal_rule(optimizer, values)
    except ValueError as error:
        rules = ", ".join(rule for rule in RULES.names if rule != COMPILED)
        raise ValueError(
            f"the optimizer of its compile() ({type(optimizer).__name__}) {error}, and no rule of this package is "
            f"equivalent to it: set optimizer.rule ({rules}) and optimizer.learning_rate"
        ) from error
    clipping = {"clip_norm": "clipnorm", "global_clip_norm": "global_clipnorm", "clip_value": "clipvalue"}
    return own | {
        "rule": rule,
        # A constant rate is set as it was written, before Keras rounded it to float32.
        "learning_rate": highest_rate(schedule["arguments"]) if schedule else float(str(np.float32(rate))),
        "weight_decay": float(values["weight_decay"] or 0.0),
        **{ours: values[name] for ours, name in clipping.items()},
    }


def _equal_rule(optimizer: keras.Optimizer, values: Values) -> tuple[str, Values]:
    """Return the name of the rule that equals an optimizer, and the rule's own settings.

    Arguments and errors are as for `OptimizerRule.of_keras`.
    """
    own_settings = ((rule.name, rule.of_keras(type(optimizer), values)) for rule in RULES)
    equal = next(((name, own) for name, own in own_settings if own is not None), None)
    if equal is None:
        raise ValueError("is not known")
    check_without_effect(values, use_ema=False, gradient_accumulation_steps=None, loss_scale_factor=None)
    for name in attributes_outside_config(optimizer):
        excludes = name.startswith("_exclude_from_weight_decay")
        if values["weight_decay"] or not excludes:
            why = "exclude_from_weight_decay" if excludes else name
            raise ValueError(f"has {why}, which was set after the optimizer was created")
    return equal


def schedule_settings(model: keras.Model) -> dict[str, Any]:
    """Return settings for the section `schedule` that are equivalent to the learning rate schedule of compile().

    Return {} if the learning rate is constant. Raises ValueError if the schedule is not one of Keras's own schedules.
    """
    optimizer = optimizer_of(model)
    rate = None if optimizer is None else optimizer.get_config()["learning_rate"]
    if not isinstance(rate, dict):
        return {}
    name, of_keras = rate["class_name"], rate.get("module") == keras.optimizers.schedules.__name__
    if not of_keras or name not in FUNCTIONS_OF_KERAS:
        known = ", ".join(known for known in SCHEDULES.names if known != COMPILED)
        raise ValueError(
            f"the learning rate of its compile() is a schedule, {name}, which is not one of Keras's: set "
            f"optimizer.rule, optimizer.learning_rate and a schedule.kind ({known}), or write a schedule of "
            "your own (docs/extending.md)"
        )
    arguments = {key: _plain(value) for key, value in rate["config"].items() if key in FUNCTIONS_OF_KERAS[name]}
    return {"kind": "keras", "function": name, "arguments": arguments}


def _plain(value: Any) -> Any:
    """Return an argument of an optimizer or schedule, which may be of a NumPy type, as a value that JSON can hold."""
    return value.item() if isinstance(value, np.generic) else np.asarray(value).tolist() if np.ndim(value) else value
