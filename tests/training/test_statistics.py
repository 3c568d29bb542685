"""The moving statistics of normalisation: within the range of what the batches had, however stale the steps are."""

from collections import deque

import keras
import numpy as np
import pytest
import tensorflow as tf

from ps_cluster.config import build_config
from ps_cluster.config.objectives import ArrayField, ExampleSpec
from ps_cluster.models.flat import FlatNetwork, flatten, kept_shares, statistics_of
from ps_cluster.server.initial_state import InitialState
from ps_cluster.server.store import StepPush
from ps_cluster.training.modes.elastic import LocalSteps
from ps_cluster.training.modes.sync_ps import RoundShard
from ps_cluster.training.step import StepResult
from tests.helpers.stores import LENGTH, NO_EXAMPLES, make_store, pull, row, state_of

pytestmark = pytest.mark.slow

CHANNELS = 3
ROUNDING = 1e-4
MOMENTA = (0.9, 0.5, 0.99)


def two_way_norms(momenta=MOMENTA):
    """Normalisations beside each other, so that all see the same images."""
    images = keras.Input([2, 2, CHANNELS])
    norms = [keras.layers.BatchNormalization(momentum=momentum)(images) for momentum in momenta]
    return keras.Model(images, keras.layers.Concatenate()(norms))


class Workers:
    """Steps of a network of normalisations, pushed to a store `staleness` updates after the one that they have pulled."""

    def __init__(self, network, *, staleness, local_steps=1, updates):
        self._network, self._staleness, self._updates = network, staleness, updates
        generator = np.random.default_rng(0)
        batches = updates * local_steps
        shift, scale = generator.normal(size=[2, batches, 1, 1, 1, CHANNELS])
        self.images = (shift + scale * generator.normal(size=[batches, 4, 2, 2, CHANNELS])).astype(np.float32)
        length = len(network.keep)
        self.store = make_store(statistics=length, keep=network.keep**local_steps, steps=updates)
        config = build_config(None, {"mode.name": "elastic", "optimizer.rule": "sgd", "mode.local_steps": local_steps})
        ones = np.ones(1, np.float32)
        local = LocalSteps(self._one_step, config, InitialState(ones, ones, ones, ones), network.keep)
        nothing = tf.zeros([LENGTH])
        # As graphs: a critical section outside of one is built anew every time.
        self._pull, self._compute, self._push = (
            tf.function(part, autograph=False)
            for part in (
                lambda: (lambda pulled: (pulled.statistics, pulled.versions))(pull(self.store)),
                lambda step, statistics: local(step, tf.zeros([2, 1]), statistics).fresh,
                lambda step, versions, fresh: self.store.push(StepPush(step, versions, nothing, fresh, row())),
            )
        )

    def _one_step(self, step, weights, statistics):
        ones = tf.ones([self._network.weights.length])
        images = {"image": tf.gather(self.images, step)}
        passed = self._network.forward(ones, statistics, images, tf.constant([0, 0]))
        nothing = tf.constant(0.0)
        return StepResult(weights, passed.fresh, nothing, nothing, nothing, *NO_EXAMPLES)

    def run(self):
        """Return float32 [updates, statistics]: as they are after every update."""
        under_way, seen = deque(), []
        for step in range(self._updates):
            step = tf.constant(step, tf.int64)
            statistics, versions = self._pull()
            under_way.append((step, versions, self._compute(step, statistics)))
            if len(under_way) > self._staleness:
                self._push(*under_way.popleft())
                seen.append(self.store.snapshot([0], closed=0)[0]["statistics"])  # as a graph, too
        return np.array(seen)

    def range(self):
        """Return (lowest, highest), each [statistics]: of 0, where they begin, and of all batches."""
        pixels = self.images.reshape(len(self.images), -1, CHANNELS)
        of_batches = np.concatenate([pixels.mean(1), pixels.var(1)], axis=1)
        of_batches = np.tile(of_batches, len(self._network.keep) // of_batches.shape[1])
        return np.minimum(of_batches.min(0), 0) - ROUNDING, np.maximum(of_batches.max(0), 0) + ROUNDING

    def stay_in_range(self):
        lowest, highest = self.range()
        seen = self.run()
        return bool(np.all((lowest <= seen) & (seen <= highest)))


def test_statistics_stay_within_those_of_the_batches_at_a_large_staleness():
    assert Workers(FlatNetwork(two_way_norms()), staleness=64, local_steps=16, updates=150).stay_in_range()


def test_a_plain_change_added_to_later_statistics_would_leave_that_range():
    network = FlatNetwork(two_way_norms((0.9,)))
    network.keep = np.ones_like(network.keep)  # what is fresh is then the change that the step saw
    assert not Workers(network, staleness=8, local_steps=4, updates=150).stay_in_range()


def test_without_staleness_they_are_those_of_keras():
    model = two_way_norms()
    workers = Workers(FlatNetwork(model), staleness=0, local_steps=4, updates=5)
    workers.store.restore(state_of(workers.store) | {"statistics": flatten(statistics_of(model))})
    last = workers.run()[-1]
    for images in workers.images:
        model(images, training=True)
    assert last == pytest.approx(flatten(statistics_of(model)), rel=1e-4, abs=1e-5)


def test_each_statistic_is_kept_by_its_own_layers_momentum_frozen_weights_whole_and_others_not_at_all():
    inner = keras.Sequential([keras.Input([2]), keras.layers.BatchNormalization(momentum=0.7)])
    outer = [keras.layers.BatchNormalization(momentum=0.9), inner, keras.layers.Normalization()]
    model = keras.Sequential([keras.Input([2]), *outer, keras.layers.Dense(2), keras.layers.BatchNormalization()])
    for layer in model.layers[-2:]:
        layer.trainable = False
    expected = np.repeat([0.9, 0.7, 0.0, 1.0], [4, 4, 4, 6 + 8])
    assert kept_shares(model) == pytest.approx(expected)


def test_a_round_takes_in_the_mean_of_what_is_fresh():
    store = make_store(kind=RoundShard, values={"mode.name": "sync-ps"}, keep=[0.5, 0.9, 1.0], steps=2, rule="sgd")
    expected = np.zeros(3)
    for update in range(2):
        pulled = pull(store)
        for worker, fresh in enumerate((1.0, 2.0, 6.0)):
            step = tf.constant(3 * update + worker, tf.int64)
            store.push(StepPush(step, pulled.versions, tf.zeros([LENGTH]), tf.fill([3], fresh), row(worker=worker)))
        expected = np.array([0.5, 0.9, 1.0]) * expected + 3
    assert state_of(store)["statistics"] == pytest.approx(expected)


def test_a_statistic_that_was_adapted_before_and_that_no_batch_changes_is_kept_as_a_whole():
    """Whoever computes with the network knows it: the workers' push would differ from what the proof computes again."""
    adapted = keras.layers.Normalization()
    adapted.adapt(np.arange(12.0, dtype=np.float32).reshape(6, 2))
    model = keras.Sequential([keras.Input([2]), adapted, keras.layers.Dense(3)])
    spec = ExampleSpec({"row": ArrayField("float32", (2,))}, ArrayField("uint8", ()), classes=("a", "b", "c"))
    network = FlatNetwork(model)
    assert network.has_changing_statistics, "only its graph tells that no batch changes them"
    network.count_calls(spec)
    np.testing.assert_array_equal(network.keep, np.ones(4))
    assert not network.has_changing_statistics
