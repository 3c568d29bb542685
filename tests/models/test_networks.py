import time

import keras
import numpy as np
import pytest
import tensorflow as tf

from ps_cluster.config.networks import NETWORKS, Network
from ps_cluster.config.objectives import ArrayField, ExampleSpec
from ps_cluster.data.sets.cifar import PIXEL_MEAN, PIXEL_STD
from ps_cluster.errors import UserError
from ps_cluster.models.build import build
from ps_cluster.models.flat import FlatLayout, FlatNetwork, assign, flatten, statistics_of
from ps_cluster.models.networks import ImageNetwork
from tests.helpers.saved_models import modules_in

pytestmark = pytest.mark.slow

IMAGES = np.random.default_rng(0).integers(0, 256, [6, 32, 32, 3], np.uint8)

OTHERS = ("byte_lm", "dlrm", "two_tower")  # those: test_byte_lm.py, test_networks_of_keys.py
FOR_IMAGES = [name for name in NETWORKS.names if name not in OTHERS]


def spec_of(shape=(32, 32, 3), mean=PIXEL_MEAN, std=PIXEL_STD, dtype="uint8", classes=10):
    image = ArrayField(dtype, shape, mean, std)
    return ExampleSpec({"image": image}, target=ArrayField("uint8", ()), classes=tuple(map(str, range(classes))))


def make(name="tutorial_cnn", *, seed=0, spec=spec_of(), images=None, **settings):
    chosen = NETWORKS[name].Settings(name=name, **({"precision": "float32", "activation": "relu"} | settings))
    return build(chosen, spec, seed=seed, examples=None if images is None else {"image": images})


@pytest.mark.parametrize(
    ("name", "parameters"),
    [("tutorial_cnn", 122_570), ("cifar_tf_cnn", 2_210_122), ("resnet_small", 175_066), ("airbench", 1_971_640)],
)
def test_every_network_takes_raw_pixels_and_gives_a_float32_score_a_class(name, parameters):
    model = make(name, precision="bfloat16")
    scores = model(IMAGES, training=False)
    assert scores.shape == (6, 10) and scores.dtype == tf.float32 and np.isfinite(scores).all()
    assert FlatLayout.of(model.trainable_variables).length == parameters
    assert keras.config.dtype_policy().name == "float32", "the policy of other models is left alone"


@pytest.mark.parametrize("name", ["mlp", "resnet_small"])
def test_the_initial_weights_are_a_function_of_the_seed(name):
    first, same, other = (flatten(make(name, seed=seed).trainable_variables) for seed in (1, 1, 2))
    assert (first == same).all() and (first != other).any()


def test_pixels_are_normalised_inside_the_network():
    model = make()
    normalised = model.get_layer("normalise")(IMAGES.astype(np.float32))
    mean, std = np.array([0.4914, 0.4822, 0.4465]) * 255, np.array([0.2470, 0.2435, 0.2616]) * 255
    assert np.asarray(normalised) == pytest.approx((IMAGES - mean) / std, abs=1e-4)


def test_pixels_of_unknown_statistics_go_from_minus_1_to_1_and_a_constant_channel_to_0():
    unknown = make(spec=spec_of((24, 20, 1), (), ())).get_layer("normalise")
    ends = np.array([0.0, 255.0]).reshape(2, 1, 1, 1) * np.ones([2, 24, 20, 1])
    assert np.asarray(unknown(ends))[:, 0, 0, 0] == pytest.approx([-1, 1])
    constant = make(spec=spec_of((24, 20, 1), (7.0,), (0.0,))).get_layer("normalise")
    assert not np.asarray(constant(np.full([1, 24, 20, 1], 7.0))).any()


@pytest.mark.parametrize("name", FOR_IMAGES)
def test_every_network_takes_images_of_another_shape_and_gives_a_score_for_each_of_their_classes(name):
    images = np.random.default_rng(0).integers(0, 256, [20, 28, 40, 1], np.uint8)
    model = make(name, spec=spec_of((28, 40, 1), (100.0,), (50.0,), classes=4), images=images)
    scores = np.asarray(model(images))
    assert scores.shape == (20, 4) and np.isfinite(scores).all() and scores.std() > 0


