"""Train a network here and by plain Keras on the same batches, and return how far the results are apart."""

from dataclasses import replace

import keras
import numpy as np
import tensorflow as tf

from ps_cluster.config.objectives import ArrayField, ExampleSpec
from ps_cluster.models.flat import flatten, statistics_of
from ps_cluster.models.pure import seed_states, seeds_of
from ps_cluster.models.user_networks import check_network
from tests.helpers.one_worker import Alone, OneWorker

UPDATES, BATCH = 4, 8
LAYERS = keras.layers
RNG = np.random.default_rng(0)
CLASSES = ("a", "b", "c")
SHAPES = {"row": (6,), "words": (3,), "image": (6, 6, 2)}
ROWS = {
    "row": RNG.normal(size=[UPDATES, BATCH, 6]).astype(np.float32),
    "words": RNG.integers(0, 7, [UPDATES, BATCH, 3]).astype(np.int32),
    "image": RNG.normal(size=[UPDATES, BATCH, 6, 6, 2]).astype(np.float32),
    "target": RNG.integers(0, 3, [UPDATES, BATCH]).astype(np.uint8),
    "weight": RNG.uniform(0, 2, [UPDATES, BATCH]).astype(np.float32),
}
SCORES = keras.losses.SparseCategoricalCrossentropy(from_logits=True)


def spec_of(*inputs, weighted=False):
    fields = {name: ArrayField(str(ROWS[name].dtype), SHAPES[name]) for name in inputs}
    return ExampleSpec(
        fields, ArrayField("uint8", ()), classes=CLASSES, weight=ArrayField("float32", ()) if weighted else None
    )


def stack(*layers, of="row"):
    """Return a network with one input: the layers, then scores."""
    return keras.Sequential([keras.Input(SHAPES[of], dtype=str(ROWS[of].dtype)), *layers, LAYERS.Dense(3)])


def differences(build, inputs, settings=None, *, optimizer=None, loss=SCORES, weighted=False, learned=None, **fit):
    """Train both from the same weights with the same random states. Return the largest difference of each update.

    Args:
      optimizer: Keras's optimizer. A parameter server applies the rule that the settings name. None: both use plain
        SGD.
      loss: the loss for Keras, unless the model is compiled already.
      learned: targets other than three classes: the fields of the specification, and the rows [UPDATES, BATCH, ...].
    """
    keras.utils.set_random_seed(0)
    fields, targets = learned or ({}, ROWS["target"])
    model, spec = build(), replace(spec_of(*inputs, weighted=weighted), **fields)
    check_network(model, spec)
    keras.utils.set_random_seed(1)
    plain = build()
    if not plain.built:
        check_network(plain, spec)
    plain.set_weights(model.get_weights())
    rows = {name: ROWS[name] for name in (*inputs, *["weight"] * weighted)} | {"target": targets}
    worker = (OneWorker if optimizer else Alone)(model, spec, rows, settings)
    own = plain._compile_loss
    given = {"loss": own._user_loss, "loss_weights": own._user_loss_weights} if own else {"loss": loss}
    plain.compile(optimizer or keras.optimizers.SGD(0.1), **given, run_eagerly=True)
    return [compared(worker, plain, inputs, rows, step, fit) for step in range(UPDATES)]


def compared(worker, plain, inputs, rows, step, fit):
    seeds = seeds_of(plain)
    states = seed_states(tf.constant([worker.config.training.seed, step]), len(seeds))
    for seed, state in zip(seeds, states, strict=True):
        seed.assign(state)
    given = {name: rows[name][step] for name in inputs}
    weight = rows["weight"][step] if "weight" in rows else None
    target = fit.get("target", lambda labels: labels)(rows["target"][step])
    class_weight = fit.get("class_weight")
    plain.train_on_batch(given if len(given) > 1 else given[inputs[0]], target, weight, class_weight)
    own = (flatten(plain.trainable_variables), flatten(statistics_of(plain)))
    found = worker.step(step)
    assert all(np.isfinite(one).all() for one in (*found, *own)), "Python's max would ignore NaN"
    return max(float(np.abs(one - other).max(initial=0)) for one, other in zip(found, own, strict=True))
