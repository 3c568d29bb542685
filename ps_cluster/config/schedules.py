"""Define the base class of learning-rate schedules. A schedule multiplies the highest rate by a factor for each update.

The package's own schedules are in ps_cluster/training/learning_rate.py.
"""

from __future__ import annotations

from itertools import pairwise
from types import ModuleType
from typing import Annotated, Any, Generic, TypeVar

from pydantic import AfterValidator, Field, field_validator

from ps_cluster.config.lazy import tf
from ps_cluster.config.registry import Named, Registry
from ps_cluster.config.setting_types import Fraction, Section

CONSTANT = "constant"  # the schedule whose factor is always 1
SMALLEST_SIDE = 16  # pixels: no side is scaled to less


class ImageScale(Section):
    """Scale the sides of images by `scale`, until the share `until` of the steps is done."""

    scale: float = Field(gt=0, le=1)
    until: Fraction

    def side(self, side: int) -> int:
        """Return the scaled length of a side, in pixels."""
        return min(side, max(SMALLEST_SIDE, round(side * self.scale)))


class ScheduleSettings(Section):
    """The section `schedule` of a configuration. A subclass adds the settings of one schedule."""

    kind: Annotated[str, AfterValidator(lambda name: SCHEDULES.check_name(name))] = Field(
        description="Shape of the learning rate after the warm-up."
    )
    warmup_fraction: Fraction = Field(description="Share of the steps in which the learning rate rises (warm-up).")
    start_factor: Fraction = Field(description="Learning rate of the first step, as a share of the highest.")
    end_factor: Fraction = Field(description="Learning rate of the last step, as a share of the highest.")
    image_scales: tuple[ImageScale, ...] = Field(
        strict=False,
        max_length=20,
        description="Train on smaller images at first: their sides are scaled by `scale`, to 16 pixels or more, until the "
        "share `until` of the steps is done. Only for networks that take images of any size.",
    )

    def left(self, done: float) -> float:
        """Return how much work is left after the share `done` of the steps.

        The work of a step is assumed to be proportional to the number of pixels in its images. The unit is the work of
        a whole training whose images all have the size that is in use after the share `done`.
        """
        left, now, begin = 0.0, None, done
        for until, size in (*((scale.until, scale.scale**2) for scale in self.image_scales), (1.0, 1.0)):
            if until > begin:
                now = now or size
                left += (until - begin) * size
                begin = until
        return left / (now or 1.0)

    @field_validator("image_scales")
    @classmethod
    def _in_order(cls, scales: tuple[ImageScale, ...]) -> tuple[ImageScale, ...]:
        shares = [scale.until for scale in scales]
        if any(later <= earlier for earlier, later in pairwise(shares)):
            raise ValueError(
                f"`until` has to grow from each entry to the next, got {', '.join(f'{share:g}' for share in shares)}"
            )
        return scales


OwnSettings = TypeVar("OwnSettings", bound=ScheduleSettings)


class Schedule(Named, Generic[OwnSettings]):
    """A schedule of the learning rate. To write one, subclass this class, and override the parts that differ.

    Attributes:
      name: the name by which users choose it.
      Settings: the class of the section `schedule`, with this schedule's own settings.
    """

    Settings: type[ScheduleSettings] = ScheduleSettings

    def after_warmup(self, settings: OwnSettings, past: tf.Tensor) -> tf.Tensor:
        """Return the factor that scales the highest learning rate after the warm-up, float32 [].

        `past`: how much of the training after the warm-up is done, from 0 to 1, as in `factor`.
        """
        raise NotImplementedError

    def factor(self, settings: OwnSettings, past: tf.Tensor, update: tf.Tensor) -> tf.Tensor:
        """Return the factor that scales the highest learning rate in an update after the warm-up, float32 [].

        Override `after_warmup` instead, unless the factor depends on the number of the update.

        Args:
          settings: the section `schedule`, an object of `Settings`.
          past: float32 [], how much of the training after the warm-up is done: 0 when it begins, 1 at the last update.
          update: int64 [], the number of the update, from 0.
        """
        return self.after_warmup(settings, past)


def _home() -> ModuleType:
    from ps_cluster.training import learning_rate

    return learning_rate


SCHEDULES: Registry[Schedule[Any]] = Registry("schedule", Schedule, _home, "ps_cluster.schedules")
