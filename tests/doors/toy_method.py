"""A staleness method that the package knows nothing of: it counts the gradients, in a slot of the checkpoint."""

from ps_cluster.config.lazy import tf
from ps_cluster.config.staleness_methods import StalenessMethod, StalenessSettings
from ps_cluster.server.staleness.correction import Correction


class Settings(StalenessSettings):
    step: float = 1.0


class Counting(Correction):
    def __init__(self, *arguments):
        super().__init__(*arguments)
        self.slots = {"toy": tf.Variable(0.0)}

    def correct(self, gradient, arrival):
        with tf.control_dependencies([self.slots["toy"].assign_add(self._settings.step, read_value=False)]):
            return tf.identity(gradient), None


class Toy(StalenessMethod):
    Settings = Settings
    correction = Counting
