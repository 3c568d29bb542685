"""A network that the package knows nothing of: one dense layer."""

from ps_cluster.config.lazy import keras


def build(examples, settings):
    image = examples.image("toy")
    pixels = keras.Input(image.shape)
    x = keras.layers.Rescaling(1 / 255)(pixels)
    return keras.Model(pixels, keras.layers.Dense(examples.outputs)(keras.layers.Flatten()(x)))
