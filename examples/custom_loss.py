"""Train with a loss of your own, for an estimate that is too low in one case of ten: python examples/custom_loss.py"""

import sys

import numpy as np

import ps_cluster

SMALL = "--small" in sys.argv
SHARE = 0.9


def waiting_times(count, seed):
    """Return generated waiting times [min] by hour of the day and day of the week."""
    draw = np.random.default_rng(seed)
    hour, day = draw.uniform(0, 24, count), draw.integers(0, 7, count)
    usual = 5 + 10 * np.exp(-((hour - 17) ** 2) / 8) + 3 * (day < 5)
    angle = 2 * np.pi * hour / 24
    x = np.stack([np.sin(angle), np.cos(angle), day < 5], axis=1)
    return x.astype(np.float32), (usual * draw.gamma(4, 1 / 4, count)).astype(np.float32)


def build(examples, settings):
    """Return a compiled network: its loss is what is trained for."""
    import keras

    def too_low_costs_more(wanted, estimate):
        """Return the pinball loss, whose minimum is the value that SHARE of all cases stay below."""
        missing = wanted - estimate
        return keras.ops.mean(keras.ops.maximum(SHARE * missing, (SHARE - 1) * missing), axis=-1)

    model = keras.Sequential(
        [
            keras.Input(examples.inputs["x"].shape),
            keras.layers.Dense(64, activation="relu"),
            keras.layers.Dense(64, activation="relu"),
            keras.layers.Dense(examples.outputs),
        ]
    )
    model.compile(loss=too_low_costs_more)
    return model


result = ps_cluster.train(
    model=build,
    data=(waiting_times(4_000 if SMALL else 40_000, seed=0), waiting_times(2_000, seed=1)),
    workers=2,
    epochs=10,
    batch_size=64,
    settings={"optimizer.rule": "adam", "optimizer.learning_rate": 0.003, "optimizer.momentum": 0.9},
)
x, waited = waiting_times(5_000, seed=2)
below = (waited <= result.model.predict(x, verbose=0)[:, 0]).mean()
print(f"{below:.0%} waited no longer than the network said ({SHARE:.0%} were asked for)")
