"""Layers that look words up, as a pure function of constants."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from ps_cluster.config.objectives import ArrayField, ExampleSpec
from ps_cluster.models.flat import FlatNetwork, flatten
from ps_cluster.models.user_networks import check_network

LAYERS = keras.layers
TEXTS = np.array([["the film was good"], ["a bad one"], ["really great plot"], [""]])
NUMBERS = np.array([[7], [-2], [10**12], [0]])
SPEC = ExampleSpec(
    {"text": ArrayField("string", (1,), characters=20, code="uint8"), "number": ArrayField("int64", (1,))},
    ArrayField("uint8", ()),
    classes=("0", "1"),
)


def network(texts=None):
    words = LAYERS.TextVectorization(output_sequence_length=4)
    if texts is not None:
        words.adapt(texts)
    codes = LAYERS.IntegerLookup(vocabulary=[10**12, -2, 5], num_oov_indices=2)
    text, number = keras.Input([1], dtype="string", name="text"), keras.Input([1], dtype="int64", name="number")
    embedded = LAYERS.GlobalAveragePooling1D()(LAYERS.Embedding(30, 3, mask_zero=True)(words(text)))
    both = LAYERS.Concatenate()([embedded, LAYERS.Flatten()(LAYERS.Embedding(5, 2)(codes(number)))])
    return keras.Model({"text": text, "number": number}, LAYERS.Dense(2)(both))


def test_words_are_looked_up_in_constants_as_keras_does_in_a_table():
    model = check_network(network(TEXTS), SPEC)
    flat = FlatNetwork(model)
    graph = flat.graph(SPEC)
    assert tf.resource not in {one.dtype for one in graph.captured_inputs}  # a worker has no table
    unknown = np.array([["good film, unheard of"], ["plot"], ["BAD! great?"], ["nothing"]])
    for texts in (TEXTS, unknown):
        inputs = {"text": tf.constant(texts), "number": tf.constant(NUMBERS)}
        found = graph(tf.constant(flatten(model.trainable_variables)), tf.zeros([0]), inputs, tf.constant([0, 0]))
        np.testing.assert_allclose(found.outputs, model(inputs), rtol=1e-6)


def test_a_layer_that_has_learned_no_words_is_told_by_name():
    with pytest.raises(ValueError, match=r"layer 'string_lookup\w*' has no vocabulary: call its adapt\(\), or"):
        check_network(network(), SPEC)


def test_a_variable_of_tensorflow_that_workers_would_not_have_is_refused():
    scale = tf.Variable(2.0)
    row = keras.Input([1], dtype="int64", name="number")
    hidden = LAYERS.Lambda(lambda value: tf.cast(value, tf.float32) * scale, output_shape=(1,))(row)
    spec = ExampleSpec({"number": SPEC.inputs["number"]}, SPEC.target, classes=SPEC.classes)
    with pytest.raises(ValueError, match=r"it reads tf.Variables or tables of its own \(1 in all\), which workers don"):
        check_network(keras.Model(row, LAYERS.Dense(2)(hidden)), spec)
