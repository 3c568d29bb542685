"""A step in parts computes what a step of the whole network does, here with all parts in this process.

The parts are stages of layers first, then layers that are cut by their units.
"""

import keras
import numpy as np
import pytest
import tensorflow as tf

from ps_cluster.config import build_config
from ps_cluster.models.flat import FlatNetwork, flatten, statistics_of
from ps_cluster.models.stages import StagedNetwork, blocks_of
from ps_cluster.models.user_networks import check_network
from ps_cluster.models.width import WideNetwork
from ps_cluster.server.arrangement import Arrangement, Listed
from ps_cluster.server.initial_state import InitialState
from ps_cluster.server.store import ParameterStore
from ps_cluster.training.placement import first_blocks
from ps_cluster.training.split_step import SplitStep
from tests.helpers.one_worker import PLAIN, GivenBatches
from tests.helpers.plain_keras import LAYERS, ROWS, SCORES, spec_of, stack
from tests.helpers.stores import eagerly, state_of

pytestmark = pytest.mark.slow

TOLERANCE = 1e-6
DEVICES = ["/device:CPU:0"] * 3
WIDTH = {"mode.name": "width", "cluster.workers": 3}


class GivenStep(GivenBatches, SplitStep):
    """A step in parts on rows that are given."""


class Losing(LAYERS.Layer):
    def call(self, row):
        self.add_loss(0.01 * keras.ops.sum(row**2))
        return row


def dropout():
    return stack(LAYERS.Dense(9), LAYERS.Dropout(0.5), LAYERS.Dense(9), LAYERS.Dropout(0.5), LAYERS.Dense(4))


def images():
    norm = LAYERS.BatchNormalization
    return stack(LAYERS.Conv2D(3, 3), norm(momentum=0.7), LAYERS.Conv2D(2, 3), norm(), LAYERS.Flatten(), of="image")


def residual():
    row = keras.Input([6])
    first = LAYERS.Dense(5, kernel_regularizer="l2")(row)
    inner = LAYERS.Dense(5, activation="gelu")(LAYERS.BatchNormalization()(first))
    return keras.Model(row, LAYERS.Dense(3)(Losing()(LAYERS.Add()([first, inner]))))


def two_inputs():
    row, words = keras.Input([6], name="row"), keras.Input([3], name="words", dtype="int32")
    both = LAYERS.Concatenate()([row, LAYERS.Flatten()(LAYERS.Embedding(7, 2)(words))])
    return keras.Model([words, row], LAYERS.Dense(3)(LAYERS.Dense(8)(both)))


def nested():
    inner = keras.Sequential([keras.Input([6]), LAYERS.Dense(5), LAYERS.BatchNormalization(), LAYERS.Dropout(0.3)])
    return stack(inner, LAYERS.Activation("gelu"), LAYERS.Dropout(0.3))


def compiled():
    model = stack(LAYERS.Dense(5))
    model.compile(loss=SCORES)
    return model


@eagerly()
def both(build, inputs, workers, settings=None, micro_batches=1, weighted=False):
    """Return the result of a step of the whole network, and the results of its stages."""
    keras.utils.set_random_seed(0)
    model, spec = build(), spec_of(*inputs, weighted=weighted)
    check_network(model, spec)
    config = build_config(overrides=PLAIN | {"training.steps": 20} | (settings or {}))
    rows = {name: ROWS[name] for name in (*inputs, "target", *["weight"] * weighted)}
    network = FlatNetwork(model)
    blocks = blocks_of(model)
    parted = StagedNetwork(network, blocks, first_blocks(blocks, (), workers), ["/device:CPU:0"] * workers)
    whole = GivenBatches(rows, config, network, spec, train_examples=1000)
    staged = GivenStep(
        rows, config, network, spec, train_examples=1000, network=parted, log=None, micro_batches=micro_batches
    )
    vectors = [flatten(model.trainable_variables), flatten(statistics_of(model))]
    lengths = [[part.layout.length for part in parted.parts], [part.statistics for part in parted.parts]]
    cut = [np.split(vector, np.cumsum(of)[:-1]) for vector, of in zip(vectors, lengths)]
    step = tf.constant(3, tf.int64)
    one = whole(step, *map(tf.constant, vectors))._asdict()
    given = (list(map(tf.constant, part)) for part in cut)
    return one, [part._asdict() for part in staged.by_parts(step, *given)]


def joined(stages, name):
    return np.concatenate([stage[name] for stage in stages])


def distance(one, stages):
    """Return the largest difference between the whole network's result and that of its stages."""
    pairs = [(one[name], joined(stages, name)) for name in ("gradient", "fresh")]
    pairs += [(one[name], stage[name]) for stage in stages for name in ("loss", "metric", "learning_rate")]
    return max(float(np.abs(a - b).max(initial=0)) for a, b in pairs)


