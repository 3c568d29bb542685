"""The data that `ps_cluster.fit` takes, as arrays."""

import re

import keras
import numpy as np
import pandas
import pytest
import tensorflow as tf

from ps_cluster.api.fit_data import fit_data
from ps_cluster.api.streams import write_stream
from tests.helpers.bad_input import refusal

pytestmark = pytest.mark.slow

X, Y = np.arange(40, dtype="float32").reshape(20, 2), np.arange(20) % 3
PLAIN = keras.Sequential([keras.Input((2,)), keras.layers.Dense(3)])


def of_two_inputs():
    a, b = keras.Input((2,), name="a"), keras.Input((2,), name="b")
    return keras.Model([a, b], keras.layers.Dense(3)(keras.layers.Concatenate()([a, b])))


def arrays(x, y=None, weight=None, model=PLAIN, notify=lambda line: None, **options):
    """Return the arrays by name, copied, because those of streams are gone afterwards."""
    with fit_data(model, x, y, weight, notify=notify, **options) as data:
        return {name: keras.tree.map_structure(np.array, array) for name, array in data.arrays.items()}


def epoch(x, y=None, **options):
    """Return the number of training examples, the batch size, and the length of an epoch in batches and in passes."""
    with fit_data(PLAIN, x, y, None, notify=lambda line: None, **options) as data:
        return len(data.train), data.batch_size, data.steps, data.passes


class Batches(keras.utils.PyDataset):
    def __len__(self):
        return 5

    def __getitem__(self, number):
        rows = slice(4 * number, 4 * number + 4)
        return X[rows], Y[rows], np.ones(4)


def generated():
    while True:
        yield X[:4], Y[:4]


@pytest.mark.parametrize(
    ("x", "more", "size"),
    [
        (tf.data.Dataset.from_tensor_slices((X, Y)).batch(8), {}, 8),
        (Batches(workers=1), {}, 4),
        (iter([(X[:10], Y[:10]), (X[10:], Y[10:])]), {"steps_per_epoch": 2}, 10),
    ],
    ids=["tf.data", "PyDataset", "generator"],
)
def test_a_stream_is_read_once_into_arrays_in_its_own_order(x, more, size):
    told = []
    with fit_data(PLAIN, x, None, None, notify=told.append, **more) as data:
        assert (data.train.x == X).all() and (data.train.y == Y).all() and (data.batch_size, data.passes) == (size, 1.0)
    assert (
        "x: its batches have been packed: 20 examples" in told[0] and "put random augmentation into layers" in told[1]
    )


def test_a_stream_of_many_batches_needs_one_file_for_each_of_its_arrays(tmp_path):
    write_stream(iter([(X, Y)] * 50), tmp_path, "x", steps=None, notify=lambda line: None)
    assert len(list(tmp_path.iterdir())) == 2


def test_the_last_examples_are_scored_with_validation_split():
    found = arrays(X, Y, validation_split=0.25)
    assert (found["x_train"] == X[:15]).all() and (found["y_test"] == Y[15:]).all()


def test_training_examples_are_scored_only_where_there_are_no_validation_data():
    assert len(arrays(X, Y, validation_data=(X[:3], Y[:3]))["x_test"]) == 3
    assert len(arrays(X, Y)["x_test"]) == 20


def test_an_epoch_of_some_steps_has_as_many_batches_as_that_of_keras():
    assert epoch(X, Y) == (20, 32, 1, 1.0)
    assert epoch(X, Y, batch_size=8, steps_per_epoch=2, epochs=5) == (20, 8, 2, 0.8)
    assert epoch(X, Y, batch_size=8, steps_per_epoch=3) == (20, 8, 3, 1.0), "the third batch has only 4 examples"
    assert epoch(X, Y, batch_size=8, steps_per_epoch=7) == (20, 8, 7, 2.4)
    assert epoch(X, Y, batch_size=8, steps_per_epoch=1, validation_split=0.5) == (10, 8, 1, 0.8)


def test_a_stream_whose_pass_has_a_known_length_is_read_for_all_epochs_and_another_one_for_one():
    assert epoch(Batches(workers=1), steps_per_epoch=2, epochs=2) == (16, 4, 2, 0.5)
    assert epoch(Batches(workers=1), steps_per_epoch=2, epochs=9) == (20, 4, 2, 0.4)
    batches = tf.data.Dataset.from_tensor_slices((X, Y)).batch(4)
    for stream in (batches, batches.repeat(9), batches.repeat(), generated()):
        assert epoch(stream, steps_per_epoch=2, epochs=9) == (8, 4, 2, 1.0)


