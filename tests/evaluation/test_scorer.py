"""Scores, and what is kept of them: a network that changes in each call is scored as it is saved."""

from functools import partial

import keras
import numpy as np
import pytest

from ps_cluster.config import build_config, user_code
from ps_cluster.config.datasets import Contents, OwnDataSettings
from ps_cluster.config.networks import Network
from ps_cluster.data.own_arrays import as_contents
from ps_cluster.data.packing import write_packed
from ps_cluster.errors import FailedComputation
from ps_cluster.evaluation import scorer as scoring
from ps_cluster.evaluation.scorer import Scorer, arrays_to_keep
from ps_cluster.runs.checkpoints import Checkpoint

pytestmark = pytest.mark.slow

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
def scorer(scorer_of):
    return scorer_of(NETWORK, "float32")


@pytest.fixture
def scorer_of(tmp_path):
    return partial(make_scorer, tmp_path)


def make_scorer(tmp_path, code, precision, **settings):
    (tmp_path / "mine.py").write_text(code)
    user_code.trust(tmp_path / "mine.py")
    draw = np.random.default_rng(0)
    train, test = (
        {"row": draw.normal(size=(count, 4)).astype(np.float32), "target": np.arange(count) % 3}
        for count in (9, Network.scored_at_once + 20)
    )
    dataset = write_packed(tmp_path / "packed", "packed_arrays", "real", Contents.of(train, test))
    chosen = {"model.name": f"{tmp_path}/mine.py:build", "data.dataset": "packed_arrays"}
    chosen |= {"data.data_dir": str(tmp_path), "model.precision": precision}
    return Scorer(build_config(None, chosen | {f"evaluation.{name}": one for name, one in settings.items()}), dataset)


def checkpoint(weights):
    return Checkpoint(1, {"weights": weights.astype(np.float32), "statistics": np.zeros(1, np.float32)})


def test_a_network_that_changes_in_each_call_has_one_score_and_is_saved_as_in_the_checkpoint(scorer, tmp_path):
    random = checkpoint(np.random.default_rng(1).normal(size=15))
    first, second = scorer.score(random), scorer.score(random)
    assert first.predictions.arrays["target"].tolist() == [number % 3 for number in range(Network.scored_at_once + 20)]
    assert first == second and first.test.compiled["of_rows"] == pytest.approx(first.test.metric)
    scorer.save_model(tmp_path / "model.keras")
    assert float(keras.models.load_model(tmp_path / "model.keras").layers[0].calls) == 0
    equal = scorer.score(checkpoint(np.zeros(15)))
    assert equal.test.loss == pytest.approx(np.log(3), rel=1e-5), "of each example, although the loss is a sum"


PLAIN = """
import keras

def build(examples, settings):
    return keras.Sequential([keras.Input([4]), keras.layers.Dense(examples.outputs)])
"""


def test_a_sample_of_the_test_examples_is_spread_evenly_over_them(scorer_of):
    """Every tenth of 70 examples, computed with numpy."""
    scorer = scorer_of(PLAIN, "float32", scored_examples=7)
    weights = np.random.default_rng(1).normal(size=15).astype(np.float32)
    found = scorer.score(Checkpoint(1, {"weights": weights, "statistics": np.zeros(0, np.float32)}))
    draw = np.random.default_rng(0)
    draw.normal(size=(9, 4))
    rows = draw.normal(size=(Network.scored_at_once + 20, 4))[::10]
    predicted = (rows @ weights[:12].reshape(4, 3) + weights[12:]).argmax(axis=1)
    assert len(rows) == 7 == scorer.test_examples
    assert found.test.metric == pytest.approx(np.mean(predicted == np.arange(70)[::10] % 3))
    assert found.predictions is None, "a page of predictions would be of some examples only"


AGE_AND_KIND = """
import keras

def build(examples):
    given = keras.Input([8, 8, 1], name="image")
    flat = keras.layers.Flatten()(given)
    outputs = {"age": keras.layers.Dense(1)(flat), "kind": keras.layers.Dense(3, use_bias=False)(flat)}
    model = keras.Model(given, outputs)
    kind = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(loss={"age": "mse", "kind": kind})
    return model
"""


