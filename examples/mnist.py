"""Train a network of your own on MNIST, and stop when it is good enough: python examples/mnist.py"""

import sys

import ps_cluster

SMALL = "--small" in sys.argv  # a minute on generated pictures, as the tests run it


def build(examples, settings):
    """Return a small convolutional network: pixels in, a score for each class out."""
    import keras  # here, so that only the processes that train import it

    return keras.Sequential(
        [
            keras.Input(examples.image("digits").shape),
            keras.layers.Rescaling(1 / 255),
            keras.layers.Conv2D(32, 3, activation="relu"),
            keras.layers.MaxPooling2D(),
            keras.layers.Conv2D(64, 3, activation="relu"),
            keras.layers.MaxPooling2D(),
            keras.layers.Flatten(),
            keras.layers.Dropout(0.3),
            keras.layers.Dense(examples.outputs),
        ]
    )


def good_enough(score):
    """End the training once 99 % of the test digits are right."""
    return ps_cluster.STOP if (score.test_accuracy or 0) >= 0.99 else None


result = ps_cluster.train(
    model=build,
    data="synthetic" if SMALL else "mnist",
    workers=3,
    ps=1,
    mode="async",
    epochs=None if SMALL else 5,
    steps=30 if SMALL else None,
    batch_size=32 if SMALL else 128,
    settings={"optimizer.rule": "adam", "optimizer.learning_rate": 0.001, "optimizer.momentum": 0.9},
    on_evaluation=good_enough,
)
print(result)
print(f"mean staleness of an update: {result.ledger['staleness'].mean():.2f}")
result.plot().savefig(result.run_dir / "curves.png")
