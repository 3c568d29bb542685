"""The optimizer rule named `compiled`: a placeholder for the optimizer of the network's compile()."""

from __future__ import annotations

from pydantic import Field

from ps_cluster.config.optimizer_rules import OptimizerRule, RuleSettings
from ps_cluster.config.setting_types import COMPILED, LARGEST_FACTOR, Factor


class CompiledSettings(RuleSettings):
    """The settings in the section `optimizer` before they are completed with the values of the network's compile().

    A setting that is null gets its value from compile(). Any other value overrides that of compile().
    """

    learning_rate: float | None = Field(  # type: ignore[assignment]  # it is a number before training begins
        default=None, gt=0, le=LARGEST_FACTOR, description="The learning rate; null: the one of compile()."
    )
    weight_decay: Factor | None = Field(  # type: ignore[assignment]  # it is a number before training begins
        default=None, description="The weight decay; null: the one of compile()."
    )


class Compiled(OptimizerRule[CompiledSettings]):
    """Takes rule, learning rate, weight decay and clipping from compile(). Without compile(): adam at rate 0.001.

    This rule is a placeholder, which another rule replaces before any process starts
    (`launch.config_completion.complete_config`). So it has no update.
    """

    name = COMPILED
    Settings = CompiledSettings
    usual_rate = None
    staleness_method = COMPILED
