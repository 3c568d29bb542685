"""The layer `DynamicEmbedding`: an embedding that takes any integer or string as a key.

Import it from `ps_cluster.layers`.
"""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import tensorflow as tf

from ps_cluster.models.keyed_rows import EMPTY, WAYS, KeyedTableLayout, fingerprints


@keras.saving.register_keras_serializable("ps_cluster")
class DynamicEmbedding(keras.Layer):
    """An embedding that has rows only for keys that were trained. `ps_cluster.fit` and `ps-cluster run` can train it.

        users = keras.Input([1], dtype="int64")
        vectors = ps_cluster.layers.DynamicEmbedding(budget=1_000_000, output_dim=16)(users)

    Two keys never share a row. A key that has no row gets its initial value, which depends only on `seed` and the key.
    The parameter servers give a key a row at the `admit_after`-th update that has a gradient for the key, which is the
    first such update by default. Until then its gradients are dropped. A row is evicted if its key has no gradient in
    `expire_after` successive updates, or if a new row needs its place. The layer has places for `budget` rows. They are
    divided into buckets of 16 places, and each key belongs to one bucket. If that bucket is full, a new key takes the
    place of the row that was unused for the longest time. A key whose row was evicted starts again from its initial
    value. Buckets fill unevenly. With a budget of 1.33 times the number of keys in use, 2 % of these keys have no row
    at any one time. With a budget of twice that number, 0.1 % have no row.

    In plain Keras the layer looks up the rows of the keys that were trained, and gives all other keys their initial
    value. `Model.fit` can train a model with this layer only after `layer.trainable = False`.

    Args:
      budget: the largest number of rows. A number above 16 is rounded down to a multiple of 16.
      output_dim: the number of values in a row.
      seed: decides the initial values. Give each layer a different seed.
      scale: initial values are uniform between -scale and scale.
      admit_after: a key gets a row at its `admit_after`-th update with a gradient.
      expire_after: a row is evicted after this many successive updates without a gradient for its key; None: rows do
        not expire.

    Call arguments:
      keys: integers of any dtype, or strings, [...]. The number -2**63 is reserved. Strings are distinguished by
        fingerprints of 64 bits. The probability that any two of n different strings have the same fingerprint, and then
        share a row, is about n**2 / 2**65: 3e-8 for a million strings, 3 % for a billion.
    Returns:
      The rows, [..., output_dim], in the layer's compute dtype.
    Raises:
      ValueError: an argument is out of its range; keys are floats; or plain Keras trains the layer.
    """

    def __init__(
        self,
        budget: int,
        output_dim: int,
        *,
        seed: int = 0,
        scale: float = 0.05,
        admit_after: int = 1,
        expire_after: int | None = None,
        **kwargs: Any,
    ):
        super().__init__(**kwargs)
        counts = {"budget": budget, "output_dim": output_dim, "admit_after": admit_after, "expire_after": expire_after}
        for name, value in counts.items():
            if value is not None and value < 1:
                raise ValueError(f"DynamicEmbedding: {name}: got {value}: it has to be at least 1")
        self.budget, self.output_dim, self.seed, self.scale = budget, output_dim, seed, scale
        self.admit_after, self.expire_after = admit_after, expire_after
        ways = min(WAYS, budget)
        self.layout = KeyedTableLayout(
            self.name, budget // ways, ways, output_dim, seed, scale, admit_after, expire_after
        )

    def build(self, input_shape: tuple[int | None, ...] | None = None) -> None:
        """Create the weights: the rows `embeddings`, float32 [places, output_dim], and their `keys`, int64 [places]."""
        self.embeddings = self.add_weight(
            shape=(self.layout.capacity, self.output_dim),
            initializer="zeros",
            dtype="float32",
            name="embeddings",
            autocast=False,
        )
        self.keys = self.add_weight(
            shape=(self.layout.capacity,), initializer=_empty, dtype="int64", name="keys", trainable=False
        )
        self.built = True

    def as_keys(self, keys: tf.Tensor) -> tf.Tensor:
        """Return the number that identifies each of k keys, int64 [k]. `keys`: integers or strings of any shape."""
        keys = tf.convert_to_tensor(keys)
        if keys.dtype == tf.string:
            keys = fingerprints(keys)
        elif not keys.dtype.is_integer:
            raise ValueError(f"DynamicEmbedding: '{self.name}' got keys of {keys.dtype.name}: give integers or strings")
        return tf.reshape(tf.cast(keys, tf.int64), [-1])

    def call(self, keys: tf.Tensor, training: bool | None = None) -> tf.Tensor:
        """Return the row of each key, or the initial value of a key that has no row, [..., output_dim]."""
        embeddings, own = self.embeddings.value, self.keys.value
        # A worker replaces the variables of the model by tensors when it calls the model. Plain Keras does not.
        if training and self.trainable and isinstance(embeddings, tf.Variable):
            raise ValueError(
                f"DynamicEmbedding: Keras alone can't train '{self.name}': call ps_cluster.fit instead of Model.fit, "
                "or set trainable = False on this layer to train only the other layers"
            )
        wanted, layout = self.as_keys(keys), self.layout
        bucket = layout.bucket_of(wanted)
        column = layout.columns_of(wanted, bucket, tf.reshape(own, [layout.buckets, layout.ways]))
        rows = tf.gather(embeddings, bucket * layout.ways + tf.maximum(column, 0))
        rows = tf.where((column >= 0)[:, None], rows, layout.initial(wanted))
        rows = tf.reshape(rows, tf.concat([tf.shape(keys), [self.output_dim]], 0))
        return tf.cast(tf.ensure_shape(rows, [*keys.shape, self.output_dim]), self.compute_dtype)

    def compute_output_spec(self, keys: keras.KerasTensor, training: bool | None = None) -> keras.KerasTensor:
        """Return shape and dtype of the rows."""
        return keras.KerasTensor((*keys.shape, self.output_dim), dtype=self.compute_dtype)

    def get_config(self) -> dict[str, Any]:
        """Return the arguments of the layer."""
        names = ("budget", "output_dim", "seed", "scale", "admit_after", "expire_after")
        return dict(super().get_config()) | {name: getattr(self, name) for name in names}


def _empty(shape: tuple[int, ...], dtype: str) -> np.ndarray:
    return np.full(shape, EMPTY, dtype)
