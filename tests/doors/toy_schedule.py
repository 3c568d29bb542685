"""A schedule that the package knows nothing of, without TensorFlow in the launcher: it names its part in this file."""

from ps_cluster.catalogue.schedules import Schedule, ScheduleSettings


class Settings(ScheduleSettings):
    factor: float = 0.125


def flat(settings, past):
    import tensorflow as tf

    return settings.factor * tf.ones_like(past)


class Toy(Schedule):
    Settings = Settings
    after_warmup = f"{__file__}:flat"
