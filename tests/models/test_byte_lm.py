"""The decoder for text, and the head of next bytes."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from ps_cluster.config.networks import NETWORKS
from ps_cluster.config.objectives import OBJECTIVES, ArrayField, ExampleSpec
from ps_cluster.errors import UserError
from ps_cluster.evaluation.continuing import bytes_after
from ps_cluster.evaluation.text_sampling import Sampling
from ps_cluster.models.build import build
from ps_cluster.models.compiled_heads import head_of
from ps_cluster.models.saved import predicting
from tests.helpers.one_worker import Alone
from tests.helpers.plain_keras import SCORES

WINDOW = 6
PLACES = ArrayField("uint8", (WINDOW,), codes=(256,) * WINDOW)
SPEC = ExampleSpec({"text": PLACES}, PLACES, "next-byte")
SMALL = {"blocks": 1, "units": 16, "heads": 2}


def settings(**given):
    return NETWORKS["byte_lm"].Settings(name="byte_lm", precision="float32", **SMALL | given)


@pytest.fixture(scope="module")
def model():
    return build(settings(), SPEC, seed=0)


def draw(*shape, most=256):
    return np.random.default_rng(len(shape)).integers(0, most, shape).astype(np.uint8)


def test_a_place_sees_itself_and_those_before_and_none_after(model):
    text = draw(1, WINDOW)
    before = np.asarray(model(text)).reshape(WINDOW, 256)
    for place in range(WINDOW):
        changed = text.copy()
        changed[0, place] ^= 1
        apart = np.abs(np.asarray(model(changed)).reshape(WINDOW, 256) - before).max(1)
        assert (apart[:place] == 0).all() and (apart[place:] > 1e-7).all()


def test_the_same_byte_at_another_place_is_something_else(model):
    found = np.asarray(model(np.full((1, WINDOW), 65, np.uint8))).reshape(WINDOW, 256)
    assert np.abs(np.diff(found, axis=0)).max(1).min() > 1e-3


def test_other_examples_and_heads_that_do_not_divide_the_units_are_refused():
    images = ExampleSpec({"image": ArrayField("uint8", (32, 32, 3))}, ArrayField("uint8", ()), classes=("a", "b"))
    with pytest.raises(UserError, match="'byte_lm' takes text, such as data set python_source; got image"):
        build(settings(), images, seed=0)
    with pytest.raises(UserError, match="model.heads: got 3"):
        build(settings(heads=3), SPEC, seed=0)


def test_loss_and_bits_per_byte_are_those_of_numpy():
    outputs, target = np.random.default_rng(0).normal(size=(5, WINDOW * 256)).astype(np.float32), draw(5, WINDOW)
    head = head_of(SPEC)
    shares = np.exp(outputs.reshape(5, WINDOW, 256).astype(np.float64))
    shares /= shares.sum(-1, keepdims=True)
    of_targets = -np.log(np.take_along_axis(shares, target[..., None].astype(int), -1)[..., 0]).mean(1)
    targets = head.targets(tf.constant(target))
    np.testing.assert_allclose(head.losses(targets, outputs), of_targets, rtol=1e-5)
    np.testing.assert_allclose(head.metric(targets, outputs), of_targets / np.log(2), rtol=1e-5)
    np.testing.assert_allclose(OBJECTIVES["next-byte"].metrics(target, outputs), of_targets / np.log(2), rtol=1e-5)


def test_a_guess_has_the_entropy_of_the_bytes():
    objective = OBJECTIVES["next-byte"]
    assert objective.guess(np.array([[0, 1], [2, 3]], np.uint8), SPEC) == 2
    assert objective.guess(np.array([[0, 0], [0, 1]], np.uint8), SPEC) == pytest.approx(0.811278, abs=1e-6)


def test_bytes_and_predictions_are_told_as_text():
    objective, scores = OBJECTIVES["next-byte"], np.zeros((2, 256))
    scores[[0, 1], [*b"hi"]] = 1
    assert objective.named_prediction(scores.reshape(-1), SPEC) == "hi" == objective.named_target([*b"hi"], SPEC)


def test_updates_are_those_of_keras():
    updates, batch = 2, 3
    ours, plain = (build(settings(), SPEC, seed=0) for _ in range(2))
    rows = {"text": draw(updates, batch, WINDOW), "target": draw(updates, batch, WINDOW, most=9)}
    worker = Alone(ours, SPEC, rows)
    by_place = keras.Model(plain.input, keras.layers.Reshape((WINDOW, 256))(plain.output))
    by_place.compile(keras.optimizers.SGD(0.1), SCORES)
    for step in range(updates):
        weights, _ = worker.step(step)
        by_place.train_on_batch(rows["text"][step], rows["target"][step])
        theirs = np.concatenate([np.ravel(variable.numpy()) for variable in plain.trainable_variables])
        assert np.abs(weights - theirs).max() < 1e-5


class Counting:
    """Gives the byte after that at each place the largest score, and the one after it a score that is lower by 1."""

    def __call__(self, inputs):
        places = inputs["text"][0].astype(int)
        scores = np.zeros((len(places), 256), np.float32)
        scores[np.arange(len(places)), (places + 1) % 256] = 20
        scores[np.arange(len(places)), (places + 2) % 256] = 19
        return scores.reshape(1, -1)


@pytest.mark.parametrize("prompt", [b"a", b"xyzabcdefghijklma"])
def test_a_text_goes_on_from_its_end_whether_it_fills_a_window_or_not(prompt):
    found = b"".join(bytes_after(Counting(), prompt, WINDOW, Sampling(9, 0, 0)))
    assert found == b"bcdefghij"


def test_draws_follow_the_temperature_and_the_seed_and_end_where_a_file_would():
    def after(temperature, seed, prompt=b"\1", length=200):
        return list(b"".join(bytes_after(Counting(), prompt, WINDOW, Sampling(length, temperature, seed))))

    assert after(1, 0) == after(1, 0) != after(1, 1)
    steps = np.diff(after(1.0, 0, length=100))
    assert 0.73 - 0.15 < np.mean(steps == 1) < 0.73 + 0.15, "e / (1 + e)"
    assert np.mean(np.diff(after(0.1, 0, length=100)) == 1) > 0.97
    assert after(0, 0, prompt=b"\xf0", length=100) == [*range(0xF1, 0x100)], "0 stands between files"


def test_a_saved_network_returns_scores(model):
    text = draw(3, WINDOW)
    np.testing.assert_array_equal(predicting(model, SPEC)(text), model(text))
