"""Define the settings of Keras's schedules of the learning rate. This module does not import TensorFlow."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Self

from pydantic import Field, model_validator

from ps_cluster.config.schedules import ScheduleSettings
from ps_cluster.errors import did_you_mean

# Keras's schedule classes, with their arguments. In each of them, the rate at update n depends on n alone.
_OF_DECAY = ("initial_learning_rate", "decay_steps")
FUNCTIONS_OF_KERAS: dict[str, tuple[str, ...]] = {
    "CosineDecay": (*_OF_DECAY, "alpha", "warmup_target", "warmup_steps"),
    "CosineDecayRestarts": ("initial_learning_rate", "first_decay_steps", "t_mul", "m_mul", "alpha"),
    "ExponentialDecay": (*_OF_DECAY, "decay_rate", "staircase"),
    "InverseTimeDecay": (*_OF_DECAY, "decay_rate", "staircase"),
    "PiecewiseConstantDecay": ("boundaries", "values"),
    "PolynomialDecay": (*_OF_DECAY, "end_learning_rate", "power", "cycle"),
}
_RATES = ("initial_learning_rate", "warmup_target", "end_learning_rate", "values")  # arguments that are learning rates


def highest_rate(arguments: Mapping[str, Any]) -> float:
    """Return the highest learning rate among the arguments of a schedule."""
    given = (arguments.get(name) for name in _RATES)
    return max(float(rate or 0.0) for one in given for rate in (one if isinstance(one, list) else [one]))


class KerasSettings(ScheduleSettings):
    function: str = Field(description=f"Class in keras.optimizers.schedules: {', '.join(FUNCTIONS_OF_KERAS)}.")
    arguments: dict[str, float | bool | list[float] | None] = Field(
        description="The arguments of the class, e.g. {initial_learning_rate: 0.1, decay_steps: 1000}. The curve "
        "is scaled so that its highest rate is optimizer.learning_rate. If the schedule is from compile(), "
        "optimizer.learning_rate is set to the highest rate of the schedule."
    )

    @property
    def highest(self) -> float:
        """The highest learning rate among the arguments."""
        return highest_rate(self.arguments)

    @model_validator(mode="after")
    def _known(self) -> Self:
        if self.function not in FUNCTIONS_OF_KERAS:
            hint = did_you_mean(self.function, FUNCTIONS_OF_KERAS)
            raise ValueError(f"function: got '{self.function}': {hint}choose from {', '.join(FUNCTIONS_OF_KERAS)}")
        known = FUNCTIONS_OF_KERAS[self.function]
        if strange := [name for name in self.arguments if name not in known]:
            raise ValueError(f"arguments: {self.function} has no argument '{strange[0]}': it has {', '.join(known)}")
        if not self.highest > 0:
            raise ValueError(
                f"arguments: got {self.arguments}: the learning rates have to be numbers, at least one of them above 0"
            )
        return self
