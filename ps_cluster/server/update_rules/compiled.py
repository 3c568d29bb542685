"""Optimizer rule compiled: a placeholder for the optimizer that a user's network was compiled with."""

from __future__ import annotations

from pydantic import Field

from ps_cluster.config.optimizer_rules import OptimizerRule, RuleSettings
from ps_cluster.config.setting_types import LARGEST_FACTOR


class CompiledSettings(RuleSettings):
    learning_rate: float | None = Field(  # type: ignore[assignment]  # a number before anything is trained
        default=None, gt=0, le=LARGEST_FACTOR, description="The learning rate; null: that of compile()."
    )


class Compiled(OptimizerRule):
    """The rule, rate, weight decay and clipping of the network's compile(); without one, adam with 0.001.

    Other rules replace it before processes start (`launch.local_run.complete_config`), so it has no update of its own, and
    its staleness method stands for theirs.
    """

    name = "compiled"
    Settings = CompiledSettings
    usual_rate = None
    staleness_method = "predict"
