"""Optimizer rule nesterov."""

from __future__ import annotations

from ps_cluster.catalogue.rules import OptimizerRule
from ps_cluster.training.rules.momentum import MomentumSettings, MomentumUpdate


class NesterovUpdate(MomentumUpdate):
    """v as with `MomentumUpdate`; w += momentum x v - learning rate x g."""

    looks_ahead = True


class Nesterov(OptimizerRule):
    name = "nesterov"
    Settings = MomentumSettings
    update = NesterovUpdate


NESTEROV = Nesterov()