@pytest.mark.parametrize(
    ("build", "inputs", "workers"),
    [
        (images, ["image"], 3),
        (residual, ["row"], 3),
        (two_inputs, ["row", "words"], 2),
        (nested, ["row"], 2),
        (compiled, ["row"], 2),
    ],
)
def test_stages_compute_the_gradient_statistics_and_loss_of_the_whole_network(build, inputs, workers):
    one, stages = both(build, inputs, workers)
    assert len(stages) == workers and all(len(stage["gradient"]) for stage in stages)
    assert distance(one, stages) < TOLERANCE


def test_micro_batches_have_the_mean_gradient_of_the_batch_also_with_weighted_examples():
    one, stages = both(lambda: stack(LAYERS.Dense(5), LAYERS.Dense(4)), ["row"], 3, micro_batches=4, weighted=True)
    assert distance(one, stages) < TOLERANCE


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("reduction", ["sum", "mean_with_sample_weight", "sum_over_batch_size"])
def test_micro_batches_have_the_gradient_of_the_batch_however_the_loss_is_reduced(reduction, weighted):
    def model():
        made = stack(LAYERS.Dense(5))
        made.compile(loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True, reduction=reduction))
        return made

    one, stages = both(model, ["row"], 2, micro_batches=4, weighted=weighted)
    assert distance(one, stages) < TOLERANCE * max(1, float(one["loss"]))


def test_micro_batches_draw_different_dropout_and_normalise_each_by_itself():
    assert distance(*both(dropout, ["row"], 2, micro_batches=2)) > TOLERANCE
    one, stages = both(images, ["image"], 2, micro_batches=2)
    own, fresh = joined(stages, "fresh"), one["fresh"].numpy()
    assert np.allclose(own[:3], fresh[:3], atol=TOLERANCE), "the mean of two halves' means is that of the batch"
    assert not np.allclose(own[3:6], fresh[3:6], atol=TOLERANCE), "the variances within halves are smaller"


def test_each_stage_draws_its_own_dropout_and_clips_its_own_variables():
    one, stages = both(dropout, ["row"], 3, {"optimizer.clip_norm": 0.01})
    assert distance(one, stages) < TOLERANCE
    assert float(tf.reduce_max(tf.abs(one["gradient"]))) <= 0.01


def dense():
    return stack(
        LAYERS.Dense(9, "relu", kernel_regularizer="l2"), LAYERS.Dropout(0.5), LAYERS.Dense(8), LAYERS.Dense(2)
    )


def wide_images():
    norm = LAYERS.BatchNormalization(momentum=0.7)
    return stack(
        LAYERS.Conv2D(7, 3, bias_regularizer="l1"), norm, LAYERS.Flatten(), LAYERS.Dense(5, "gelu"), of="image"
    )


def used_twice():
    row, twice = keras.Input([6]), LAYERS.Dense(6, "tanh")
    return keras.Model(row, LAYERS.Dense(3, "softmax")(twice(twice(row))))


def cut(model, least_units=3):
    network = FlatNetwork(model)
    return network, WideNetwork(network, DEVICES, least_units)


@pytest.mark.parametrize(
    ("build", "of", "settings"),
    [
        (dense, "row", {"optimizer.clip_value": 0.001}),
        (wide_images, "image", {}),
        (used_twice, "row", {}),
        (compiled, "row", {}),
    ],
)
@eagerly()
def test_parts_compute_the_gradient_statistics_and_loss_of_the_whole_network(build, of, settings):
    keras.utils.set_random_seed(0)
    model, spec = build(), spec_of(of)
    network, wide = cut(model)
    arguments = (
        {name: ROWS[name] for name in (of, "target")},
        build_config(overrides=PLAIN | WIDTH | {"training.steps": 20} | settings), network, spec,
    )  # fmt: skip
    whole = GivenBatches(*arguments, train_examples=1000)
    parts = GivenStep(*arguments, train_examples=1000, network=wide, log=None)
    vectors = flatten(model.trainable_variables), flatten(statistics_of(model))
    starts = InitialState(vectors[0], vectors[0], vectors[1], network.keep).cut(
        [part.positions for part in parts.parts], [part.statistics for part in parts.parts]
    )
    step = tf.constant(3, tf.int64)
    one = whole(step, *map(tf.constant, vectors))._asdict()
    given = [[tf.constant(getattr(start, name)) for start in starts] for name in ("weights", "statistics")]
    several = [part._asdict() for part in parts.by_parts(step, *given)]

    together, positions = np.empty_like(vectors[0]), [part.positions for part in wide.parts]
    together[np.concatenate(positions)] = np.concatenate([result["gradient"] for result in several])
    pairs = [(one["gradient"], together), (one["fresh"], np.concatenate([result["fresh"] for result in several]))]
    pairs += [(one[name], result[name]) for result in several for name in ("loss", "metric", "learning_rate")]
    assert max(float(np.abs(a - b).max(initial=0)) for a, b in pairs) < TOLERANCE
    assert all(map(len, positions)) and np.abs(together).max() > 0


