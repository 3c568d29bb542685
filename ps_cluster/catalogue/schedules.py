"""The base class of learning-rate schedules: the factor of the peak rate at each update.

The package's own are in ps_cluster/training/schedules/, one file each.
"""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import AfterValidator, Field

from ps_cluster.catalogue.kinds import Kinds
from ps_cluster.catalogue.lazily import tf
from ps_cluster.catalogue.settings import Fraction, Section


class ScheduleSettings(Section):
    """The section `schedule` of a configuration. A schedule adds settings of its own in a subclass."""

    kind: Annotated[str, AfterValidator(lambda name: SCHEDULES.check_name(name))] = Field(
        description="How the learning rate goes on after it has risen."
    )
    warmup_fraction: Fraction = Field(description="Share of the steps in which the learning rate rises.")
    start_factor: Fraction = Field(description="Learning rate of the first step, as a share of the highest.")
    end_factor: Fraction = Field(description="Learning rate of the last step, as a share of the highest.")


class Schedule:
    """A schedule. Subclass it, and override the parts in which yours differs.

    Attributes:
      name: the name by which users choose it.
      Settings: the class of the section `schedule`, with this schedule's own settings.
    """

    name = ""
    Settings: type[ScheduleSettings] = ScheduleSettings

    def after_warmup(self, settings: Any, past: tf.Tensor) -> tf.Tensor:
        """Return the factor, float32 [], after the warm-up; `past`, float32 [], goes from 0 to 1."""
        raise NotImplementedError


SCHEDULES: Kinds[Schedule] = Kinds("schedule", Schedule, "ps_cluster.training.schedules", "ps_cluster.schedules")