@pytest.mark.parametrize(
    ("name", "spec", "told"),
    [
        ("airbench", spec_of((8, 8, 3)), "can't be built for examples of image uint8 [8, 8, 3]: its layers shrink"),
        ("tutorial_cnn", spec_of((4, 4, 1), (), ()), "can't be built for examples of image uint8 [4, 4, 1]: its layers shrink"),
        ("resnet_small", spec_of((32, 32, 2)), "takes images (uint8 [height, width, 1 or 3]); got image uint8 [32, 32, 2]"),
        ("tutorial_cnn", spec_of((32, 32, 3), dtype="int64"), "takes images (uint8 [height, width, 1 or 3]); got image int64 "
            "[32, 32, 3]: if its numbers are pixels from 0 to 255, give them as .astype('uint8')"),
        ("cifar_tf_cnn", spec_of((7,), dtype="float32"), "takes images (uint8 [height, width, 1 or 3]); got image float32"),
    ],
)  # fmt: skip
def test_examples_that_a_network_cant_take_are_told_in_one_line(name, spec, told):
    with pytest.raises(UserError) as error:
        make(name, spec=spec)
    assert f"model.name: '{name}' {told}" in str(error.value)
    assert "\n" not in str(error.value) and "Exception encountered" not in str(error.value)


def computed_unchecked(network, shape):
    """Return what a network computes for an image of this shape, without the package's check of its sides."""
    model = network.build(spec_of(shape), network.Settings(name=network.name, precision="float32"))
    return model(np.zeros((1, *shape)))


@pytest.mark.parametrize("name", [name for name in FOR_IMAGES if isinstance(NETWORKS[name], ImageNetwork)])
def test_the_smallest_images_that_a_network_says_it_takes_are_the_smallest_that_it_can_be_built_for(name):
    network = NETWORKS[name]
    side = network.smallest_side
    assert make(name, spec=spec_of((side, side, 3)))(np.zeros((1, side, side, 3))).shape[0] == 1
    if side > 1:
        for shape in ((40, side - 1, 3), (side - 1, 40, 3)):
            with pytest.raises(UserError, match=f"each side needs at least {side} pixels"):
                make(name, spec=spec_of(shape))
        # Keras refuses when the network is built, TensorFlow in the first step.
        too_small = "Computed output size would be zero or negative|when calling MaxPooling2D"
        with pytest.raises((ValueError, tf.errors.OpError), match=too_small):
            computed_unchecked(network, shape)


def test_a_network_that_returns_another_number_of_values_is_refused(monkeypatch):
    class Narrow(Network):
        name = "narrow"

        def build(self, examples, settings):
            return keras.Sequential([keras.Input([32, 32, 3]), keras.layers.Flatten(), keras.layers.Dense(3)])

    monkeypatch.setitem(NETWORKS.own, "narrow", Narrow())
    with pytest.raises(
        UserError, match="'narrow' can't be .*: it returns 3 numbers .*, and the data set asks for 10 num"
    ):
        build(Narrow.Settings(name="narrow", precision="float32"), spec_of(), seed=0)


def test_the_flat_network_computes_what_the_keras_model_does_in_training():
    model = make("resnet_small")
    network = FlatNetwork(model)
    weights, statistics = flatten(model.trainable_variables), flatten(statistics_of(model))
    images = tf.constant(IMAGES, tf.float32)
    given = (tf.constant(weights), tf.constant(statistics), {"image": images}, tf.constant([0, 0]))
    scores, fresh, losses = network.forward(*given)
    assert not losses
    assert np.asarray(scores) == pytest.approx(np.asarray(model(images, training=True)), abs=1e-4)
    assert network.keep * statistics + np.asarray(fresh) == pytest.approx(flatten(statistics_of(model)), abs=1e-4)


