"""Shards and bootstrap samples of the training examples."""

import numpy as np
import pytest
import tensorflow as tf

from ps_cluster.config import build_config
from ps_cluster.config.samples import parse_sample
from ps_cluster.data.batches import batch_of, ids_of_sample
from ps_cluster.errors import UserError


def rows(text, examples):
    """The ids of a whole sample, in its order."""
    sample = parse_sample(text)
    return ids_of_sample(sample, tf.range(sample.size(examples), dtype=tf.int64), examples).numpy()


@pytest.mark.parametrize(("examples", "count"), [(1000, 4), (1003, 4), (5, 5)])
def test_shards_are_disjoint_and_together_are_all(examples, count):
    shards = [rows(f"shard:{index}/{count}", examples) for index in range(count)]
    assert sorted(np.concatenate(shards)) == list(range(examples))
    assert max(map(len, shards)) - min(map(len, shards)) <= 1


def test_a_shard_of_data_in_a_regular_order_is_no_regular_part_of_it():
    labels = np.arange(20_000) % 10
    counts = np.bincount(labels[rows("shard:0/10", 20_000)], minlength=10)
    assert counts.min() > 140 and counts.max() < 260, "every tenth example would be of one class"


def test_a_bootstrap_sample_is_drawn_with_replacement_by_its_seed():
    first, second = rows("bootstrap:0", 20_000), rows("bootstrap:1", 20_000)
    for drawn in (first, second):
        counts = np.bincount(np.bincount(drawn, minlength=20_000), minlength=4) / 20_000
        np.testing.assert_allclose(counts[:4], np.exp(-1) / np.array([1, 1, 2, 6]), atol=0.01)  # Poisson
    assert abs(np.corrcoef(first, second)[0, 1]) < 0.03
    assert abs(np.isin(first, second).mean() - (1 - np.exp(-1))) < 0.015
    assert (rows("bootstrap:0", 20_000) == first).all()


def test_an_epoch_is_a_pass_over_the_sample_whatever_the_batch():
    sample = parse_sample("shard:1/3")
    settings = {"batch_size": 10, "examples": 60, "seed": 5, "sample": sample}
    batches = [batch_of(tf.constant(step, tf.int64), **settings) for step in range(4)]
    epochs, drawn = (np.concatenate([getattr(batch, name) for batch in batches]) for name in ("epochs", "ids"))
    for epoch in (0, 1):
        assert sorted(drawn[epochs == epoch]) == sorted(rows("shard:1/3", 60))
    assert (drawn[epochs == 0] != drawn[epochs == 1]).any()


def test_the_length_of_a_run_counts_passes_over_its_sample():
    config = build_config(None, {"training.sample": "shard:0/4", "training.epochs": 2.0, "mode.name": "single"})
    assert config.examples_seen(1000) == 250
    assert config.total_updates(12_800) == 2 * 3200 // config.training.batch_size_per_worker
    assert build_config(None, {"training.sample": "bootstrap:3"}).examples_seen(1000) == 1000


NO_SAMPLES = "half shard shard:4/4 shard:0/0 shard:0/1001 shard:-1/4 shard:01/4 bootstrap bootstrap:-1 rows: files:3"


@pytest.mark.parametrize("text", ["", *NO_SAMPLES.split()])
def test_a_text_that_is_no_sample_is_refused(text):
    with pytest.raises(UserError, match="training.sample: got .* is no sample: write all, shard:0/4"):
        build_config(None, {"training.sample": text})
