"""Recompute which examples each step trains on, so that the rows of the ledger can be compared with the result.

The workers' graphs compute the same in `data/batches.py`. This module shares with them TensorFlow's shuffle, the rule
that divides the examples among workers (`WorkerParts`), and the two constants of the checksum. The comparison can't
find a mistake in these shared parts. Everything else is computed here once more, in numpy.
"""

from __future__ import annotations

from dataclasses import dataclass
from operator import getitem

import numpy as np
import tensorflow as tf

from ps_cluster.config import RunConfig
from ps_cluster.config.samples import ConsecutiveExamples, Sample, WorkerParts
from ps_cluster.data.batches import CHECKSUM_FACTOR, CHECKSUM_MASK

# SplitMix64 (Steele, Lea, Flood 2014, "Fast splittable pseudorandom number generators", OOPSLA).
_INCREMENT = np.uint64(0x9E3779B97F4A7C15)
_ROUNDS = ((np.uint64(30), np.uint64(0xBF58476D1CE4E5B9)), (np.uint64(27), np.uint64(0x94D049BB133111EB)))
_LAST_SHIFT, _HALF = np.uint64(31), np.uint64(32)
_KEY_OF_SAMPLES = 0x5A3D
_SHUFFLE_ROUNDS = 16


@dataclass(frozen=True)
class ExampleIds:
    """The indices and epochs of the examples of some batches."""

    ids: np.ndarray  # int64 [..., B], indices in the training set
    epochs: np.ndarray  # int64 [..., B], the epoch of each example, from 0


class RecomputedBatches:
    """Recomputes the batches of a run from its settings and the number of training examples, and from nothing else."""

    def __init__(self, config: RunConfig, train_examples: int):
        self._config, self._examples = config, train_examples
        self._batch_size, self._batches_per_step = config.training.batch_size_per_worker, config.batches_per_step
        self._by_worker = isinstance(config.sample, WorkerParts)

    def of_batches(self, batches: np.ndarray, worker: int) -> ExampleIds:
        """Return the examples of some batches.

        Args:
          batches: the numbers of the batches, int64 [...]. If each step has k batches, step i has the batches k * i to
            k * i + k - 1.
          worker: the index of the worker that trains on the batches. It matters only if each worker has its own part of
            the examples.
        """
        config, numbers = self._config, batches
        sample: Sample | ConsecutiveExamples | WorkerParts | None = config.sample
        if isinstance(sample, WorkerParts):
            sample = sample.part(worker, config.cluster.workers, getitem)
            # The number of the batch among this worker's batches: each update takes one step of every worker.
            step, within = np.divmod(batches, self._batches_per_step)
            numbers = step // config.steps_per_update * self._batches_per_step + within
        seen = self._examples if sample is None else sample.size(self._examples)
        positions = numbers[..., None] * self._batch_size + np.arange(self._batch_size)
        epochs, places = np.divmod(positions, seen)
        ids = _shuffled(places, _keys(config.training.seed, epochs), seen)
        if isinstance(sample, ConsecutiveExamples):
            ids = sample.first + ids
        elif sample is not None:
            key = np.broadcast_to(_keys(sample.seed, np.array(_KEY_OF_SAMPLES)), (*ids.shape, 3))
            ids = _shuffled(ids * sample.of + sample.index, key, self._examples * sample.copies) % self._examples
        return ExampleIds(ids, epochs)

    def checksums(self, rows: np.ndarray) -> np.ndarray:
        """Return the checksum of example ids that each row of the ledger must have, int64 [k].

        `rows`: a structured array [k] of `ledger.ROW`. If a step has several batches, a slow worker may take only the
        first ones. Its row then covers only the examples of these batches.
        """
        found = np.zeros(len(rows), np.int64)
        counts = np.clip(rows["examples"].astype(np.int64) // self._batch_size, 0, self._batches_per_step)
        steps, workers = rows["step"].astype(np.int64), rows["worker"].astype(np.int64)
        for worker in np.unique(workers) if self._by_worker else [0]:
            of_worker = (workers == worker) | (not self._by_worker)
            for place in range(self._batches_per_step):
                chosen = np.flatnonzero(of_worker & (counts > place))
                batches = steps[chosen] * self._batches_per_step + place
                of_batch = _checksums(self.of_batches(batches, int(worker)).ids)
                found[chosen] = of_batch if place == 0 else (CHECKSUM_FACTOR * found[chosen] + of_batch) & CHECKSUM_MASK
        return found


def _checksums(ids: np.ndarray) -> np.ndarray:
    """Return the checksum of each batch, int64 [k]. `ids`: int64 [k, B]."""
    checksums: np.ndarray = ((ids + 1) * (2 * np.arange(ids.shape[-1]) + 1)).sum(axis=-1) & CHECKSUM_MASK
    return checksums


def _keys(seed: int, numbers: np.ndarray) -> np.ndarray:
    """Return the keys of the shuffle for a seed and numbers, int64 [..., 3]. `numbers`: int64 [...]."""
    with np.errstate(over="ignore"):  # the arithmetic is meant to be modulo 2^64
        state = _mixed(_mixed(np.array(seed, np.uint64)) + numbers.astype(np.uint64))
        words = [_mixed(state + np.uint64(place)) >> _HALF for place in range(3)]
    return np.stack(words, axis=-1).astype(np.int64)


def _mixed(bits: np.ndarray) -> np.ndarray:
    bits = bits + _INCREMENT
    for shift, factor in _ROUNDS:
        bits = (bits ^ (bits >> shift)) * factor
    mixed: np.ndarray = bits ^ (bits >> _LAST_SHIFT)
    return mixed


def _shuffled(index: np.ndarray, keys: np.ndarray, count: int) -> np.ndarray:
    """Map indices by a random permutation of 0 .. count - 1. Return int64 in the shape of `index`."""
    if not index.size:  # the operation refuses an empty input
        return index
    shuffled = tf.raw_ops.RandomIndexShuffle(
        index=index.ravel(), seed=keys.reshape(-1, 3), max_index=np.int64(count - 1), rounds=_SHUFFLE_ROUNDS
    )
    found: np.ndarray = shuffled.numpy().reshape(index.shape)
    return found
