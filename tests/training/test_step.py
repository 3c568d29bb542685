"""A training step's batch."""

import re

import keras
import numpy as np
import pytest
import tensorflow as tf

from ps_cluster.config import build_config
from ps_cluster.config.datasets import Contents
from ps_cluster.data.packing import write_packed
from ps_cluster.errors import UserError
from ps_cluster.models import build
from ps_cluster.models.embedding_tables import Tables
from ps_cluster.models.failures import failure_of_computation
from ps_cluster.models.flat import FlatNetwork, flatten, statistics_of
from ps_cluster.models.user_networks import check_image_sizes
from ps_cluster.runs.run_dir import IDENTITY
from ps_cluster.training.learning_rate import learning_rate
from ps_cluster.training.step import TrainStep


def test_images_that_are_not_varied_come_to_the_network_as_float32_and_other_inputs_as_they_are(tmp_path, monkeypatch):
    rows = {"image": np.full((5, 4, 4, 1), 200, np.uint8), "codes": np.ones((5, 2), np.uint8), "target": np.arange(5)}
    dataset = write_packed(tmp_path / "packed", "packed_arrays", "real", Contents.of(rows, rows))
    monkeypatch.chdir(dataset.directory)
    config = build_config(None, {"data.dataset": "packed_arrays", "training.batch_size_per_worker": 2})
    network = FlatNetwork(keras.Sequential([keras.Input([3]), keras.layers.Dense(5)]))
    inputs = TrainStep(config, network, dataset.spec, train_examples=5).batch(np.int64(0)).inputs
    assert {name: rows.dtype.name for name, rows in inputs.items()} == {"image": "float32", "codes": "uint8"}


def test_an_error_in_the_users_own_computation_is_told_with_its_layer_and_its_reason(tmp_path, monkeypatch):
    rows = {"codes": np.full((5, 2), 20, np.int32), "target": np.arange(5)}
    dataset = write_packed(tmp_path / "packed", "packed_arrays", "real", Contents.of(rows, rows))
    monkeypatch.chdir(dataset.directory)
    config = build_config(None, {"data.dataset": "packed_arrays", "training.batch_size_per_worker": 2})
    embedding = keras.layers.Embedding(10, 3, name="words")
    layers = [keras.Input([2], dtype="int32"), embedding, keras.layers.Flatten(), keras.layers.Dense(5)]
    network = FlatNetwork(keras.Sequential(layers, name="mine"))
    step = TrainStep(config, network, dataset.spec, train_examples=5)
    vectors = tf.constant(flatten(network.model.trainable_variables)), tf.zeros([network.statistics.length])
    with pytest.raises(tf.errors.InvalidArgumentError) as error:
        tf.function(lambda number: step(number, *vectors), autograph=False)(tf.constant(0, tf.int64))
    place, _, reason = str(failure_of_computation(error.value)).partition(": ")
    assert re.fullmatch(r"the network's own computation failed \(in 'mine_?\d*/words_?\d*'\)", place)
    assert reason == "indices[0,0] = 20 is not in [0, 10)"
    step = TrainStep(config, FlatNetwork(network.model, tables=Tables([embedding])), dataset.spec, train_examples=5)
    with pytest.raises(tf.errors.InvalidArgumentError) as error:  # before the rows are pulled
        tf.function(step.rows, autograph=False)(tf.constant(0, tf.int64))
    place, _, reason = str(failure_of_computation(error.value)).partition(": ")
    assert re.fullmatch(r"the network's own computation failed \(test_step.py:\d+\)", place)
    told = "assertion failed: [the Embedding layer words has rows 0 to 9, but got the ids:] [20 20 20 20]"
    assert reason == told


