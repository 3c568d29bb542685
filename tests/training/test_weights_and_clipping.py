"""Settings of class weights and clipping: what they mean, and what is refused in one line."""

import numpy as np
import pytest
import tensorflow as tf

from ps_cluster.config import build_config
from ps_cluster.config.objectives import OBJECTIVES, ArrayField, ExampleSpec, class_weights
from ps_cluster.errors import UserError
from ps_cluster.models.compiled_heads import head_of
from ps_cluster.models.flat import FlatLayout
from ps_cluster.training.step import clipping_of

CLASSES = ("cat", "dog", "7")
SPEC = ExampleSpec({}, ArrayField("uint8", ()), classes=CLASSES)
LAYOUT = FlatLayout(("one", "two"), ((2,), (1, 2)))
GRADIENT = np.array([3.0, 4.0, 0.3, -0.4], np.float32)


def config(**settings):
    return build_config(overrides={name.replace("__", "."): value for name, value in settings.items()})


def test_weights_of_classes_are_given_by_name_or_label_and_are_1_for_the_others():
    assert class_weights({"cat": 2.0, "1": 0.5}, CLASSES).tolist() == [2.0, 0.5, 1.0]
    assert class_weights({"1": 3.0, "7": 4.0}, CLASSES).tolist() == [1.0, 3.0, 4.0], "a name wins over a label"


@pytest.mark.parametrize("given", [{"bird": 1.0}, {"3": 1.0}, {"-1": 1.0}, {"cat": 1.0, "0": 2.0}])
def test_a_weight_of_no_class_or_of_one_named_twice_is_refused(given):
    with pytest.raises(ValueError, match=r"training.class_weights: got '.*': it is (neither|named twice)"):
        class_weights(given, CLASSES)


def test_weights_of_examples_and_of_their_classes_multiply_each_other():
    head = head_of(SPEC, config(training__class_weights={"dog": 3.0}).training)
    labels = head.targets(tf.constant([0, 1, 1], tf.uint8))
    assert head.weights(labels, None).numpy().tolist() == [1, 3, 3]
    assert head.weights(labels, tf.constant([2.0, 0.5, 0.0], tf.float64)).numpy().tolist() == [2, 1.5, 0]
    assert head_of(SPEC).weights(labels, None) is None, "where all count alike, nothing is multiplied"


@pytest.mark.parametrize("objective", ["multi-label", "regression"])
def test_only_a_classification_has_weights_of_classes(objective):
    given = config(training__class_weights={"cat": 2.0}, training__label_smoothing=0.0)
    with pytest.raises(ValueError, match="training.class_weights: got .* only a classification"):
        OBJECTIVES[objective].check(given, SPEC)


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        ({"training__class_weights": {"cat": 0.0}}, "training.class_weights.cat: got 0.0"),
        ({"optimizer__clip_norm": 0.0}, "optimizer.clip_norm"),
        ({"optimizer__clip_norm": 1.0, "optimizer__clip_value": 2.0}, "clip_norm 1 and optimizer.clip_value 2: choose"),
    ],
)
def test_wrong_values_are_told_in_one_line(settings, told):
    with pytest.raises(UserError) as error:
        config(**settings)
    assert told in str(error.value) and "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("setting", "expected"),
    [
        ({}, GRADIENT),
        ({"optimizer__clip_norm": 1.0}, [0.6, 0.8, 0.3, -0.4]),
        ({"optimizer__global_clip_norm": 1.0}, GRADIENT / np.linalg.norm(GRADIENT)),
        ({"optimizer__clip_value": 0.35}, [0.35, 0.35, 0.3, -0.35]),
    ],
)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_clipping_takes_each_variable_the_whole_or_each_number(setting, expected, dtype):
    clipped = clipping_of(config(**setting).optimizer, LAYOUT)(tf.cast(GRADIENT, dtype))
    assert clipped.dtype == dtype
    assert tf.cast(clipped, tf.float32).numpy() == pytest.approx(np.asarray(expected), rel=0.01)