def test_each_device_has_its_units_of_kernel_and_bias_and_the_first_one_the_layers_that_stay_whole():
    model = stack(LAYERS.Dense(4, name="wide"))
    model.layers[-1].name = "narrow"
    network = FlatNetwork(model)
    wide = WideNetwork(network, ["/device:CPU:0"] * 2, 4)
    kernel, bias = np.arange(24).reshape(6, 4), 24 + np.arange(4)
    assert wide.parts[1].positions.tolist() == [*kernel[:, 2:].ravel(), *bias[2:]]
    assert wide.parts[0].positions.tolist() == [*kernel[:, :2].ravel(), *bias[:2], *range(28, 28 + 4 * 3 + 3)]
    assert [part.layers for part in wide.parts] == ["wide 0-1; whole: narrow", "wide 2-3"]


@pytest.mark.parametrize(
    "layer",
    [
        LAYERS.Dense(4, "softmax"),
        LAYERS.Dense(4, activity_regularizer="l2"),
        LAYERS.Dense(4, trainable=False),
        LAYERS.Dense(2),
    ],
)
def test_a_layer_whose_outputs_are_not_each_of_one_unit_stays_whole(layer):
    layer.name = "whole"
    _, wide = cut(stack(layer, LAYERS.Dense(5, name="in_parts")), 4)
    assert list(wide.cut) == ["in_parts"]


def test_a_grouped_convolution_stays_whole():
    grouped = LAYERS.Conv2D(9, 1, groups=3), LAYERS.Flatten()
    _, wide = cut(stack(LAYERS.Conv2D(6, 1, name="in_parts"), *grouped, of="image"), 4)
    assert list(wide.cut) == ["in_parts"]


@pytest.mark.parametrize(
    ("layers", "says"),
    [
        ([LAYERS.Dense(3)], "no Dense or convolution layer with 4 units or more that can be cut"),
        ([LAYERS.BatchNormalization()], "no Dense or convolution layer"),
    ],
)
def test_a_network_that_has_nothing_to_cut_is_refused(layers, says):
    with pytest.raises(ValueError, match=says):
        cut(stack(*layers), 4)


def test_a_start_is_cut_by_positions_and_its_statistics_by_their_numbers():
    weights, statistics = np.arange(4, dtype=np.float32), np.arange(6, dtype=np.float32)
    positions = [np.array([3]), np.array([0, 2]), np.array([1])]
    parts = InitialState(weights, weights * 10, statistics, statistics * 10).cut(positions, [1, 2, 3])
    assert [part.weights.tolist() for part in parts] == [[3], [0, 2], [1]]
    assert [part.factors.tolist() for part in parts] == [[30], [0, 20], [10]]
    assert [part.statistics.tolist() for part in parts] == [[0], [1, 2], [3, 4, 5]]
    assert [part.keep.tolist() for part in parts] == [[0], [10, 20], [30, 40, 50]]


@eagerly()
def test_a_store_in_parts_saves_its_vectors_in_the_order_of_the_network_and_takes_them_back():
    weights = np.arange(5, dtype=np.float32)
    positions = [np.array([0, 3]), np.array([4, 1, 2])]
    config = build_config(overrides={"optimizer.rule": "momentum", "training.steps": 4, "cluster.wire": "float32"})
    parts = InitialState(weights, np.ones_like(weights), weights[:0], weights[:0]).cut(positions, [0, 0])
    arrangement = Arrangement([[Listed(of_part)] for of_part in positions])
    store = ParameterStore(["/device:CPU:0"] * 2, parts, config=config, total_steps=4, arrangement=arrangement)
    saved = state_of(store)
    assert saved["weights"].tolist() == weights.tolist()
    slots = [name for name in saved if name.startswith("slot_")]
    assert slots
    changed = saved | dict.fromkeys(("weights", *slots), weights * 2)
    store.restore(changed)
    assert all(state_of(store)[name].tolist() == (weights * 2).tolist() for name in ("weights", *slots))
    held = store.shards[1].checkpoint.snapshot(0, 0).arrays
    assert all(held[name].tolist() == [8, 2, 4] for name in ("weights", *slots))
