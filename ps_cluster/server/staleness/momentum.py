"""Staleness method momentum: the optimizer's momentum is lowered by the momentum that asynchrony adds."""

from __future__ import annotations

from ps_cluster.config.equations import ArrivedParts, CorrectedParts
from ps_cluster.config.optimizer_rules import RuleSettings
from ps_cluster.config.schema import RunConfig
from ps_cluster.config.staleness_methods import StalenessMethod, StalenessSettings
from ps_cluster.server.staleness.correction import Correction


class MomentumMethod(StalenessMethod[StalenessSettings]):
    name = "momentum"
    description = "the optimizer's momentum is lowered by the momentum that asynchrony adds"
    correction: type[Correction[StalenessSettings]] = Correction

    def equation(self, settings: StalenessSettings, arrived: ArrivedParts) -> CorrectedParts:
        """Return the gradient unchanged, because this method changes the settings of the optimizer rule instead."""
        return CorrectedParts(arrived.gradient)

    def check(self, config: RunConfig) -> None:
        if config.optimizer.momentum_if_any is None:
            raise ValueError(
                f"staleness.method: got 'momentum': optimizer.rule {config.optimizer.rule} has no momentum to correct"
            )

    def optimizer(self, config: RunConfig) -> RuleSettings:
        workers, wanted = config.chosen_mode.emulated_workers(config), config.optimizer.momentum_if_any
        if wanted is None:
            return config.optimizer  # `check` refuses it
        return config.optimizer.model_copy(update={"momentum": corrected_momentum(wanted, workers)})


def corrected_momentum(momentum: float, workers: int) -> float:
    """Return max(0, momentum - (1 - 1/M)), because asynchrony adds a momentum of about 1 - 1/M.

    Mitliagkas, Zhang, Hadjis and Re 2016, "Asynchrony begets Momentum", arXiv:1605.09774: if the step times of M
    workers are independent and exponentially distributed, the staleness is geometric, and in expectation

      w[t+1] - w[t] = (1 - 1/M) (w[t] - w[t-1]) - (learning rate / M) grad(w[t])

    With an explicit momentum mu, and s = 1 - 1/M, the steps d[t] = w[t+1] - w[t] follow

      d[t] = (mu + s) d[t-1] - mu s d[t-2] - (learning rate / M) grad(w[t])

    This function sets the leading coefficient mu + s to `momentum` and neglects the term of d[t-2]. It does not undo
    the factor 1/M of the learning rate. If s is above `momentum`, no momentum of 0 or more can compensate for it.

    Args:
      momentum: the wanted total momentum, from 0 to 1.
      workers: M, 1 or more, the number of workers, which are about equally fast.
    """
    return max(0.0, momentum - (1 - 1 / workers))
