from dataclasses import replace

import keras
import numpy as np
import pytest
import tensorflow as tf

from ps_cluster.config import build_config
from ps_cluster.config.datasets import Contents
from ps_cluster.data.packing import write_packed
from ps_cluster.evaluation.scorer import Scorer
from ps_cluster.models import flat
from ps_cluster.models.build import build
from ps_cluster.models.compiled_heads import head_of
from ps_cluster.models.saved import predicting
from ps_cluster.runs.checkpoints import Checkpoint, CheckpointMeta
from ps_cluster.tools.sweep.joining import joined, save_joined, score
from tests.helpers.data import pack_images, random_images

pytestmark = pytest.mark.slow


def member_of(dataset, seed, precision="float32", name="tutorial_cnn"):
    """A network with random weights, as it is saved after its training."""
    config = build_config(None, {"data.dataset": "synthetic", "model.name": name, "model.precision": precision})
    model = build(config.model, dataset.spec, seed=seed)
    arrays = {
        "weights": flat.flatten(model.trainable_variables) * 3,
        "statistics": flat.flatten(flat.statistics_of(model)),
    }
    return Scorer(config, dataset).model_of(Checkpoint(1, arrays, CheckpointMeta(config={})))


def answering(members, dataset):
    return [predicting(member, dataset.spec) for member in members]


@pytest.fixture(scope="module")
def images(tmp_path_factory):
    arrays = (*random_images(40), *random_images(130, seed=1))
    return pack_images(tmp_path_factory.mktemp("data") / "set", "synthetic", tuple("abcdefghij"), arrays)


@pytest.fixture(scope="module")
def members(images):
    return [member_of(images, 0), member_of(images, 1), member_of(images, 2, "bfloat16")]


def test_plain_keras_loads_one_model_that_averages_the_probabilities_of_raw_pixels(images, members, tmp_path):
    pixels = images.inputs("test")["image"]
    of_members = [tf.nn.softmax(tf.cast(member(pixels.astype(np.float32)), tf.float32)) for member in members]
    save_joined(joined(answering(members, images), images), tmp_path / "ensemble.keras")
    loaded = keras.models.load_model(tmp_path / "ensemble.keras")
    for given in (pixels, pixels.astype(np.float32)):
        np.testing.assert_allclose(loaded.predict(given, verbose=0), np.mean(of_members, 0), atol=1e-5)
    assert np.ptp(of_members, axis=0).max() > 0.05, "members that are alike would prove nothing"
    assert [path.name for path in tmp_path.iterdir()] == ["ensemble.keras"]


def test_scores_are_those_of_each_member_and_of_their_mean_probability(images, members):
    labels = images.target("test").astype(int)
    pixels = images.inputs("test")["image"].astype(np.float32)
    found = [tf.nn.softmax(tf.cast(member(pixels), tf.float32)).numpy() for member in members]
    table = score("abc", answering(members, images), images)
    scores = (*table.of_members, table.of_ensemble)
    for one, probabilities in zip(scores, (*found, np.mean(found, 0)), strict=True):
        of_label = np.maximum(probabilities[np.arange(130), labels], 1e-30)
        assert one.metric == pytest.approx((probabilities.argmax(1) == labels).mean())
        assert one.loss == pytest.approx(-np.log(of_label).mean(), rel=1e-4)
        sure = probabilities.max(1)
        assert 0 < one.calibration_error < 1 and one.calibration_error >= abs(sure.mean() - one.metric) - 1e-6


def test_the_values_of_a_regression_are_averaged_in_their_own_units(tmp_path):
    draw = np.random.default_rng(0)

    def split(count):
        numbers = draw.normal(3, 10, (count, 4)).astype(np.float32)
        return {"numbers": numbers, "target": numbers @ np.array([1, 2, -1, 0.5], np.float32)}

    contents = Contents.of(split(60), split(20), objective="regression")
    dataset = write_packed(tmp_path / "set", "synthetic", "synthetic", contents, "")
    members = [member_of(dataset, seed, name="mlp") for seed in (0, 1)]
    numbers, target = dataset.inputs("test")["numbers"], dataset.target("test")
    values = np.mean([member(np.asarray(numbers)).numpy() for member in members], 0)
    np.testing.assert_allclose(
        joined(answering(members, dataset), dataset)(np.asarray(numbers)).numpy(), values, rtol=1e-5
    )
    of_ensemble = score("ab", answering(members, dataset), dataset).of_ensemble
    assert of_ensemble.metric == pytest.approx(np.abs(values.ravel() - target).mean(), rel=1e-4)
    assert of_ensemble.calibration_error is None


@pytest.mark.parametrize("objective", ["classification", "multi-label", "regression"])
def test_outputs_made_of_a_prediction_predict_it(objective, images):
    spec = replace(images.spec, objective=objective)
    if objective == "regression":
        spec = replace(spec, target=replace(spec.target, mean=(5.0,), std=(3.0,)))
    prediction = tf.nn.softmax(tf.constant(np.random.default_rng(0).normal(0, 3, (7, 10)), tf.float32))
    head = head_of(spec).prediction_head
    np.testing.assert_allclose(head.prediction(head.outputs_of(prediction)), prediction, atol=1e-5)
