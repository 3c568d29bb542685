"""A training step's batch."""

import keras
import numpy as np

from ps_cluster.catalogue.datasets import Contents
from ps_cluster.config import build_config
from ps_cluster.data.packing import write_packed
from ps_cluster.models.flat import FlatNetwork
from ps_cluster.training.step import TrainStep


def test_images_that_are_not_varied_come_to_the_network_as_float32_and_other_inputs_as_they_are(tmp_path, monkeypatch):
    rows = {"image": np.full((5, 4, 4, 1), 200, np.uint8), "codes": np.ones((5, 2), np.uint8), "target": np.arange(5)}
    dataset = write_packed(tmp_path / "packed", "packed_arrays", "real", Contents.of(rows, rows))
    monkeypatch.chdir(dataset.directory)
    config = build_config(None, {"data.dataset": "packed_arrays", "training.batch_size_per_worker": 2})
    network = FlatNetwork(keras.Sequential([keras.Input([3]), keras.layers.Dense(5)]))
    inputs = TrainStep(config, network, dataset.spec, train_examples=5).batch(np.int64(0)).inputs
    assert {name: rows.dtype.name for name, rows in inputs.items()} == {"image": "float32", "codes": "uint8"}
