"""The histograms and pictures that TensorBoard shows of scored checkpoints."""

import numpy as np

from ps_cluster.config import build_config
from ps_cluster.config.datasets import Contents
from ps_cluster.data.packing import write_packed
from ps_cluster.evaluation import scorer as evaluation_scorer
from ps_cluster.evaluation.insight import MOST_VALUES, Insight
from ps_cluster.evaluation.scorer import GRADIENT_EXAMPLES, spaced
from ps_cluster.report.prediction_sheet import Answer
from ps_cluster.runs.checkpoints import Checkpoint, CheckpointMeta


class Writer:
    def __init__(self):
        self.values, self.pictures = {}, []

    def write_values(self, name, values, step):
        self.values[step, name] = values

    def write_predictions(self, picture, step):
        self.pictures.append((step, picture.size))


class Scorer:
    variables = {"dense/kernel": 3 * MOST_VALUES, "dense/bias": 2}
    gradient = None

    def __init__(self, unit):
        self.unit = unit

    def answers(self, count):
        return [Answer(np.zeros([32, 32, 3], np.uint8), "cat", "dog", False)] * count


def checkpoint(step, value):
    weights = np.full([3 * MOST_VALUES + 2], value, np.float32)
    weights[-2:] = 7
    return Checkpoint(step, {"weights": weights}, CheckpointMeta())


def test_histograms_are_of_each_variable_and_of_its_change_since_the_checkpoint_before():
    writer = Writer()
    insight = Insight(writer, Scorer("examples"))
    insight.write(checkpoint(100, 1.0))
    insight.write(checkpoint(200, 3.0))
    assert set(writer.values[100, "weights/dense/bias"]) == {7.0}
    assert (100, "changes of weights/dense/bias") not in writer.values
    changes = writer.values[200, "changes of weights/dense/kernel"]
    assert len(changes) == MOST_VALUES and set(changes) == {2.0}
    assert set(writer.values[200, "changes of weights/dense/bias"]) == {0.0}
    assert not writer.pictures


def test_histograms_of_gradients_are_of_each_variable_where_the_run_asks_for_them():
    writer, scorer = Writer(), Scorer("examples")
    Insight(writer, scorer).write(checkpoint(100, 1.0))
    assert (100, "gradients/dense/bias") not in writer.values
    scorer.gradient = lambda: np.arange(3 * MOST_VALUES + 2, dtype=np.float32)
    Insight(writer, scorer).write(checkpoint(100, 1.0))
    assert writer.values[100, "gradients/dense/bias"].tolist() == [3 * MOST_VALUES, 3 * MOST_VALUES + 1]
    assert len(writer.values[100, "gradients/dense/kernel"]) == MOST_VALUES


def test_gradient_is_that_of_the_mean_loss_on_examples_of_the_training_set_with_smoothed_labels(tmp_path):
    draw = np.random.default_rng(0)
    rows = {"numbers": draw.normal(size=(70, 3)).astype(np.float32), "target": draw.integers(0, 2, 70).astype(np.uint8)}
    dataset = write_packed(tmp_path / "set", "synthetic", "synthetic", Contents.of(rows, rows, classes=("a", "b")))
    (tmp_path / "net.py").write_text(
        "from ps_cluster.config.lazy import keras\n"
        "def build(examples, settings):\n"
        "    given = keras.Input([3], name='numbers')\n"
        "    return keras.Model(given, keras.layers.Dense(2, use_bias=False)(given))\n"
    )
    values = {"data.dataset": "synthetic", "model.name": f"{tmp_path}/net.py:build", "training.label_smoothing": 0.2}
    values |= {"model.precision": "float32", "evaluation.gradients": True}
    scorer = evaluation_scorer.Scorer(build_config(None, values), dataset)
    weights = draw.normal(size=(3, 2)).astype(np.float32)
    scorer.score(Checkpoint(1, {"weights": weights.ravel(), "statistics": np.zeros(0, np.float32)}, CheckpointMeta()))
    chosen = spaced(70, GRADIENT_EXAMPLES)
    inputs, wanted = rows["numbers"][chosen], np.eye(2)[rows["target"][chosen]] * 0.8 + 0.1
    outputs = np.exp(inputs @ weights)
    expected = inputs.T @ (outputs / outputs.sum(1, keepdims=True) - wanted) / len(chosen)
    np.testing.assert_allclose(scorer.gradient(), expected.ravel(), atol=1e-5)


def test_checkpoint_is_shown_only_if_the_run_has_grown_since_the_one_shown_before():
    writer = Writer()
    insight = Insight(writer, Scorer("images"))
    for step in (100, 100, 109, 110, 200):
        insight.write(checkpoint(step, 0.0))
    assert [step for step, _ in writer.pictures] == [100, 110, 200]
