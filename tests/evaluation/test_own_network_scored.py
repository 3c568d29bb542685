"""A user's network is scored as it is saved: drawing random numbers, counting calls and adding up losses change nothing."""

import keras
import numpy as np
import pytest

from ps_cluster.catalogue import doors
from ps_cluster.catalogue.datasets import Contents
from ps_cluster.config import build_config
from ps_cluster.data.packing import write_packed
from ps_cluster.evaluation.scorer import BATCH_SIZE, Scorer
from ps_cluster.run.checkpoints import Checkpoint

NETWORK = """
import keras

@keras.saving.register_keras_serializable("scored")
class Restless(keras.layers.Layer):
    def build(self, shape):
        self.noise = keras.random.SeedGenerator(1)
        self.calls = self.add_weight(shape=(), initializer="zeros", trainable=False)

    def call(self, row):
        self.calls.assign(self.calls + 1)
        return row + keras.random.normal(keras.ops.shape(row), seed=self.noise)

def build(examples, settings):
    model = keras.Sequential([keras.Input([4]), Restless(), keras.layers.Dense(examples.outputs)])
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True, reduction="sum")
    model.compile(loss=loss, metrics=[keras.metrics.CategoricalAccuracy(name="of_rows")])
    return model
"""


@pytest.fixture
def scorer(tmp_path):
    (tmp_path / "mine.py").write_text(NETWORK)
    doors.trust(tmp_path / "mine.py")
    draw = np.random.default_rng(0)
    train, test = (
        {"row": draw.normal(size=(count, 4)).astype(np.float32), "target": np.arange(count) % 3}
        for count in (9, BATCH_SIZE + 20)
    )
    dataset = write_packed(tmp_path / "packed", "packed_arrays", "real", Contents.of(train, test))
    chosen = {"model.name": f"{tmp_path}/mine.py:build", "data.dataset": "packed_arrays"}
    return Scorer(build_config(None, {**chosen, "data.data_dir": str(tmp_path), "model.precision": "float32"}), dataset)


def checkpoint(weights):
    return Checkpoint(1, {"weights": weights.astype(np.float32), "statistics": np.zeros(1, np.float32)})


def test_a_network_that_changes_in_each_call_has_one_score_and_is_saved_as_in_the_checkpoint(scorer, tmp_path):
    random = checkpoint(np.random.default_rng(1).normal(size=15))
    first, second = scorer.score(random), scorer.score(random)
    assert first == second and first.compiled["of_rows"] == pytest.approx(first.metric)
    scorer.save_model(tmp_path / "model.keras")
    assert float(keras.models.load_model(tmp_path / "model.keras").layers[0].calls) == 0
    equal = scorer.score(checkpoint(np.zeros(15)))
    assert equal.loss == pytest.approx(np.log(3), rel=1e-5), "of each example, although the loss is a sum"