def test_validation_steps_cut_the_validation_data():
    assert len(arrays(X, Y, validation_data=(X, Y), validation_steps=3, validation_batch_size=4)["x_test"]) == 12
    assert len(arrays(X, Y, batch_size=5, validation_data=(X, Y), validation_steps=3)["x_test"]) == 15
    stream = tf.data.Dataset.from_tensor_slices((X, Y)).batch(5).repeat()
    assert len(arrays(X, Y, validation_data=stream, validation_steps=3)["x_test"]) == 15


def test_several_arrays_get_the_names_of_the_models_inputs_and_a_frame_becomes_floats():
    found = arrays((X, 2 * X), Y, model=of_two_inputs())
    assert list(found["x_train"]) == ["a", "b"] and (found["x_train"]["b"] == 2 * X).all()
    frame = pandas.DataFrame({"u": [1, 2], "v": [0.5, 1.5]})
    found = arrays(frame, pandas.Series([0, 1]))
    assert found["x_train"].dtype == np.float32 and found["x_train"].tolist() == [[1, 0.5], [2, 1.5]]
    assert found["y_train"].tolist() == [0, 1]


@pytest.mark.parametrize(
    ("call", "told"),
    [
        (lambda: arrays(generated()), "x: the stream may have no end: give steps_per_epoch"),
        (lambda: arrays(tf.data.Dataset.from_tensor_slices((X, Y)).batch(4).repeat()), "x: the stream may have no end"),
        (lambda: arrays(Batches(workers=1), Y), "y: x is a stream, so its batches have to contain these values: leave"),
        (
            lambda: arrays(X, Y, validation_data=(Batches(workers=1), Y)),
            r"validation_data\[1\]: validation_data\[0\] is a stream, so its batches have to contain these values: leave",
        ),
        (lambda: arrays(Batches(workers=1), validation_split=0.1), "validation_split: it needs arrays"),
        (lambda: arrays(Batches(workers=1), batch_size=3), "batch_size: x is a stream, which has batches of its own"),
        (lambda: arrays(X), "x: got ndarray without targets"),
        (lambda: arrays(None, Y), "^x is NoneType, which has no rows: give an array"),
        (lambda: arrays([[1], [2, 3]], Y[:2]), "^x is list, which can't become an array: give rows of one shape"),
        (
            lambda: arrays(X, Y[:18]),
            "x: the arrays have different numbers of rows: x has 20, y has 18: give equally many rows",
        ),
        (lambda: arrays(X, Y, Y[:3]), "x has 20, y has 20, sample_weight has 3"),
        (
            lambda: arrays(X, Y, validation_data=(X, Y[:9]), validation_steps=1),
            r"validation_data\[0\] has 20, validation_data\[1\] has 9",
        ),
        (lambda: arrays(X, Y, validation_data=(X[:0], Y[:0])), r"validation_data\[0\] has no rows"),
        (lambda: arrays((X, X), Y), "x: got 2 arrays, and the model has 1 inputs: give a dictionary"),
        (lambda: arrays(X, [Y, Y]), "y: got 2 arrays, and the model has no named outputs: give a dictionary"),
        (lambda: arrays((X, X), (Y, Y), model=of_two_inputs()), "y: got 2 arrays, and the model has 1 outputs: give a"),
        (lambda: arrays(X, Y, validation_split=1.5), "validation_split: got 1.5"),
        (lambda: arrays(pandas.DataFrame({"u": ["a"]}), Y), "x: column 'u' is .*: give numbers, or, for a model"),
        (lambda: arrays(iter([(X, Y), (X[:, :1], Y)]), steps_per_epoch=2), r"batch 1 has rows of shape \[1\].*pad all"),
        (lambda: arrays(iter([]), steps_per_epoch=2), "x: it has no batches"),
        (lambda: arrays(iter([X]), steps_per_epoch=1), "x: batch 0 is ndarray: a batch has to be"),
        (
            lambda: arrays(iter([(X, Y[:3])]), steps_per_epoch=1),
            "different numbers of examples: inputs has 20, targets has 3",
        ),
    ],
)
def test_data_that_can_not_be_used_is_refused_with_what_to_do(call, told):
    assert re.search(told, refusal(call))
