"""Move a Keras script to a cluster by changing one line: python examples/keras_fit.py"""

import sys

import keras
import numpy as np

import ps_cluster

SMALL = "--small" in sys.argv


def spirals(count, seed):
    """Return generated points of three spirals, and the spiral of each."""
    draw = np.random.default_rng(seed)
    arm, radius = draw.integers(0, 3, count), draw.uniform(0.1, 1, count)
    angle = 12 * radius + 2 * np.pi * arm / 3 + draw.normal(0, 0.3, count)
    return np.stack([radius * np.cos(angle), radius * np.sin(angle)], axis=1).astype("float32"), arm


@keras.saving.register_keras_serializable()
class Waves(keras.layers.Layer):
    """A layer of this script, which travels with the model."""

    def call(self, points):
        return keras.ops.concatenate([points, keras.ops.sin(3 * points), keras.ops.cos(3 * points)], axis=-1)


hidden = [keras.layers.Dense(96, activation="relu") for _ in range(2)]
model = keras.Sequential([keras.Input((2,)), Waves(), *hidden, keras.layers.Dense(3, activation="softmax")])
model.compile(keras.optimizers.Adam(0.01), "sparse_categorical_crossentropy", metrics=["accuracy"])

x, y = spirals(8_000 if SMALL else 100_000, seed=0)
# history = model.fit(x, y, validation_data=spirals(2_000, seed=1), epochs=5, batch_size=64)
history = ps_cluster.fit(model, x, y, validation_data=spirals(2_000, seed=1), epochs=5, batch_size=64, workers=2)

_, accuracy = model.evaluate(*spirals(5_000, seed=2), verbose=0)
print(f"the spiral of {accuracy:.1%} of new points was found; after each epoch: {history.history['val_accuracy']}")
