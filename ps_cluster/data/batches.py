"""Compute the batch of a step as a pure function of (seed, step), so that every worker computes the same batch for it.

This is TensorFlow graph code for use inside a `tf.function` on a worker.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

import tensorflow as tf

from ps_cluster.config.objectives import WEIGHT, ArrayField, ExampleSpec
from ps_cluster.config.samples import ConsecutiveExamples, Sample
from ps_cluster.data.packed import fields_of, file_name, targets_in
from ps_cluster.private_names import keep_from_folding

# `tf.random.experimental.index_shuffle` always uses 4 rounds, after which the orders of two epochs correlate. For
# 50,000 examples, each of 4,560 measured pairs of epochs correlated by more than 4 sigma, with coefficients up to 0.76.
# With 16 rounds, which take 6 us, the orders look independent.
_SHUFFLE_ROUNDS = 16
CHECKSUM_MASK = 2**52 - 1  # a row of the ledger is float64, which is exact for whole numbers up to this one
CHECKSUM_FACTOR = 31
_SAMPLE_KEY = 0x5A3D  # mixed into the shuffle key of samples, so that no sample has the order of an epoch


@dataclass(frozen=True)
class Batch:
    """The examples that a step trains on, with the values that determine their random augmentation."""

    seed: int  # 0 <= seed < 2**63
    step: tf.Tensor  # int64 []
    ids: tf.Tensor  # int64 [B], the examples' indices in the training set
    epochs: tf.Tensor  # int64 [B], the epoch of each example, from 0


def batch_of(
    step: tf.Tensor,
    *,
    batch_size: int,
    examples: int,
    seed: int,
    sample: Sample | ConsecutiveExamples | None = None,
    number: tf.Tensor | None = None,
) -> Batch:
    """Return the examples that step `step` trains on.

    The steps walk through the positions 0, 1, 2, …, and each step takes `batch_size` of them. In an epoch, each
    example of the training set (or only of the sample, if there is one) has one position. Every epoch puts the examples
    in a different random order. A batch may span two or more epochs.

    Args:
      step: int64 [], from 0.
      examples: the number of examples in the training set.
      seed: 0 <= seed < 2**63; different seeds give different orders.
      sample: the part of the training set to train on; None for all of it.
      number: int64 [], how many of the earlier steps take their examples from the same sample. None if all of them
        do, so that this number is `step`.
    """
    seen = examples if sample is None else sample.size(examples)
    position = (step if number is None else number) * batch_size + tf.range(batch_size, dtype=tf.int64)
    epochs = position // seen
    ids = _shuffled(position % seen, _key(seed, epochs), seen)
    return Batch(seed, step, ids if sample is None else ids_of_sample(sample, ids, examples), epochs)


def ids_of_sample(sample: Sample | ConsecutiveExamples, positions: tf.Tensor, examples: int) -> tf.Tensor:
    """Return the ids of the examples at the given positions of a sample, int64 [B].

    `positions`: int64 [B]. `examples`: the number of examples in the training set.
    """
    if isinstance(sample, ConsecutiveExamples):
        return sample.first + positions
    key = _key(sample.seed, tf.constant(_SAMPLE_KEY, tf.int64))
    return _shuffled(positions * sample.of + sample.index, key, examples * sample.copies) % examples


def _key(seed: int, number: tf.Tensor) -> tf.Tensor:
    """Mix a seed and a number (int64 [...]) into a key of the shuffle, int64 [..., 3].

    The shuffle uses only the low bits of each of the key's three numbers: 8 bits for up to 65,536 examples. Without
    mixing, seeds 0 and 256 give the same order, and so do epochs 0 and 256. The function is SplitMix64 (Steele, Lea,
    Flood 2014, "Fast splittable pseudorandom number generators", OOPSLA).
    """
    state = splitmix64(splitmix64(tf.constant(seed, tf.uint64)) + tf.cast(number, tf.uint64))
    words = [splitmix64(state + tf.constant(place, tf.uint64)) for place in range(3)]
    return tf.stack([tf.cast(tf.bitwise.right_shift(word, tf.constant(32, tf.uint64)), tf.int64) for word in words], -1)


def splitmix64(bits: tf.Tensor) -> tf.Tensor:
    bits += tf.constant(0x9E3779B97F4A7C15, tf.uint64)
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        bits = tf.bitwise.bitwise_xor(bits, tf.bitwise.right_shift(bits, tf.constant(shift, tf.uint64)))
        bits *= tf.constant(factor, tf.uint64)
    return tf.bitwise.bitwise_xor(bits, tf.bitwise.right_shift(bits, tf.constant(31, tf.uint64)))


def _shuffled(index: tf.Tensor, key: tf.Tensor, count: int | tf.Tensor) -> tf.Tensor:
    """Map indices by a random permutation of 0 .. count − 1. Return int64 [B]. `key`: int64 [3] or [B, 3]."""
    # The public wrapper accepts only one key for all indices. Wrapper and op use only the low 32 bits of each word.
    return tf.raw_ops.RandomIndexShuffle(
        index=index, seed=key, max_index=tf.cast(count - 1, tf.int64), rounds=_SHUFFLE_ROUNDS
    )


def checksum_of(ids: tf.Tensor) -> tf.Tensor:
    """Return a checksum of example ids and of their order, int64 [], below 2^52. `ids`: int64 [B]."""
    places = 2 * tf.range(tf.size(ids, tf.int64), dtype=tf.int64) + 1
    return tf.bitwise.bitwise_and(tf.reduce_sum((ids + 1) * places), CHECKSUM_MASK)


def append_to_checksum(before: tf.Tensor, of_batch: tf.Tensor) -> tf.Tensor:
    """Return the checksum of the example ids of several batches, int64 [].

    `before`: the checksum of all batches except the last one; 0 if there is only one batch. `of_batch`: the checksum
    of the last batch.
    """
    return tf.bitwise.bitwise_and(CHECKSUM_FACTOR * before + of_batch, CHECKSUM_MASK)


class BatchRows(NamedTuple):
    """The inputs, targets and weights of a batch, with the dtypes and shapes that they have in the packed files."""

    inputs: dict[str, tf.Tensor]  # [B, ...] each, by the names of the inputs
    target: tf.Tensor | dict[str, tf.Tensor]  # [B, ...]; several targets are in a mapping, by the names of their arrays
    weight: tf.Tensor | None  # float [B]; None if all examples count equally


def packed_examples(batch: Batch, spec: ExampleSpec, examples: int) -> dict[str, tf.Tensor]:
    """Read the examples of a batch from the packed files. Return a tensor [B, ...] for each field, by its name.

    The files are in the working directory of the process that executes the graph. `examples`: the number of examples in
    the training set.
    """
    return {
        name: tf.gather(map_rows(file_name("train", name, field), field.packed, examples), batch.ids)
        for name, field in fields_of(spec).items()
    }


def split_fields(packed: Mapping[str, tf.Tensor], spec: ExampleSpec) -> BatchRows:
    """Divide the arrays of a batch into inputs, target and weight. `packed`: the result of `packed_examples`."""
    inputs = {name: packed[name] for name in spec.inputs}
    return BatchRows(inputs, targets_in(packed, spec), packed.get(WEIGHT))


def map_rows(path: str, field: ArrayField, examples: int) -> tf.Tensor:
    """Memory-map a file of a packed data set read-only, and return its rows, [examples, *field.shape].

    The file holds raw values in C order. All processes of a machine share one copy of the file, in the page cache.
    `tf.gather` reads only the rows that it needs. A relative path is resolved by the process that executes the graph.
    Every call of the graph maps the file again, so the file must stay in place and must never be truncated (SIGBUS).
    The graph raises NotFoundError if the file is missing, and InternalError if it has fewer rows than `examples`.
    """
    shape = (examples, *field.shape)
    mapped = tf.raw_ops.ImmutableConst(dtype=field.dtype, shape=shape, memory_region_name=str(path))
    if not tf.executing_eagerly():
        # Without this, constant folding evaluates the node in the first call of a function and deep-copies the whole
        # file, only to find it too large for a constant. The process never frees this copy (150 MB).
        keep_from_folding(mapped)
    return mapped
