"""Find rows by their keys, as in a `DynamicEmbedding`: buckets, hashes and initial values.

    key, int64  ──hash──►  one of the buckets  ──compare with the keys there──►  one of the bucket's places, or none

A key's row can only be in the key's bucket, as in a set-associative cache. So the content of a table is a few arrays of
fixed shapes, which a checkpoint contains unchanged, and a row to evict is searched for in only one bucket. The
launcher imports this module, so it must not import TensorFlow.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ps_cluster.config.lazy import tf

EMPTY = -(2**63)  # the key of a place without a row; no row can have this key
WAYS = 16  # places in a bucket
_STEP = 0x9E3779B97F4A7C15 - 2**64  # as an int64
_FACTORS = ((30, 0xBF58476D1CE4E5B9 - 2**64), (27, 0x94D049BB133111EB - 2**64))
_BITS = 24  # random bits of an initial value; the precision of float32


@dataclass(frozen=True)
class KeyedTableLayout:
    """The dimensions and other properties of a table whose rows are found by their keys.

    Each bucket has `ways` places for rows. All places are numbered: place w of bucket b has the number b * ways + w.
    """

    name: str  # the name of the layer
    buckets: int
    ways: int  # places in each bucket
    width: int  # how many numbers a row has
    seed: int
    scale: float  # initial values are uniform between -scale and scale
    admit_after: int = 1  # a key gets its row when it is pushed for the `admit_after`-th time
    expire_after: int | None = None  # a row is evicted after this many versions without an update; None: never

    @property
    def capacity(self) -> int:
        return self.buckets * self.ways

    @property
    def columns(self) -> int:
        """The number of keys that a server can store for each bucket.

        There is room for `ways` keys that have a row and, if `admit_after` is above 1, for as many keys that wait for a
        row.
        """
        return self.ways * (1 if self.admit_after == 1 else 2)

    @property
    def state_columns(self) -> int:
        """The number of integers, such as keys, that a checkpoint stores to manage the rows of a bucket."""
        return 3 * self.columns + 1

    @property
    def state_size(self) -> int:
        """The number of integers, such as keys, that a checkpoint stores to manage the rows of the table."""
        return self.buckets * self.state_columns

    def bucket_of(self, keys: tf.Tensor) -> tf.Tensor:
        """Return the bucket of each key, int64 [k]. `keys`: int64 [k]."""
        return tf.math.floormod(_mixed(keys), self.buckets)

    def columns_of(self, keys: tf.Tensor, buckets: tf.Tensor, table: tf.Tensor) -> tf.Tensor:
        """Return the column of each key in its bucket, int64 [k]; -1 if the bucket does not have the key.

        `table`: int64 [buckets, columns], the keys of each bucket. `buckets`: int64 [k], the index of each key's bucket
        in `table`.
        """
        is_there = tf.equal(tf.gather(table, buckets), keys[:, None]) & tf.not_equal(keys, EMPTY)[:, None]
        column = tf.argmax(tf.cast(is_there, tf.int8), axis=1)
        return tf.where(tf.reduce_any(is_there, axis=1), column, -1)

    def initial(self, keys: tf.Tensor) -> tf.Tensor:
        """Return the initial row of each key, float32 [k, width], computed from seed and key. `keys`: int64 [k]."""
        seed = _mixed(tf.constant(self.seed, tf.int64))
        counters = _mixed(keys + seed)[:, None] + _STEP * tf.range(1, self.width + 1, dtype=tf.int64)
        bits = _shifted(_mixed(counters), 64 - _BITS)
        return (tf.cast(bits, tf.float32) * 2.0 ** (1 - _BITS) - 1.0) * self.scale


@dataclass(frozen=True)
class KeyedPart:
    """The initial content of one server's part of a table: the buckets whose number modulo `servers` is `index`."""

    layout: KeyedTableLayout  # the properties of the whole table
    keys: np.ndarray  # int64 [places of the part], the key of each place; EMPTY if the place has no row
    index: int = 0
    servers: int = 1

    def of_server(self, index: int, servers: int) -> KeyedPart:
        """Return the part for server `index` of `servers`. Call this on a part that contains the whole table."""
        return KeyedPart(self.layout, self.keys.reshape(-1, self.layout.ways)[index::servers].ravel(), index, servers)


def fingerprints(words: tf.Tensor) -> tf.Tensor:
    """Return a number for each word, int64 [...]: the 64 bits of FarmHash's Fingerprint64. `words`: string [...]."""
    found = tf.bitcast(tf.fingerprint(tf.reshape(words, [-1])), tf.int64)
    return tf.reshape(found, tf.shape(words))


def _mixed(keys: tf.Tensor) -> tf.Tensor:
    """Hash int64 keys with the finaliser of SplitMix64 (Steele et al. 2014, doi 10.1145/2660193.2660195)."""
    for shift, factor in _FACTORS:
        keys = tf.bitwise.bitwise_xor(keys, _shifted(keys, shift)) * factor
    return tf.bitwise.bitwise_xor(keys, _shifted(keys, 31))


def _shifted(bits: tf.Tensor, shift: int) -> tf.Tensor:
    """Shift int64 numbers to the right, and fill up with zeros. TensorFlow's own shift fills up with the sign bit."""
    return tf.bitwise.bitwise_and(tf.bitwise.right_shift(bits, tf.constant(shift, tf.int64)), 2 ** (64 - shift) - 1)