def test_assigned_vectors_come_back_as_they_were():
    model = make("resnet_small")
    generator = np.random.default_rng(0)
    weights = generator.normal(size=FlatLayout.of(model.trainable_variables).length).astype(np.float32)
    statistics = generator.uniform(1, 2, FlatLayout.of(statistics_of(model)).length).astype(np.float32)
    assign(model, weights, statistics)
    assert (flatten(model.trainable_variables) == weights).all() and (flatten(statistics_of(model)) == statistics).all()
    with pytest.raises(ValueError, match="175,066 weights"):
        assign(model, weights[1:], statistics)


def test_factors_go_to_the_variables_that_the_first_matching_pattern_names():
    model = make("airbench")
    layout = FlatLayout.of(model.trainable_variables)
    factors = layout.factors([("whiten/kernel", 0.0), ("norm*/beta", 64.0), ("whiten", 3.0)])
    names = [path.removeprefix("airbench/") for path in layout.paths]
    by_path = dict(zip(names, np.split(factors, np.cumsum(layout.sizes)[:-1])))
    assert (by_path["whiten/kernel"] == 0).all() and (by_path["whiten/bias"] == 3).all()
    assert (by_path["group1_norm0/beta"] == 64).all() and (by_path["group1_conv0/kernel"] == 1).all()


@pytest.mark.parametrize("pattern", ["*" * 100, "*a" * 50, "?*" * 50, "*a*b" * 25, "a*" * 49 + "b", "*aa" * 33 + "b"])
def test_the_worst_patterns_of_a_configuration_are_searched_at_once(pattern):
    layout = FlatLayout(tuple("a" * length for length in (50, 200, 1000)), ((1,),) * 3)
    began = time.process_time()
    layout.factors([(pattern, 2.0)] * 100)
    assert time.process_time() - began < 5


@pytest.mark.parametrize(("channels", "mean", "std"), [(3, PIXEL_MEAN, PIXEL_STD), (1, (), ())])
def test_the_whitening_convolution_makes_uncorrelated_outputs_of_unit_variance(channels, mean, std):
    noise = np.random.default_rng(0).normal(size=[300, 32, 32, channels])
    blurred = (noise + np.roll(noise, 1, 1) + np.roll(noise, 1, 2)) * 30 + 128
    images = np.clip(blurred, 0, 255).astype(np.uint8)
    model = make("airbench", spec=spec_of((32, 32, channels), mean, std), images=images)
    outputs = model.get_layer("whiten")(model.get_layer("normalise")(images.astype(np.float32)))
    values = 4 * channels
    half = np.asarray(outputs)[..., :values].reshape(-1, values)
    assert np.cov(half, rowvar=False) == pytest.approx(np.eye(values), abs=0.05)


def test_the_first_filters_of_a_3x3_convolution_pass_their_input_through():
    kernel = np.asarray(make("airbench").get_layer("group1_conv1").kernel)
    assert kernel.shape == (3, 3, 256, 256)
    assert (kernel[1, 1] == np.eye(256)).all() and not kernel[0].any()


def test_a_saved_network_has_the_layers_of_keras_alone_and_gives_the_same_scores(tmp_path):
    model = make("airbench", precision="bfloat16")
    model.save(tmp_path / "model.keras")
    assert modules_in(tmp_path / "model.keras") == {"keras"}
    assert np.array_equal(keras.models.load_model(tmp_path / "model.keras")(IMAGES), model(IMAGES))


def test_whitening_takes_no_more_memory_for_larger_images():
    taken = []

    class Counted(np.ndarray):
        def __getitem__(self, key):
            taken.append(key)
            return super().__getitem__(key)

    images = np.random.default_rng(0).integers(0, 256, (700, 64, 64, 3), np.uint8).view(Counted)
    make("airbench", spec=spec_of((64, 64, 3)), images=images)
    whole, *parts = [part for part in taken if isinstance(part, slice)][-(1 + 22) :]
    assert whole.stop == 2_100_000 // 64**2 < 700
    assert max(part.stop - part.start for part in parts) * 64**2 <= 100_000
