"""Optimizer rule compiled: a placeholder for the optimizer with which a user's network was compiled."""

from __future__ import annotations

from pydantic import Field

from ps_cluster.config.optimizer_rules import OptimizerRule, RuleSettings
from ps_cluster.config.setting_types import LARGEST_FACTOR


class CompiledSettings(RuleSettings):
    learning_rate: float | None = Field(  # type: ignore[assignment]  # a number before anything is trained
        default=None, gt=0, le=LARGEST_FACTOR, description="The learning rate; null: that of compile()."
    )


class Compiled(OptimizerRule):
    """Takes rule, rate, weight decay and clipping from the network's compile(); without compile(), adam with 0.001.

    Another rule replaces this one before any process starts (`launch.local_run.complete_config`). So it has no update, and its
    staleness method stands for that of the other rule.
    """

    name = "compiled"
    Settings = CompiledSettings
    usual_rate = None
    staleness_method = "predict"
