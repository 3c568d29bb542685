"""A step whose layers are in parts computes what a step of the whole network does, here with all parts in this process."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from ps_cluster.config import build_config
from ps_cluster.models.flat import FlatNetwork, flatten, statistics_of
from ps_cluster.models.width import WideNetwork
from ps_cluster.server.arrangement import Arrangement, Listed
from ps_cluster.server.initial_state import InitialState
from ps_cluster.server.store import ParameterStore
from ps_cluster.training.split_step import SplitStep
from tests.helpers.one_worker import PLAIN, GivenBatches
from tests.helpers.plain_keras import LAYERS, ROWS, SCORES, spec_of, stack
from tests.helpers.stores import eagerly, state_of

pytestmark = pytest.mark.slow

TOLERANCE = 1e-6
DEVICES = ["/device:CPU:0"] * 3
WIDTH = {"mode.name": "width", "cluster.workers": 3}


class GivenParts(GivenBatches, SplitStep):
    """A step in parts on rows that are given."""


def dense():
    return stack(
        LAYERS.Dense(9, "relu", kernel_regularizer="l2"), LAYERS.Dropout(0.5), LAYERS.Dense(8), LAYERS.Dense(2)
    )


def images():
    norm = LAYERS.BatchNormalization(momentum=0.7)
    return stack(
        LAYERS.Conv2D(7, 3, bias_regularizer="l1"), norm, LAYERS.Flatten(), LAYERS.Dense(5, "gelu"), of="image"
    )


def used_twice():
    row, twice = keras.Input([6]), LAYERS.Dense(6, "tanh")
    return keras.Model(row, LAYERS.Dense(3, "softmax")(twice(twice(row))))


def compiled():
    model = stack(LAYERS.Dense(5))
    model.compile(loss=SCORES)
    return model


def cut(model, least_units=3):
    network = FlatNetwork(model)
    return network, WideNetwork(network, DEVICES, least_units)


@pytest.mark.parametrize(
    ("build", "of", "settings"),
    [
        (dense, "row", {"optimizer.clip_value": 0.001}),
        (images, "image", {}),
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
    parts = GivenParts(*arguments, train_examples=1000, network=wide)
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
