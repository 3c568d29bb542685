"""The networks of docs/own-network.md train as they are pasted."""

import re
import sys
from pathlib import Path

import keras
import numpy as np
import pytest
import tensorflow as tf

from ps_cluster.catalogue import doors
from ps_cluster.catalogue.examples import ExampleSpec, Field
from ps_cluster.catalogue.networks import NETWORKS, NetworkSettings
from ps_cluster.errors import UserError
from ps_cluster.models.build import build
from ps_cluster.models.flat import flatten
from ps_cluster.models.saved import load_saved
from ps_cluster.training.compiled import CompiledMetrics, note
from ps_cluster.training.judges import judge_of
from tests.helpers.one_worker import OneWorker

PAGE = Path(__file__).parents[2] / "docs" / "own-network.md"
SNIPPETS = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
SPEC = ExampleSpec({"image": Field("uint8", (8, 8, 1))}, Field("uint8", ()), classes=("a", "b", "c"))
RNG = np.random.default_rng(0)
ROWS = {
    "image": RNG.uniform(0, 255, [2, 4, 8, 8, 1]).astype(np.float32),
    "target": RNG.integers(0, 3, [2, 4]).astype(np.uint8),
}


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv(doors.TRUSTED, raising=False)


def pasted(number):
    """Return the network of a snippet, as a user's file."""
    file = Path.cwd() / "my.py"
    file.write_text(SNIPPETS[number])
    doors.trust(file)
    return made(f"{file}:build")


def made(name):
    return build(NetworkSettings(name=name, precision="float32"), SPEC, seed=0)


def forget_the_users_code():
    """Be like another process, which has not run it yet."""
    registered = keras.saving.get_custom_objects()
    for name in [name for name, one in registered.items() if one.__module__.startswith("ps_cluster_door_")]:
        del registered[name]
    for name in [name for name in sys.modules if name.startswith("ps_cluster_door_")]:
        del sys.modules[name]


def trained(model):
    """Return the weights before, and after two steps."""
    worker = OneWorker(model, SPEC, ROWS)
    worker.step(0)
    return flatten(model.trainable_variables), worker.step(1)[0]


@pytest.mark.parametrize("number", range(len(SNIPPETS)))
def test_each_network_of_the_page_trains(number):
    before, after = trained(pasted(number))
    assert np.isfinite(after).all() and (before != after).any()


def test_a_saved_model_goes_on_from_its_weights_with_the_classes_of_named_code():
    model = pasted(1)
    model.save("mine.keras")
    forget_the_users_code()
    name = NETWORKS.named_by_user("mine.keras", Path.cwd())
    assert name == str(Path.cwd() / "mine.keras")
    assert (flatten(made(name).trainable_variables) == flatten(model.trainable_variables)).all()


def test_a_saved_model_that_only_a_run_directory_names_is_not_loaded():
    keras.Sequential([keras.Input([8, 8, 1]), keras.layers.Flatten(), keras.layers.Dense(3)]).save("mine.keras")
    with pytest.raises(UserError, match="add --code '.*mine.keras' to load it"):
        made(str(Path.cwd() / "mine.keras"))


def test_a_saved_model_that_is_not_there_is_told_before_anything_starts():
    with pytest.raises(UserError, match="model.name: 'no.keras': there is no such file"):
        NETWORKS["no.keras"]


def test_safe_mode_refuses_code_in_a_saved_model():
    layer = keras.layers.Lambda(lambda image: image[:, :1])
    model = keras.Sequential([keras.Input([8, 8, 1]), layer, keras.layers.Flatten(), keras.layers.Dense(3)])
    model.save("mine.keras")
    with pytest.raises(UserError, match="[Ll]ambda"):
        made(NETWORKS.named_by_user("mine.keras", Path.cwd()))


@keras.saving.register_keras_serializable("page")
class Line(keras.Model):
    def __init__(self, **named):
        super().__init__(**named)
        self.line = keras.layers.Dense(1)

    def call(self, row):
        return self.line(row)


@pytest.mark.parametrize("made", [Line, lambda: keras.Sequential([keras.Input([2]), keras.layers.Dense(1)])])
def test_a_saved_regression_is_in_the_targets_units_and_goes_on_in_those_that_it_is_trained_in(made):
    spec = ExampleSpec({"row": Field("float32", (2,))}, Field("float32", (), (10.0,), (4.0,)), "regression")
    row, model = RNG.normal(size=[5, 2]).astype(np.float32), made()
    trained = model(row).numpy()
    judge_of(spec).finished(model).save("best.keras")
    assert keras.models.load_model("best.keras")(row).numpy() == pytest.approx(4 * trained + 10, rel=1e-5)
    assert load_saved(Path("best.keras"))(row).numpy() == pytest.approx(trained, rel=1e-5)


def compiled(**given):
    model = keras.Sequential([keras.Input([2]), keras.layers.Dense(3)])
    model.compile(**given)
    return model


def test_the_note_names_what_of_compile_is_not_used():
    config = OneWorker(pasted(0), SPEC, ROWS, {"training.label_smoothing": 0.1}).config
    assert note(keras.Sequential([keras.Input([2])]), config) is None
    told = note(compiled(optimizer="adam", loss="mse"), config)
    assert "(Adam) is not used, but sgd with learning rate 0.1" in told and "label_smoothing 0.1 is not" in told
    assert "label_smoothing" not in note(compiled(optimizer="adam"), config)


def test_metrics_of_compile_are_those_of_keras_over_all_batches_and_begin_anew():
    model = compiled(
        loss="sparse_categorical_crossentropy", metrics=["accuracy", keras.metrics.SparseTopKCategoricalAccuracy(2)]
    )
    metrics, outputs = CompiledMetrics(model), RNG.normal(size=[10, 3]).astype(np.float32)
    labels = RNG.integers(0, 3, [10])
    update = tf.function(metrics.update, autograph=False)
    for part in (slice(0, 7), slice(7, 10)):
        update(tf.constant(labels[part]), tf.constant(outputs[part]))
    ranks = (outputs > outputs[range(10), labels][:, None]).sum(1)
    expected = {"accuracy": (ranks == 0).mean(), "sparse_top_k_categorical_accuracy": (ranks < 2).mean()}
    assert metrics.taken() == pytest.approx(expected)
    update(tf.constant([0]), tf.constant([[1.0, 0.0, 0.0]]))
    assert metrics.taken() == pytest.approx(dict.fromkeys(expected, 1.0))
