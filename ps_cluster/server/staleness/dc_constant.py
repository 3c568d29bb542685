"""Staleness method dc_constant: delay compensation with a constant lambda."""

from __future__ import annotations

from pydantic import Field

from ps_cluster.config.equations import ArrivedParts, CorrectedParts
from ps_cluster.config.lazy import tf
from ps_cluster.config.setting_types import Factor
from ps_cluster.config.staleness_methods import StalenessMethod, StalenessSettings
from ps_cluster.server.staleness.correction import WithBackups


class ConstantSettings(StalenessSettings):
    # The paper's value (Zheng et al. 2017, arXiv:1609.08326).
    strength: Factor = Field(default=0.04, description="lambda in the paper.")


class ConstantDelayCompensation(WithBackups[ConstantSettings]):
    """DC-ASGD-c: g + lambda g*g*(w - w_bak), elementwise, where lambda is `strength`.

    Zheng et al. 2017, "Asynchronous Stochastic Gradient Descent with Delay Compensation", arXiv:1609.08326,
    algorithm 2.
    """

    def _corrected(self, gradient: tf.Tensor, moved: tf.Tensor, worker: tf.Tensor) -> tf.Tensor:
        return gradient + self._settings.strength * gradient * gradient * moved, None


class DcConstant(StalenessMethod[ConstantSettings]):
    name = "dc_constant"
    says = "delay compensation with a constant lambda"
    Settings = ConstantSettings
    correction = ConstantDelayCompensation

    def equation(self, settings: ConstantSettings, arrived: ArrivedParts) -> CorrectedParts:
        """Return g + lambda g*g*(w - w_bak)."""
        return CorrectedParts(arrived.gradient + settings.strength * arrived.gradient**2 * arrived.moved)
