"""Staleness method dc_constant."""

from __future__ import annotations

from pydantic import Field

from ps_cluster.catalogue.settings import Factor
from ps_cluster.catalogue.staleness import StalenessMethod, StalenessSettings
from ps_cluster.training.correction import WithBackups


class ConstantSettings(StalenessSettings):
    # The paper's value (Zheng et al. 2017, arXiv:1609.08326).
    strength: Factor = Field(default=0.04, description="lambda of the paper")


class ConstantDelayCompensation(WithBackups):
    """DC-ASGD-c: g + lambda g*g*(w - w_bak), elementwise; lambda is `strength`.

    Zheng et al. 2017, "Asynchronous Stochastic Gradient Descent with Delay Compensation", arXiv:1609.08326,
    algorithm 2.
    """

    def _corrected(self, gradient, moved, worker):
        return gradient + self._settings.strength * gradient * gradient * moved, None


class DcConstant(StalenessMethod):
    name = "dc_constant"
    says = "delay compensation with a constant lambda"
    Settings = ConstantSettings
    correction = ConstantDelayCompensation


DC_CONSTANT = DcConstant()
