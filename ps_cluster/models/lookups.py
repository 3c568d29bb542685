"""Replace the tables of Keras's lookup layers by constants of the graph.

`StringLookup`, `IntegerLookup` and `TextVectorization` keep their vocabulary in a table, which is a resource of the
process that built the model. Workers do not have it. Constants are sent to each worker with the graph.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import keras
import numpy as np
import tensorflow as tf

from ps_cluster.private_names import layers_of

_TABLE = "lookup_table"  # the attribute of Keras's layers that holds the table


@contextlib.contextmanager
def constant_tables(model: keras.Model) -> Iterator[None]:
    """Let the lookup layers of a model use constants instead of their tables within the block."""
    with contextlib.ExitStack() as stack:
        for layer in layers_of(model):
            if isinstance(layer, keras.layers.StringLookup | keras.layers.IntegerLookup):
                own, table = vars(layer), layer.lookup_table
                own[_TABLE] = ConstantTable(layer.name, table)
                stack.callback(own.__setitem__, _TABLE, table)
        yield


class ConstantTable:
    """A table of constants with the content of a `tf.lookup.StaticHashTable`, sorted by the hashes of the keys."""

    def __init__(self, name: str, table: tf.lookup.StaticHashTable):
        """Copy the `table` of layer `name`. Raises ValueError if it is empty, or if two keys have the same hash."""
        with tf.init_scope():
            try:
                keys, values = (one.numpy() for one in table.export())
            except tf.errors.OpError:
                keys = values = np.zeros(0)
            if not len(keys):
                raise ValueError(f"layer '{name}' has no vocabulary: call its adapt(), or pass it a vocabulary")
            hashes = _hashes(tf.constant(keys)).numpy()
        order = np.argsort(hashes)
        self._hashes, self._keys, self._values = hashes[order], keys[order], values[order]
        self._default = table.default_value.numpy()
        if (self._hashes[1:] == self._hashes[:-1]).any():
            raise ValueError(f"layer '{name}' has two words with the same hash of 63 bits: leave one of them out")

    def lookup(self, keys: tf.Tensor) -> tf.Tensor:
        """Return the value of each key, in the shape of `keys`. A key that is not in the table gets the default."""
        flat = tf.reshape(keys, [-1])
        places = tf.searchsorted(tf.constant(self._hashes), _hashes(flat))
        places = tf.minimum(places, len(self._hashes) - 1)
        found = tf.equal(tf.gather(tf.constant(self._keys), places), flat)
        values = tf.where(found, tf.gather(tf.constant(self._values), places), self._default)
        return tf.reshape(values, tf.shape(keys))


def _hashes(keys: tf.Tensor) -> tf.Tensor:
    """Return the hash of each key, int64. The hash of an integer is the integer itself."""
    if keys.dtype == tf.string:
        return tf.strings.to_hash_bucket_fast(keys, 2**63 - 1)
    return tf.cast(keys, tf.int64)
