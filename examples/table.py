"""Predict a number from the columns of a table, a regression: python examples/table.py"""

import sys

import numpy as np

import ps_cluster

SMALL = "--small" in sys.argv
ROWS = 4_000 if SMALL else 40_000


def flats():
    """Return generated flats, split into four fifths to train on and one to test on: size, rooms, age, floor → rent."""
    draw = np.random.default_rng(0)
    size = draw.uniform(20, 150, ROWS)
    rooms = np.clip(np.round(size / 28 + draw.normal(0, 0.6, ROWS)), 1, 6)
    age, floor = draw.uniform(0, 100, ROWS), draw.integers(0, 8, ROWS)
    rent = 200 + 9 * size + 40 * rooms - 3 * age + 0.02 * (age - 60).clip(0) ** 2 * size + 15 * floor
    rent += draw.normal(0, 40, ROWS)  # what no column tells
    x, y = np.stack([size, rooms, age, floor], axis=1).astype(np.float32), rent.astype(np.float32)
    first = ROWS * 4 // 5
    return {"x_train": x[:first], "y_train": y[:first], "x_test": x[first:], "y_test": y[first:]}


def build(examples, settings):
    """Return two hidden layers over standardised columns. `examples` knows the columns of the training rows."""
    import keras

    columns = examples.inputs["x"]
    return keras.Sequential(
        [
            keras.Input(columns.shape),
            keras.layers.Normalization(mean=columns.mean, variance=[value**2 for value in columns.std]),
            keras.layers.Dense(64, activation="relu"),
            keras.layers.Dense(64, activation="relu"),
            keras.layers.Dense(examples.outputs),
        ]
    )


result = ps_cluster.train(
    model=build,
    data=flats,
    workers=2,
    epochs=10,
    batch_size=64,
    settings={"optimizer.rule": "adam", "optimizer.learning_rate": 0.003, "optimizer.momentum": 0.9},
)
print(f"mean error of the rent: {result.history[-1]['test_error']:.0f}")
flat = np.array([[70, 3, 30, 2]], np.float32)
print(f"70 square metres, 3 rooms, 30 years, 2nd floor: {result.model.predict(flat, verbose=0).item():.0f}")
