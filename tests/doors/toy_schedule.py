"""A schedule that the package knows nothing of: one factor for all updates."""

from ps_cluster.config.lazy import tf
from ps_cluster.config.schedules import Schedule, ScheduleSettings


class Settings(ScheduleSettings):
    factor: float = 0.125


class Toy(Schedule):
    Settings = Settings

    def after_warmup(self, settings, past):
        return settings.factor * tf.ones_like(past)
