"""Define the base class of staleness methods: how a parameter server treats a gradient that is stale.

The package's own methods are in ps_cluster/server/staleness/, a file for each.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import ModuleType
from typing import TYPE_CHECKING, Annotated, Any, Generic, TypeVar

import numpy as np
from pydantic import AfterValidator, Field

from ps_cluster.config.equations import ArrivedParts, CorrectedParts, Slots
from ps_cluster.config.optimizer_rules import RuleSettings
from ps_cluster.config.registry import Named, Registry
from ps_cluster.config.setting_types import Section

if TYPE_CHECKING:
    from ps_cluster.config import RunConfig
    from ps_cluster.server.staleness.correction import Correction


class StalenessSettings(Section):
    """The section `staleness` of a configuration. A subclass adds the settings of one method."""

    method: Annotated[str, AfterValidator(lambda name: METHODS.check_name(name))] = Field(
        description="How parameter servers treat stale gradients."
    )


OwnSettings = TypeVar("OwnSettings", bound=StalenessSettings)


class StalenessMethod(Named, Generic[OwnSettings]):
    """A way to treat stale gradients. To write a method, subclass this class, and override the parts that differ.

    Attributes:
      name: the name by which users choose it.
      Settings: the class of the section `staleness`, with this method's own settings.
      correction: the class that corrects gradients in a shard; `server.staleness.correction.Correction` corrects nothing.
      works_by_row: whether the method suits embedding tables, because it leaves their rows unchanged or treats each row
        separately.
      suits_local_steps: whether the method also suits the weight differences that modes with local steps push.
    """

    suits_local_steps = works_by_row = False
    Settings: type[StalenessSettings] = StalenessSettings
    correction: type[Correction[OwnSettings]]

    def expected_classes(self) -> Mapping[str, type]:
        from ps_cluster.server.staleness.correction import Correction

        return {"correction": Correction}

    @property
    def drops(self) -> bool:
        """True if the method may drop gradients. Then even a healthy worker may have no update for a long time."""
        return self.correction.capabilities.drops

    def check(self, config: RunConfig) -> None:
        """Raise ValueError, with the setting and its value, for settings that do not fit together."""

    def optimizer(self, config: RunConfig) -> RuleSettings:
        """Return the optimizer settings that the parameter servers use."""
        return config.optimizer

    def equation(self, settings: OwnSettings, arrived: ArrivedParts) -> CorrectedParts | None:
        """Return the method's result for a gradient, computed in numpy, or None if there is no such equation.

        The proof of a run, the check of its updates, computes updates again with this equation.

        Args:
          settings: the section `staleness`, an object of `Settings`.
        """
        return None

    def gathered_gradients(self, config: RunConfig) -> int | None:
        """Return K if the shard gathers K gradients before it changes the weights by their mean, else None."""
        return None

    def pulled_weights(self, at_pull: Slots) -> np.ndarray:
        """Return the weights that a worker gets from a pull, float64 [k].

        `at_pull`: the shard's weights ("weights") and the variables `Correction.pull_state`, at the moment of the pull.
        """
        return at_pull["weights"]


def _home() -> ModuleType:
    from ps_cluster.server import staleness

    return staleness


METHODS: Registry[StalenessMethod[Any]] = Registry(
    "staleness method", StalenessMethod, _home, "ps_cluster.staleness_methods"
)
