"""The base class of staleness methods: how a parameter server treats a gradient that comes from older weights.

The package's own are in ps_cluster/training/methods/, one file each.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

from pydantic import AfterValidator, Field

from ps_cluster.catalogue.kinds import Kinds
from ps_cluster.catalogue.settings import Section

if TYPE_CHECKING:
    from ps_cluster.catalogue.rules import RuleSettings
    from ps_cluster.config import RunConfig


class StalenessSettings(Section):
    """The section `staleness` of a configuration. A method adds settings of its own in a subclass."""

    method: Annotated[str, AfterValidator(lambda name: METHODS.check_name(name))] = Field(
        description="How stale gradients are corrected, in mode async."
    )


class StalenessMethod:
    """A way to treat stale gradients. Subclass it, and override the parts in which yours differs.

    Attributes:
      name: the name by which users choose it.
      says: one sentence for --help on what it does.
      Settings: the class of the section `staleness`, with this method's own settings.
      correction: the `training.correction.Correction` that corrects gradients in a slice, or "module:class" of it.
    """

    name = ""
    says = ""
    Settings: type[StalenessSettings] = StalenessSettings
    correction: Any = "ps_cluster.training.correction:Correction"

    def check(self, config: RunConfig) -> None:
        """Raise ValueError, with the setting and its value, for settings that do not fit together."""

    def optimizer(self, config: RunConfig) -> RuleSettings:
        """Return the optimizer settings that the parameter servers use."""
        return config.optimizer


METHODS: Kinds[StalenessMethod] = Kinds(
    "staleness method", StalenessMethod, "ps_cluster.training.methods", "ps_cluster.staleness_methods"
)
