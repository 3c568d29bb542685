import math
from collections import Counter

import keras
import numpy as np
import pytest
import tensorflow as tf

from ps_cluster.config.networks import NETWORKS
from ps_cluster.config.objectives import ArrayField, ExampleSpec
from ps_cluster.models.build import build
from ps_cluster.models.flat import FlatLayout, statistics_of
from ps_cluster.models.fused_layers import (
    CompiledActivation,
    FusedBatchNormalization,
    WideConvolution,
    compiled,
    kernel_gradient,
    with_fused_layers,
)

pytestmark = pytest.mark.slow

IMAGES = np.random.default_rng(0).integers(0, 256, [3, 32, 32, 3], np.uint8)


def made(name, precision, activation):
    settings = NETWORKS[name].Settings(name=name, precision=precision, activation=activation)
    image = ArrayField("uint8", (32, 32, 3), (125.0,) * 3, (63.0,) * 3)
    return build(settings, ExampleSpec({"image": image}, ArrayField("uint8", ()), classes=tuple("abcdefghij")), seed=0)


def gradients(model, images):
    with tf.GradientTape() as tape:
        scores = model(images, training=True)
        loss = tf.reduce_mean(scores**2)
    return scores, [np.asarray(g) for g in tape.gradient(loss, [v.value for v in model.trainable_variables])]


@pytest.mark.parametrize("name", ["resnet_small", "airbench"])
def test_the_fused_network_gives_the_same_scores_gradients_and_statistics(name):
    plain = made(name, "float32", "gelu")  # rounding switches no ReLU
    fused = with_fused_layers(plain)
    fused.set_weights(plain.get_weights())
    expected, found = gradients(plain, IMAGES), gradients(fused, IMAGES)
    assert np.asarray(found[0]) == pytest.approx(np.asarray(expected[0]), abs=1e-4)
    for one, other in zip(found[1], expected[1], strict=True):
        # Not pytest.approx, which takes 20 s for two million numbers.
        assert (np.abs(one - other) <= np.maximum(1e-2 * np.abs(other), 1e-3 * np.abs(other).max())).all()
    for one, other in zip(statistics_of(fused), statistics_of(plain), strict=True):
        assert np.asarray(one) == pytest.approx(np.asarray(other), abs=1e-4)


def test_a_compiled_activation_is_exact_to_the_rounding_of_its_result_both_ways():
    gelu = compiled(keras.activations.gelu)
    x = tf.cast(tf.linspace(-6.0, 6.0, 4801), tf.bfloat16)
    with tf.GradientTape() as tape:
        tape.watch(x)
        y = gelu(x)
    slope = tape.gradient(y, x, tf.fill(x.shape, tf.constant(2, tf.bfloat16)))
    wide = np.asarray(tf.cast(x, tf.float64))
    share = (1 + np.vectorize(math.erf)(wide / math.sqrt(2))) / 2
    density = np.exp(-(wide**2) / 2) / math.sqrt(2 * math.pi)
    assert (y.dtype, slope.dtype) == (tf.bfloat16, tf.bfloat16)
    assert np.asarray(tf.cast(y, tf.float64)) == pytest.approx(wide * share, rel=2**-8, abs=1e-6)
    assert np.asarray(tf.cast(slope, tf.float64)) == pytest.approx(2 * (share + wide * density), rel=2**-8, abs=1e-5)


@pytest.mark.parametrize("known", [True, False])
@pytest.mark.parametrize(("height", "width", "kernel"), [(7, 5, (3, 3)), (3, 3, (5, 1))])
def test_the_gradient_of_a_kernel_is_that_of_the_convolution(height, width, kernel, known):
    random = np.random.default_rng(0)
    images, weights, upstream = (
        tf.constant(random.normal(size=shape), tf.float64)
        for shape in ([4, height, width, 3], [*kernel, 3, 2], [4, height, width, 2])
    )
    with tf.GradientTape() as tape:
        tape.watch(weights)
        convolved = tf.nn.conv2d(images, weights, 1, "SAME")
    expected = tape.gradient(convolved, weights, upstream)
    signature = [
        tf.TensorSpec(x.shape if known else [None, None, None, x.shape[3]], x.dtype) for x in (images, upstream)
    ]
    gradient = tf.function(lambda *of: kernel_gradient(*of, weights.shape), input_signature=signature)
    assert np.asarray(gradient(images, upstream)) == pytest.approx(np.asarray(expected))


