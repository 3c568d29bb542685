"""A step through several stages computes what a step of the whole network does, here with all stages in this process."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from ps_cluster.config import build_config
from ps_cluster.models.flat import FlatNetwork, flatten, statistics_of
from ps_cluster.models.stages import StagedNetwork, blocks_of
from ps_cluster.models.user_networks import check_network
from ps_cluster.training.placement import first_blocks
from ps_cluster.training.split_step import SplitStep
from tests.helpers.one_worker import PLAIN, GivenBatches
from tests.helpers.plain_keras import LAYERS, ROWS, SCORES, spec_of, stack
from tests.helpers.stores import eagerly

pytestmark = pytest.mark.slow

TOLERANCE = 1e-6


class GivenStages(GivenBatches, SplitStep):
    """A staged step on rows that are given."""


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
    staged = GivenStages(rows, config, network, spec, train_examples=1000, network=parted, micro_batches=micro_batches)
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
