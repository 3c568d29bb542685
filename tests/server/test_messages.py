import numpy as np
import pytest
import tensorflow as tf

from ps_cluster.server import wire
from ps_cluster.server.wire import MessageLayout

FIELDS = ((tf.bfloat16, 5), (tf.float32, 0), (tf.int64, 2), (tf.float64, 3))


def vectors():
    return [
        tf.constant([1, -2, 3.5, 0, 1e30], tf.bfloat16),
        tf.zeros([0]),
        tf.constant([-1, 2**60], tf.int64),
        tf.constant([np.pi, 1e300, -0.0], tf.float64),
    ]


def assert_the_same(found, expected):
    for one, other in zip(found, expected, strict=True):
        assert one.dtype == other.dtype
        assert one.numpy().tobytes() == other.numpy().tobytes()


def test_small_vectors_travel_as_one_and_come_out_bit_for_bit():
    message = MessageLayout(FIELDS)
    (packed,) = message.pack(vectors())
    assert packed.dtype == tf.uint8 and packed.shape == [5 * 2 + 2 * 8 + 3 * 8]
    assert_the_same(message.unpack([packed]), vectors())


def test_a_large_vector_travels_by_itself(monkeypatch):
    monkeypatch.setattr(wire, "LARGE_BYTES", 3 * 8)
    message = MessageLayout(FIELDS)
    large, packed = message.pack(vectors())
    assert large.dtype == tf.float64 and packed.shape == [5 * 2 + 2 * 8]
    assert_the_same(message.unpack([large, packed]), vectors())


def test_a_vector_of_another_dtype_is_refused():
    with pytest.raises(TypeError, match="bfloat16 .5. was given float32"):
        MessageLayout(FIELDS).pack([tf.zeros([5]), *vectors()[1:]])
