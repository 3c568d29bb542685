"""Use Keras callbacks with a cluster, early stopping among them: python examples/keras_callbacks.py"""

import csv

import keras
import numpy as np

import ps_cluster

draw = np.random.default_rng(0)
x = draw.normal(size=(5_000, 6)).astype("float32")
y = (x[:, 0] * x[:, 1] + 0.3 * draw.normal(size=len(x)) > 0).astype("int32")  # generated, and 10 % are hard to tell

model = keras.Sequential(
    [keras.Input((6,)), keras.layers.Dense(64, activation="relu"), keras.layers.Dense(1, activation="sigmoid")]
)
model.compile(keras.optimizers.Adam(0.01), "binary_crossentropy", metrics=["accuracy", keras.metrics.AUC(name="auc")])


class Largest(keras.callbacks.Callback):
    """A callback of this script: it sees the weights of each epoch."""

    def on_epoch_end(self, epoch, logs=None):
        print(
            f"after epoch {epoch + 1} the largest weight is {max(abs(w).max() for w in self.model.get_weights()):.2f}"
        )


history = ps_cluster.fit(
    model, x, y, validation_split=0.2, epochs=100, batch_size=32, workers=2, verbose=0,
    callbacks=[
        keras.callbacks.EarlyStopping("val_auc", mode="max", patience=2, restore_best_weights=True),
        keras.callbacks.CSVLogger("epochs.csv"),
        Largest(),
    ],
)  # fmt: skip
with open("epochs.csv") as file:
    rows = list(csv.DictReader(file))
best = max(history.history["val_auc"])
score = model.evaluate(x[-1_000:], y[-1_000:], verbose=0, return_dict=True)
print(f"stopped after {len(rows)} scored epochs; restored AUC {score['auc']:.3f}, best {best:.3f}")