def test_answers_about_images_with_several_targets_are_predictions_of_the_main_target(tmp_path):
    (tmp_path / "mine.py").write_text(AGE_AND_KIND)
    user_code.trust(tmp_path / "mine.py")
    images = np.random.default_rng(0).integers(0, 256, (12, 8, 8), np.uint8)
    targets = {"kind": np.arange(12) % 3, "age": np.arange(12.0)}  # the order of the outputs is age, kind
    given = {"x_train": images, "y_train": targets, "x_test": images, "y_test": targets}
    contents = as_contents(given, OwnDataSettings(dataset="packed_arrays"))
    dataset = write_packed(tmp_path / "packed", "packed_arrays", "real", contents)
    chosen = {"model.name": f"{tmp_path}/mine.py:build", "data.dataset": "packed_arrays"}
    chosen |= {"data.data_dir": str(tmp_path), "model.precision": "float32"}
    scorer = Scorer(build_config(None, chosen), dataset)
    kernel = np.tile(np.float32([0, 0, 1]), (64, 1))  # of all kinds, "2" always has the largest score
    weights = [kernel.ravel() if size == kernel.size else np.zeros(size) for size in scorer.variables.values()]
    flat = np.concatenate(weights).astype(np.float32)
    scorer.score(Checkpoint(1, {"weights": flat, "statistics": np.zeros(0, np.float32)}))
    answers = scorer.answers(6)
    assert [answer.truth for answer in answers] == ["0", "2", "1", "0", "2", "1"]
    assert all(answer.predicted == "2" and answer.right == (answer.truth == "2") for answer in answers)


FAILING = """
import keras

def build(examples):
    code = keras.layers.Lambda(lambda row: keras.ops.cast(row * 0 + 20, "int32"))
    embedded = [code, keras.layers.Embedding(10, 2, name="words"), keras.layers.Flatten()]
    return keras.Sequential([keras.Input([4]), *embedded, keras.layers.Dense(examples.outputs)])
"""


def test_a_network_that_fails_on_test_examples_is_told_in_one_line_with_the_reason_of_tensorflow(scorer_of):
    scorer = scorer_of(FAILING, "float32")
    with pytest.raises(FailedComputation, match=r"computation failed.*: indices\[0,0\] = 20 is not in \[0, 10\)$"):
        scorer.score(Checkpoint(1, {"weights": np.zeros(47, np.float32), "statistics": np.zeros(0, np.float32)}))


POLICIES = """
import keras

def build(examples):
    row = keras.Input([4])
    own = keras.layers.Dense(5, dtype="mixed_bfloat16", name="own")(row)
    wrapped = keras.layers.Bidirectional(keras.layers.LSTM(2), name="wrapped")(keras.layers.Reshape([5, 1])(own))
    return keras.Model(row, keras.layers.Dense(examples.outputs, name="plain")(wrapped))
"""


def test_a_model_is_saved_with_the_precision_of_its_function_and_not_of_the_run(scorer_of, tmp_path):
    scorer = scorer_of(POLICIES, "bfloat16")
    length = sum(scorer.variables.values())
    scorer.score(Checkpoint(1, {"weights": np.full(length, 0.5, np.float32), "statistics": np.zeros(0, np.float32)}))
    scorer.save_model(tmp_path / "model.keras")
    saved = keras.models.load_model(tmp_path / "model.keras")
    policies = {layer.name: layer.dtype_policy.name for layer in saved._flatten_layers()}
    assert policies.pop("own") == "mixed_bfloat16" and set(policies.values()) == {"float32"}, policies
    assert {"plain/kernel", "own/kernel"} <= set(scorer.variables)
    assert (saved.get_layer("plain").kernel.numpy() == 0.5).all()
    inside = {one.compute_dtype for one in scorer._model._flatten_layers()}
    assert "bfloat16" in inside and saved.get_layer("plain").compute_dtype == "float32"


def test_nothing_is_kept_of_what_would_be_too_large_or_where_a_judge_keeps_nothing(monkeypatch):
    monkeypatch.setattr(scoring, "MOST_BYTES", 7 * 12)
    batch = {"id": np.arange(3, dtype=np.int32), "pair": np.zeros((3, 2), np.float32)}
    assert {name: rows.shape for name, rows in arrays_to_keep(batch, 7).items()} == {"id": (7,), "pair": (7, 2)}
    assert arrays_to_keep(batch, 8) == arrays_to_keep({}, 7) == {}
