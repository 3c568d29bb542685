"""A training step's batch."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from ps_cluster.config import build_config
from ps_cluster.config.datasets import Contents
from ps_cluster.data.packed import write_packed
from ps_cluster.errors import UserError
from ps_cluster.models.flat import FlatNetwork
from ps_cluster.runs.run_dir import IDENTITY
from ps_cluster.training.step import TrainStep


def test_images_that_are_not_varied_come_to_the_network_as_float32_and_other_inputs_as_they_are(tmp_path, monkeypatch):
    rows = {"image": np.full((5, 4, 4, 1), 200, np.uint8), "codes": np.ones((5, 2), np.uint8), "target": np.arange(5)}
    dataset = write_packed(tmp_path / "packed", "packed_arrays", "real", Contents.of(rows, rows))
    monkeypatch.chdir(dataset.directory)
    config = build_config(None, {"data.dataset": "packed_arrays", "training.batch_size_per_worker": 2})
    network = FlatNetwork(keras.Sequential([keras.Input([3]), keras.layers.Dense(5)]))
    inputs = TrainStep(config, network, dataset.spec, train_examples=5).batch(np.int64(0)).inputs
    assert {name: rows.dtype.name for name, rows in inputs.items()} == {"image": "float32", "codes": "uint8"}


def parts_of_workers(folder, monkeypatch, mode, steps_of):
    """Return the examples, out of 31, that each of three workers trains on in its steps; `steps_of`: worker → them."""
    rows = {"number": np.arange(31, dtype=np.float32)[:, None], "target": np.arange(31) % 2}
    dataset = write_packed(folder / "packed", "packed_arrays", "real", Contents.of(rows, rows))
    monkeypatch.chdir(dataset.directory)
    config = build_config(
        None,
        {"data.dataset": "packed_arrays", "model.name": "mlp", "training.batch_size_per_worker": 5, "mode.name": mode}
        | {"cluster.workers": 3, "training.sample": "shard:worker"},
    )
    network = FlatNetwork(keras.Sequential([keras.Input([1]), keras.layers.Dense(1)]))
    step = TrainStep(config, network, dataset.spec, train_examples=31)
    taken = {}
    for worker, steps in steps_of.items():
        np.array([worker, 1000 + worker], np.int64).tofile(IDENTITY)
        # A graph for each worker: in one process the file is read once a graph, as a constant.
        batch = tf.function(lambda number: step.batch(number).inputs["number"], autograph=False)
        taken[worker] = [int(row) for number in steps for row in batch(tf.constant(number, tf.int64)).numpy()[:, 0]]
    return taken


def test_workers_in_step_pass_over_a_part_of_their_own_in_each_epoch(tmp_path, monkeypatch):
    taken = parts_of_workers(tmp_path, monkeypatch, "sync", {worker: range(worker, 7, 3) for worker in range(3)})
    assert sorted(taken[0][:11] + taken[1] + taken[2]) == list(range(31)), "11, 10 and 10 examples: each once"
    assert taken[0][11:] != taken[0][:4] and set(taken[0][11:]) < set(taken[0][:11])


def test_a_worker_trains_on_its_part_whichever_steps_it_gets(tmp_path, monkeypatch):
    numbers = np.random.default_rng(0).permutation(300)
    steps = {0: numbers[:90], 1: numbers[90:200], 2: numbers[200:210], 3: numbers[210:]}
    taken = {
        worker: set(examples) for worker, examples in parts_of_workers(tmp_path, monkeypatch, "async", steps).items()
    }
    assert taken[0] | taken[1] | taken[2] == set(range(31)) and sum(len(taken[worker]) for worker in range(3)) == 31
    assert taken[3] == taken[0], "a fourth worker, of `scale`, shares the part of the first"


@pytest.mark.parametrize("mode", ["single", "layers"])
def test_parts_of_workers_are_refused_where_no_worker_has_batches_of_its_own(mode):
    with pytest.raises(UserError, match="training.sample: got 'shard:worker': mode .* has no workers with batches"):
        build_config(None, {"mode.name": mode, "training.sample": "shard:worker"})
