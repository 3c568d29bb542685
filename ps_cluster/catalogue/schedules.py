"""The learning-rate schedules: the factor of the peak rate at each update."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import AfterValidator

from ps_cluster.catalogue.kinds import Kinds
from ps_cluster.catalogue.settings import Fraction, Section


class ScheduleSettings(Section):
    """The section `schedule` of a configuration. A schedule adds settings of its own in a subclass."""

    kind: Annotated[str, AfterValidator(lambda name: SCHEDULES.check_name(name))]
    warmup_fraction: Fraction
    start_factor: Fraction
    end_factor: Fraction


class Schedule:
    """A schedule. Subclass it, and override the parts in which yours differs.

    Attributes:
      name: the name by which users choose it.
      Settings: the class of the section `schedule`, with this schedule's own settings.
      after_warmup: "module:function" of `after_warmup(settings, past)`, which returns the factor, float32 [], after the
        warm-up; `past` goes from 0 to 1.
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
