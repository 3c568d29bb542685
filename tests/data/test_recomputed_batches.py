"""The examples of a step as numpy computes them again are those on which a worker's graph trains."""

import numpy as np
import pytest
import tensorflow as tf

from ps_cluster.config import build_config
from ps_cluster.config.samples import OF_WORKER, ConsecutiveExamples, Sample
from ps_cluster.data.batches import append_to_checksum, batch_of, checksum_of
from ps_cluster.data.recomputed_batches import RecomputedBatches
from tests.helpers.ledgers import rows_of

EXAMPLES, BATCH = 1003, 16
SETTINGS = {"model.name": "tutorial_cnn", "training.batch_size_per_worker": BATCH, "training.steps": 500}


def batches_of(**values):
    return RecomputedBatches(build_config(overrides=SETTINGS | values), EXAMPLES)


@pytest.mark.parametrize("seed", [0, 7, 2**31 - 1])
@pytest.mark.parametrize("sample", ["all", "shard:1/3", "bootstrap:5"])
def test_the_ids_and_epochs_of_each_step_equal_those_of_the_graph(seed, sample):
    config = build_config(overrides=SETTINGS | {"training.seed": seed, "training.sample": sample})
    recomputed = RecomputedBatches(config, EXAMPLES)
    for step in (0, 1, 62, 63, 450):
        graph = batch_of(
            tf.constant(step, tf.int64), batch_size=BATCH, examples=EXAMPLES, seed=seed, sample=config.sample
        )
        found = recomputed.of_batches(np.array(step), worker=0)
        assert found.ids.tolist() == graph.ids.numpy().tolist()
        assert found.epochs.tolist() == graph.epochs.numpy().tolist()


@pytest.mark.parametrize(
    ("text", "samples"),
    [
        (OF_WORKER, [Sample(index=worker, of=3) for worker in range(3)]),
        (
            "rows:100,300,1003",
            [ConsecutiveExamples(0, 100), ConsecutiveExamples(100, 200), ConsecutiveExamples(300, 703)],
        ),
    ],
)
def test_where_each_worker_has_its_own_part_the_ids_are_those_of_its_own_batches(text, samples):
    recomputed = batches_of(**{"training.sample": text, "mode.name": "sync-ps", "cluster.workers": 3})
    for worker, sample in enumerate(samples):
        step = 3 * 40 + worker  # its 40th batch
        graph = batch_of(
            tf.constant(step, tf.int64),
            batch_size=BATCH, examples=EXAMPLES, seed=0,
            sample=sample, number=tf.constant(40, tf.int64),
        )  # fmt: skip
        assert recomputed.of_batches(np.array(step), worker).ids.tolist() == graph.ids.numpy().tolist()


def test_the_checksum_of_a_row_is_that_of_the_batches_of_its_step():
    recomputed = batches_of(**{"mode.name": "diloco", "mode.local_steps": 3})
    for batches in (1, 3):  # a slow worker may take fewer of them
        expected = tf.constant(0, tf.int64)
        for batch in range(9 * 3, 9 * 3 + batches):
            ids = batch_of(tf.constant(batch, tf.int64), batch_size=BATCH, examples=EXAMPLES, seed=0).ids
            expected = append_to_checksum(expected, checksum_of(ids))
        assert recomputed.checksums(rows_of([9], examples=batches * BATCH)).tolist() == [int(expected)]


def test_a_checksum_tells_other_examples_and_another_order_apart():
    ids = np.array([5, 9, 2, 7])
    found = {int(checksum_of(tf.constant(one, tf.int64))) for one in (ids, ids[::-1], ids + 1, ids[:3])}
    assert len(found) == 4 and max(found) < 2**52
