"""The staleness methods: how a parameter server treats a gradient that was computed from older weights."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

from pydantic import AfterValidator, Field

from ps_cluster.catalogue.kinds import Kinds
from ps_cluster.catalogue.settings import Factor, Fraction, Section

if TYPE_CHECKING:
    from ps_cluster.catalogue.rules import RuleSettings
    from ps_cluster.config import RunConfig


class StalenessSettings(Section):
    """The section `staleness` of a configuration. A method adds settings of its own in a subclass."""

    method: Annotated[str, AfterValidator(lambda name: METHODS.check_name(name))]


class StalenessMethod:
    """A way to treat stale gradients. Subclass it, and override the parts in which yours differs.

    Attributes:
      name: the name by which users choose it.
      says: one sentence for --help on what it does.
      Settings: the class of the section `staleness`, with this method's own settings.
      correction: "module:class" of the `training.staleness.Correction` that corrects gradients in a slice.
    """

    name = ""
    says = ""
    Settings: type[StalenessSettings] = StalenessSettings
    correction: Any = "ps_cluster.training.staleness:Correction"

    def check(self, config: RunConfig) -> None:
        """Raise ValueError, with the setting and its value, for settings that do not fit together."""

    def optimizer(self, config: RunConfig) -> RuleSettings:
        """Return the optimizer settings that the parameter servers use."""
        return config.optimizer


class Nothing(StalenessMethod):
    name = "none"
    says = "stale gradients are applied as they are"


class Inverse(StalenessMethod):
    name = "inverse"
    says = "a gradient counts for 1 / staleness"
    correction = "ps_cluster.training.staleness:InverseStaleness"


class ConstantSettings(StalenessSettings):
    # The paper's value (Zheng et al. 2017, arXiv:1609.08326).
    strength: Factor = Field(default=0.04, description="lambda of the paper")


class DcConstant(StalenessMethod):
    name = "dc_constant"
    says = "delay compensation with a constant lambda"
    Settings = ConstantSettings
    correction = "ps_cluster.training.staleness:ConstantDelayCompensation"


class AdaptiveSettings(StalenessSettings):
    strength: Factor = Field(default=2.0, description="lambda_0 of the paper")
    decay: Fraction = Field(default=0.95, description="of the running mean square of the gradients")


class DcAdaptive(StalenessMethod):
    name = "dc_adaptive"
    says = "delay compensation with a lambda of each weight"
    Settings = AdaptiveSettings
    correction = "ps_cluster.training.staleness:AdaptiveDelayCompensation"


class GapAware(StalenessMethod):
    name = "gap_aware"
    says = "a gradient counts for less, the further the weights have moved since its pull"
    correction = "ps_cluster.training.staleness:GapAware"


class CorrectedMomentum(StalenessMethod):
    name = "momentum"
    says = "the optimizer's momentum is lowered by what asynchrony adds"

    def check(self, config: RunConfig) -> None:
        if not hasattr(config.optimizer, "momentum"):
            raise ValueError(
                f"staleness.method: got 'momentum': optimizer.rule {config.optimizer.rule} has none to correct"
            )

    def optimizer(self, config: RunConfig) -> RuleSettings:
        from ps_cluster.catalogue.modes import MODES

        workers = MODES[config.mode.name].emulated_workers(config)
        return config.optimizer.model_copy(
            update={"momentum": corrected_momentum(config.optimizer.momentum, workers)}  # type: ignore[attr-defined]
        )


def corrected_momentum(momentum: float, workers: int) -> float:
    """Return max(0, momentum - (1 - 1/M)), since asynchrony adds about 1 - 1/M of momentum.

    Mitliagkas, Zhang, Hadjis and Re 2016, "Asynchrony begets Momentum", arXiv:1605.09774: if the step times of M
    workers are independent and exponentially distributed, the staleness is geometric, and in expectation

      w[t+1] - w[t] = (1 - 1/M) (w[t] - w[t-1]) - (learning rate / M) grad(w[t])

    With an explicit momentum mu, and s = 1 - 1/M, the steps d[t] = w[t+1] - w[t] follow

      d[t] = (mu + s) d[t-1] - mu s d[t-2] - (learning rate / M) grad(w[t])

    This sets the leading coefficient mu + s to `momentum` and neglects the term of d[t-2]. It does not undo the factor
    1/M of the learning rate. Where s is above `momentum`, no momentum of 0 or more can make up for it.

    Args:
      momentum: 0..1, the total momentum wanted.
      workers: M, 1 or more, with about the same speed.
    """
    return max(0.0, momentum - (1 - 1 / workers))


NONE = Nothing()
INVERSE = Inverse()
DC_CONSTANT = DcConstant()
DC_ADAPTIVE = DcAdaptive()
GAP_AWARE = GapAware()
MOMENTUM = CorrectedMomentum()

METHODS: Kinds[StalenessMethod] = Kinds(
    "staleness method", StalenessMethod, "ps_cluster.catalogue.staleness", "ps_cluster.staleness_methods"
)
