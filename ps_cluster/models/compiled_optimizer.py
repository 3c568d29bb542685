"""Turn the optimizer of a model's compile() into settings."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np

from ps_cluster.config.keras_schedules import FUNCTIONS_OF_KERAS, highest_rate
from ps_cluster.config.optimizer_rules import RULES
from ps_cluster.config.schedules import SCHEDULES
from ps_cluster.config.setting_types import COMPILED, SMALLEST_EPSILON
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
    kind, values = type(optimizer), {name: _plain(value) for name, value in optimizer.get_config().items()}
    if kind not in _RULES_OF_KERAS:
        raise _unsupported(kind, "is not known")
    rate, schedule = values["learning_rate"], schedule_settings(model)
    for name, usual in _WITHOUT_EFFECT.items():
        if values.get(name, usual) != usual:
            raise _unsupported(kind, f"has {name}={values[name]}")
    decays = bool(values["weight_decay"])
    if others := [
        name for name in attributes_outside_config(optimizer) if decays or not name.startswith(_EXCLUDED_FROM_DECAY)
    ]:
        why = "exclude_from_weight_decay" if others[0].startswith(_EXCLUDED_FROM_DECAY) else others[0]
        raise _unsupported(kind, f"has {why}, which was set after the optimizer was created")
    rule, names = _RULES_OF_KERAS[kind]
    if rule == "momentum":
        rule = "nesterov" if values["nesterov"] and values["momentum"] else "momentum" if values["momentum"] else "sgd"
    if kind is keras.optimizers.Ftrl and schedule:  # Keras would scale all weights with the rate, see `FtrlUpdate`
        raise _unsupported(kind, f"has a schedule ({schedule['function']}) as its learning rate")
    if kind is keras.optimizers.Adagrad:  # Keras adds epsilon inside the root, the rule outside
        values["initial_accumulator_value"] += values["epsilon"]
        values["epsilon"] = SMALLEST_EPSILON
    own = {} if rule == "sgd" else {ours: values[name] for ours, name in names.items()}
    clipping = {"clip_norm": "clipnorm", "global_clip_norm": "global_clipnorm", "clip_value": "clipvalue"}
    return own | {
        "rule": rule,
        # A constant rate is set as it was written, before Keras rounded it to float32.
        "learning_rate": highest_rate(schedule["arguments"]) if schedule else float(str(np.float32(rate))),
        "weight_decay": float(values["weight_decay"] or 0.0),
        **{ours: values[name] for ours, name in clipping.items()},
    }


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


def _same(*names: str) -> dict[str, str]:
    return dict(zip(names, names))


_ADAM = {"momentum": "beta_1"} | _same("beta_2", "epsilon")
_FTRL = {"l1": "l1_regularization_strength", "l2": "l2_regularization_strength"}
# Keras's class → the equivalent rule ("momentum" stands for sgd, momentum or nesterov), and the rule's setting →
# Keras's setting.
_RULES_OF_KERAS: dict[type[keras.Optimizer], tuple[str, dict[str, str]]] = {
    keras.optimizers.SGD: ("momentum", _same("momentum")),
    keras.optimizers.Adam: ("adam", _ADAM),
    keras.optimizers.AdamW: ("adam", _ADAM),
    keras.optimizers.RMSprop: ("rmsprop", _same("momentum", "rho", "epsilon")),
    keras.optimizers.Adagrad: ("adagrad", _same("initial_accumulator_value", "epsilon")),
    keras.optimizers.Ftrl: ("ftrl", _FTRL | _same("learning_rate_power", "initial_accumulator_value")),
}
_EXCLUDED_FROM_DECAY = "_exclude_from_weight_decay"  # has no effect without weight decay
# Keras's settings that no rule of this package has → the value at which they have no effect.
_WITHOUT_EFFECT = {
    "amsgrad": False, "centered": False, "use_ema": False, "gradient_accumulation_steps": None, "loss_scale_factor": None,
    "l2_shrinkage_regularization_strength": 0.0, "beta": 0.0,
}  # fmt: skip


def _unsupported(kind: type[keras.Optimizer], why: str) -> ValueError:
    rules = ", ".join(rule for rule in RULES.names if rule != COMPILED)
    return ValueError(
        f"the optimizer of its compile() ({kind.__name__}) {why}, and no rule of this package is equivalent to "
        f"it: set optimizer.rule ({rules}) and optimizer.learning_rate"
    )
