"""A network that the package knows nothing of, with the settings in which it differs from the defaults."""

from ps_cluster.config.lazy import keras
from ps_cluster.config.networks import Network
from ps_cluster.models.networks import pixels, scores


class Toy(Network):
    recipe = {"training": {"epochs": 2.0}, "optimizer": {"learning_rate": 0.01, "learning_rate_factors": []}}

    def build(self, examples, settings):
        image = examples.image(self.name)
        return keras.Sequential([*pixels(image), keras.layers.Flatten(), *scores(examples.outputs)])
