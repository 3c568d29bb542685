"""Compute the batch of a step id: a pure function of (seed, step), so every worker computes the same batch.

TensorFlow graph code, for use inside a `tf.function` on a worker.
"""

from __future__ import annotations

import tensorflow as tf

from ps_cluster.data.packed import IMAGE_SHAPE

# `tf.random.experimental.index_shuffle` fixes 4 rounds, and then the orders of two epochs correlate (measured over
# 50,000 examples: up to 0.76, each of 4,560 pairs beyond 4 sigma). With 16 rounds they pass for independent, for 6 us.
_SHUFFLE_ROUNDS = 16


def example_ids(step: tf.Tensor, *, batch_size: int, examples: int, seed: int) -> tuple[tf.Tensor, tf.Tensor]:
    """Return the images that step `step` trains on.

    Steps walk through positions 0, 1, 2, ..., `batch_size` at a time. Every `examples` positions are an epoch,
    which visits each image exactly once in its own order. A batch may span epochs.

    Args:
      step: int64 [], from 0.
      batch_size: images of one step (B).
      examples: images of the training set.
      seed: 0 <= seed < 2**63; another seed gives other orders.

    Returns:
      ids int64 [B] in [0, examples) and the epoch that each belongs to, int64 [B] from 0.

    Raises:
      ValueError: `batch_size` or `examples` is below 1.
    """
    if batch_size < 1 or examples < 1:
        raise ValueError(f"batch_size and examples must be at least 1, got {batch_size} and {examples}")
    position = step * batch_size + tf.range(batch_size, dtype=tf.int64)
    epochs = position // examples
    # The raw op: the public wrapper accepts only one key for all indices. Both use only the low 32 bits of each word.
    low, high = (tf.fill([batch_size], tf.constant(word, tf.int64)) for word in (seed & 0xFFFF_FFFF, seed >> 32))
    ids = tf.raw_ops.RandomIndexShuffle(
        index=position % examples,
        seed=tf.stack([low, high, epochs], axis=1),
        max_index=tf.constant(examples - 1, tf.int64),
        rounds=_SHUFFLE_ROUNDS,
    )
    return ids, epochs


def load_split(images_path: str, labels_path: str, examples: int) -> tuple[tf.Tensor, tf.Tensor]:
    """Map a packed split read-only. All processes of a machine share one copy, in the page cache.

    Relative paths are resolved by the process that executes the graph. Every call of the graph maps the files anew, so
    they must stay in place and must never be shortened in place (SIGBUS).

    Args:
      images_path: raw uint8 of shape [N, 32, 32, 3], C order.
      labels_path: raw uint8 of shape [N].
      examples: N.

    Returns:
      images uint8 [N, 32, 32, 3] and labels uint8 [N].

    Raises:
      tf.errors.NotFoundError: when executed, if a file is missing.
      tf.errors.InternalError: when executed, if a file is shorter than `examples` demand.
    """
    return _mapped(images_path, (examples, *IMAGE_SHAPE)), _mapped(labels_path, (examples,))


def gather_batch(images: tf.Tensor, labels: tf.Tensor, ids: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """Return the examples `ids` (int64 [B]) of a split: images uint8 [B, 32, 32, 3] and labels int32 [B]."""
    return tf.gather(images, ids), tf.cast(tf.gather(labels, ids), tf.int32)


def _mapped(path: str, shape: tuple[int, ...]) -> tf.Tensor:
    mapped = tf.raw_ops.ImmutableConst(dtype=tf.uint8, shape=shape, memory_region_name=str(path))
    if not tf.executing_eagerly():
        # Without this, constant folding evaluates the node in the first call of a function and deep-copies the whole
        # file, only to find it too large for a constant; the 150 MB stay with the process. Constant folding skips nodes
        # with this attribute (IsConstantFoldable, common_runtime/constant_folding.cc).
        empty = tf.compat.v1.AttrValue(list=tf.compat.v1.AttrValue.ListValue())
        mapped.op._set_attr("_scoped_allocator", empty)
    return mapped