def parts_of_workers(folder, monkeypatch, mode, steps_of, **values):
    """Return the examples, out of 31, that each of three workers trains on in its batches; `steps_of`: worker → them."""
    rows = {"number": np.arange(31, dtype=np.float32)[:, None], "target": np.arange(31) % 2}
    dataset = write_packed(folder / "packed", "packed_arrays", "real", Contents.of(rows, rows))
    monkeypatch.chdir(dataset.directory)
    config = build_config(
        None,
        {"data.dataset": "packed_arrays", "model.name": "mlp", "training.batch_size_per_worker": 5, "mode.name": mode}
        | {"cluster.workers": 3, "training.sample": "shard:worker", **values},
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


def test_so_do_workers_that_take_local_steps_in_rounds(tmp_path, monkeypatch):
    rounds, local_steps = 2, 2
    batches = {
        worker: [(number * 3 + worker) * local_steps + step for number in range(rounds) for step in range(local_steps)]
        for worker in range(3)
    }
    values = {"mode.local_steps": local_steps}
    taken = parts_of_workers(tmp_path, monkeypatch, "sync-diloco", batches, **values)
    assert sorted(taken[0][:11] + taken[1][:10] + taken[2][:10]) == list(range(31))


def test_local_steps_of_a_round_have_the_rates_of_their_places_whichever_worker_takes_them():
    values = {"mode.name": "sync-diloco", "cluster.workers": 2, "mode.local_steps": 4}
    config = build_config(None, values | {"schedule.warmup_fraction": 1.0, "schedule.start_factor": 0.0})
    rates = [float(learning_rate(config, 32, tf.constant(batch, tf.int64))) for batch in range(16)]
    assert rates[:4] == rates[4:8] and rates[8:12] == rates[12:], "a round is eight batches, four of each worker"
    assert np.diff(rates[:4] + rates[8:12]) == pytest.approx([config.optimizer.learning_rate / 15] * 7)


def test_a_worker_trains_on_its_part_whichever_steps_it_gets(tmp_path, monkeypatch):
    numbers = np.random.default_rng(0).permutation(300)
    steps = {0: numbers[:90], 1: numbers[90:200], 2: numbers[200:210], 3: numbers[210:]}
    taken = {
        worker: set(examples) for worker, examples in parts_of_workers(tmp_path, monkeypatch, "async", steps).items()
    }
    assert taken[0] | taken[1] | taken[2] == set(range(31)) and sum(len(taken[worker]) for worker in range(3)) == 31
    assert taken[3] == taken[0], "a fourth worker, of `scale`, shares the part of the first"


def test_a_worker_with_rows_of_its_own_passes_over_them_and_no_others(tmp_path, monkeypatch):
    numbers = np.arange(60)
    steps = dict.fromkeys(range(4), numbers)
    taken = parts_of_workers(tmp_path, monkeypatch, "async", steps, **{"training.sample": "rows:4,20,31"})
    rows = {0: range(4), 1: range(4, 20), 2: range(20, 31), 3: range(4)}
    for worker, examples in taken.items():
        epochs = [examples[at : at + len(rows[worker])] for at in range(0, len(examples), len(rows[worker]))]
        assert all(sorted(epoch) == [*rows[worker]] for epoch in epochs[:-1]), worker
    assert taken[1][:16] != taken[1][16:32], "each epoch has an order of its own"


@pytest.mark.parametrize("mode", ["single", "layers"])
def test_parts_of_workers_are_refused_where_no_worker_has_batches_of_its_own(mode):
    with pytest.raises(UserError, match="training.sample: got 'shard:worker': mode .* has no workers with batches"):
        build_config(None, {"mode.name": mode, "training.sample": "shard:worker"})


SMALLER = [{"scale": 0.5, "until": 0.3}, {"scale": 0.75, "until": 0.6}]


def steps_with_smaller_images(folder, monkeypatch, **values):
    """Return the step of resnet_small over ten updates, its network, and its initial weights and statistics."""
    random = np.random.default_rng(0)
    rows = {"image": random.integers(0, 256, (40, 32, 32, 3)).astype(np.uint8), "target": np.arange(40) % 10}
    dataset = write_packed(folder / "packed", "packed_arrays", "real", Contents.of(rows, rows))
    monkeypatch.chdir(dataset.directory)
    changes = {"data.dataset": "packed_arrays", "model.name": "resnet_small", "model.precision": "float32"}
    changes |= {"training.batch_size_per_worker": 4, "training.steps": 10, "schedule.image_scales": SMALLER, **values}
    config = build_config(None, changes)
    model = build.build(config.model, dataset.spec, seed=0)
    check_image_sizes(model, config)
    network = FlatNetwork(model)
    start = tf.constant(flatten(model.trainable_variables)), tf.constant(flatten(statistics_of(model)))
    return TrainStep(config, network, dataset.spec, train_examples=40), network, start


def test_the_images_of_a_step_are_as_small_as_its_place_in_the_training_says(tmp_path, monkeypatch):
    step, _, _ = steps_with_smaller_images(tmp_path, monkeypatch)
    batch = tf.function(lambda number: step.batch(number).inputs["image"], autograph=False)
    sides = [batch(tf.constant(number, tf.int64)).shape[1] for number in range(10)]
    assert sides == [16, 16, 16, 24, 24, 24, 32, 32, 32, 32]


def test_the_steps_of_an_update_have_images_of_one_size(tmp_path, monkeypatch):
    step, _, _ = steps_with_smaller_images(tmp_path, monkeypatch, **{"mode.name": "sync-ps"})
    batch = tf.function(lambda number: step.batch(number).inputs["image"], autograph=False)
    sides = [batch(tf.constant(number, tf.int64)).shape[1] for number in range(30)]
    assert sides == [16] * 9 + [24] * 9 + [32] * 12


@pytest.mark.exhaustive
def test_a_step_with_smaller_images_has_the_gradient_of_a_network_that_was_made_for_them(tmp_path, monkeypatch):
    step, _network, start = steps_with_smaller_images(tmp_path, monkeypatch)
    graph = tf.function(lambda number: step(number, *start).gradient, autograph=False)
    for number, side in ((0, 16), (4, 24), (9, 32)):
        images = step.batch(tf.constant(number, tf.int64)).inputs["image"]
        fixed = tf.constant(np.asarray(images))
        assert fixed.shape == (4, side, side, 3)
        monkeypatch.setattr(
            step, "batch", lambda *_, fixed=fixed, own=step.batch(number): own._replace(inputs={"image": fixed})
        )
        alone = tf.function(lambda number=number: step(tf.constant(number, tf.int64), *start).gradient, autograph=False)
        expected = np.asarray(alone())
        monkeypatch.undo()
        monkeypatch.chdir(tmp_path / "packed")
        np.testing.assert_allclose(np.asarray(graph(tf.constant(number, tf.int64))), expected, rtol=1e-3, atol=1e-6)
        assert np.abs(expected).max() > 0


def test_a_network_for_images_of_one_size_is_refused_with_smaller_ones(tmp_path, monkeypatch):
    with pytest.raises(
        UserError, match=r"schedule.image_scales: model.name 'tutorial_cnn' only takes images of 32x32x3: "
    ):
        steps_with_smaller_images(tmp_path, monkeypatch, **{"model.name": "tutorial_cnn"})


def test_a_step_draws_its_batch_once(tmp_path, monkeypatch):
    step, _network, start = steps_with_smaller_images(tmp_path, monkeypatch)
    graph = tf.function(lambda number: step(number, *start).gradient, autograph=False)
    operations = graph.get_concrete_function(tf.TensorSpec([], tf.int64)).graph.get_operations()
    assert [one.type for one in operations].count("RandomIndexShuffle") == 1
