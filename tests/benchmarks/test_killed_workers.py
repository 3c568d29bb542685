"""How updates are counted while workers are killed: on the device of this process, with fake workers."""

from random import Random

import numpy as np
import pytest
import tensorflow as tf

from benchmarks.killed_workers import CLASSES, COLUMNS, PAUSES_S, SHAPES, add_one, kill_workers, loss_of, row_of
from ps_cluster.config.networks import NETWORKS
from ps_cluster.config.objectives import ArrayField, ExampleSpec
from ps_cluster.models.build import build


class FakeWorker:
    def __init__(self, name, events):
        self._name, self._events = name, events

    def kill(self):
        self._events.append(("kill", self._name))

    def start(self):
        self._events.append(("start", self._name))


def killed(kills, seed):
    """Return the pauses, and what was done to three workers, in order."""
    pauses, events = [], []
    kill_workers(kills, Random(seed), [FakeWorker(name, events) for name in "abc"], sleep=pauses.append)
    return pauses, events


def test_each_killed_worker_is_started_again_before_another_one_is_killed():
    pauses, events = killed(40, seed=0)
    victims = [name for _, name in events[::2]]
    assert events == [event for name in victims for event in (("kill", name), ("start", name))]
    assert len(victims) == 40 and set(victims) == {"a", "b", "c"}
    assert len(pauses) == len(set(pauses)) == 40 and all(PAUSES_S[0] <= pause <= PAUSES_S[1] for pause in pauses)


def test_the_seed_decides_which_workers_are_killed_and_when():
    assert killed(10, seed=1) == killed(10, seed=1) != killed(10, seed=2)
    assert killed(0, seed=1) == ([], [])


def test_a_row_has_how_many_updates_the_variables_with_the_fewest_and_the_most_have_too_many():
    assert row_of(50, 1_200, [np.full([2, 3], 1_200, np.float32), np.full([4], 1_213, np.float32)]) == {
        "kills": 50, "scheduled": 1_200, "least": 0, "most": 13,
    }  # fmt: skip
    lost = row_of(1, 400, [np.array([399.0], np.float32), np.array([400.0], np.float32)])
    assert (lost["least"], lost["most"]) == (-1, 0)
    assert lost.keys() == COLUMNS.keys()


def test_the_counted_variables_are_the_weights_of_the_network():
    images = ExampleSpec(
        {"image": ArrayField("uint8", (32, 32, 3))}, ArrayField("uint8", ()), classes=tuple(map(str, range(CLASSES)))
    )
    network = build(NETWORKS["tutorial_cnn"].Settings(name="tutorial_cnn", precision="float32"), images, seed=0)
    assert tuple(tuple(weight.shape) for weight in network.trainable_variables) == SHAPES


def test_a_step_adds_exactly_1_to_each_variable_whatever_its_gradients_are():
    counts = [tf.Variable(tf.fill(shape, float(start))) for start, shape in enumerate(SHAPES)]
    for step in range(2):
        add_one(counts, tf.constant(step, tf.int64))
    assert [np.unique(count).tolist() for count in counts] == [[start + 2] for start in range(len(SHAPES))]


def test_the_images_and_labels_of_a_step_are_a_function_of_its_number():
    draw = np.random.default_rng(0)
    weights = [tf.Variable(draw.normal(scale=0.05, size=shape).astype(np.float32)) for shape in SHAPES]
    first, again, other = (float(loss_of(weights, tf.constant(step, tf.int64))) for step in (3, 3, 4))
    assert first == pytest.approx(again) and first != pytest.approx(other)