def rounded(values):
    return np.asarray(tf.cast(tf.cast(values, tf.bfloat16), tf.float32))


def test_a_wide_convolution_gives_the_result_and_the_gradients_of_the_plain_one_in_float32():
    keras.utils.set_random_seed(0)
    images = rounded(np.random.default_rng(0).normal(size=[8, 5, 5, 256]))
    plain = keras.layers.Conv2D(32, 3, padding="same", dtype="float32")
    wide = WideConvolution(32, 3, padding="same", dtype="mixed_bfloat16")
    for layer in (plain, wide):
        layer.build(images.shape)
    found = []
    for layer, dtype in ((plain, tf.float32), (wide, tf.bfloat16)):
        layer.set_weights(list(map(rounded, plain.get_weights())))
        given = tf.cast(images, dtype)
        with tf.GradientTape() as tape:
            tape.watch(given)
            result = layer(given)
        gradients = tape.gradient(result, [given, layer.kernel.value, layer.bias.value])
        found.append([np.asarray(tf.cast(tensor, tf.float32)) for tensor in (result, *gradients)])
    for expected, other in zip(*found, strict=True):
        assert other == pytest.approx(expected, abs=0.01 * float(np.abs(expected).max()))


@pytest.mark.parametrize(
    "other",
    [
        {"strides": 2}, {"dilation_rate": 2}, {"groups": 2}, {"padding": "valid"}, {"kernel_size": 4}, {"channels": 64},
        {"dtype": "float32"},
    ],
    ids=lambda other: next(iter(other)),
)  # fmt: skip
def test_convolutions_for_which_the_products_are_wrong_or_slower_stay_as_they_are(other):
    def of(channels=256, **given):
        settings = {"filters": 32, "kernel_size": 3, "padding": "same", "dtype": "mixed_bfloat16"} | given
        model = keras.Sequential([keras.Input([8, 8, channels]), keras.layers.Conv2D(**settings)])
        return type(with_fused_layers(model).layers[0])

    assert (of(), of(**other)) == (WideConvolution, keras.layers.Conv2D)


@pytest.mark.parametrize(("activation", "kind"), [("relu", keras.layers.Activation), ("gelu", CompiledActivation)])
def test_normalisation_and_dear_activations_change_and_the_variables_keep_their_order(activation, kind):
    plain = made("airbench", "bfloat16", activation)
    fused = with_fused_layers(plain)
    kinds = Counter(type(layer) for layer in fused.layers)
    assert (kinds[WideConvolution], kinds[keras.layers.Conv2D]) == (3, 4)
    assert FusedBatchNormalization in kinds and keras.layers.BatchNormalization not in kinds
    assert kinds.keys() & {keras.layers.Activation, CompiledActivation} == {kind}
    assert FlatLayout.of(fused.trainable_variables) == FlatLayout.of(plain.trainable_variables)
    assert [layer.compute_dtype for layer in fused.layers] == [layer.compute_dtype for layer in plain.layers]


def test_outside_of_training_the_fused_network_gives_the_same_scores_and_changes_nothing():
    plain = made("airbench", "float32", "gelu")
    for variable in statistics_of(plain):
        variable.assign(variable + np.random.default_rng(0).uniform(0.1, 1.0, variable.shape))
    fused = with_fused_layers(plain)
    fused.set_weights(plain.get_weights())
    expected = np.asarray(plain(IMAGES, training=False))
    found = np.asarray(fused(IMAGES, training=False))
    assert found == pytest.approx(expected, abs=1e-4 * float(np.abs(expected).max()))
    for one, other in zip(fused.get_weights(), plain.get_weights(), strict=True):
        assert (one == other).all()
