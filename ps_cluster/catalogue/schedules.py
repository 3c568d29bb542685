"""The schedules of the learning rate: by what the peak rate is multiplied at an update."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import AfterValidator

from ps_cluster.catalogue.kinds import Kinds
from ps_cluster.catalogue.settings import Fraction, Section


class ScheduleSettings(Section):
    """The section `schedule` of a configuration. A schedule with settings of its own adds them in a subclass."""

    kind: Annotated[str, AfterValidator(lambda name: SCHEDULES.check_name(name))]
    warmup_fraction: Fraction
    start_factor: Fraction
    end_factor: Fraction


class Schedule:
    """A schedule. Subclass it, and override in what yours differs.

    Attributes:
      name: by which it is chosen.
      Settings: the section `schedule`, with the settings of its own.
      after_warmup: "module:function" of `after_warmup(settings, past)`: the factor, float32 [], behind the warm-up, where
        `past` goes from 0 to 1.
    """

    name = ""
    Settings: type[ScheduleSettings] = ScheduleSettings
    after_warmup: Any = None


class Constant(Schedule):
    name = "constant"
    after_warmup = "ps_cluster.training.schedules:constant"


class Triangle(Schedule):
    name = "triangle"
    after_warmup = "ps_cluster.training.schedules:triangle"


class Cosine(Schedule):
    name = "cosine"
    after_warmup = "ps_cluster.training.schedules:cosine"


CONSTANT = Constant()
TRIANGLE = Triangle()
COSINE = Cosine()

SCHEDULES: Kinds[Schedule] = Kinds("schedule", Schedule, "ps_cluster.catalogue.schedules", "ps_cluster.schedules")
