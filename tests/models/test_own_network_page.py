"""The networks of docs/extending.md train as they are pasted."""

import re
import sys
from dataclasses import replace
from pathlib import Path

import keras
import numpy as np
import pytest
import tensorflow as tf

from ps_cluster.config import build_config, user_code
from ps_cluster.config.networks import NETWORKS, NetworkSettings
from ps_cluster.config.objectives import ArrayField, ExampleSpec
from ps_cluster.errors import UserError
from ps_cluster.models.build import build
from ps_cluster.models.compiled import CompiledMetrics
from ps_cluster.models.compiled_heads import head_of
from ps_cluster.models.flat import flatten
from ps_cluster.models.saved import load_saved
from ps_cluster.models.user_networks import check_network, unused_parts
from ps_cluster.process_variables import TRUSTED_FILES
from tests.helpers.one_worker import Alone

pytestmark = pytest.mark.slow

PAGE = Path(__file__).parents[2] / "docs" / "extending.md"
TOY = Path(__file__).parents[1] / "doors" / "toy_subclassed.py"
SNIPPETS = re.findall(r"```python\n(# python cli.py run --model my.py:build\n.*?)```", PAGE.read_text(), re.DOTALL)
SPEC = ExampleSpec({"image": ArrayField("uint8", (8, 8, 1))}, ArrayField("uint8", ()), classes=("a", "b", "c"))
REGRESSION = ExampleSpec({"row": ArrayField("float32", (2,))}, ArrayField("float32", (), (10.0,), (4.0,)), "regression")
RNG = np.random.default_rng(0)
ROWS = {
    "image": RNG.uniform(0, 255, [1, 4, 8, 8, 1]).astype(np.float32),
    "target": RNG.integers(0, 3, [1, 4]).astype(np.uint8),
}


@pytest.fixture(autouse=True)
def nothing_is_trusted(monkeypatch):
    monkeypatch.delenv(TRUSTED_FILES, raising=False)


def origin_of(code):
    """Return the network of a snippet, as a user's file."""
    file = Path.cwd() / "my.py"
    file.write_text(code)
    user_code.trust(file)
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


@pytest.mark.parametrize("code", [*SNIPPETS, TOY.read_text()])
def test_each_network_of_the_page_and_the_class_that_it_links_to_train(code):
    model = origin_of(code)
    before, (after, _) = flatten(model.trainable_variables), Alone(model, SPEC, ROWS).step(0)
    assert np.isfinite(after).all() and (before != after).any()


def test_a_saved_model_goes_on_from_its_weights_with_the_classes_of_named_code():
    model = origin_of(TOY.read_text())
    model.save("mine.keras")
    forget_the_users_code()
    name = NETWORKS.allow_code_of("mine.keras", Path.cwd())
    assert name == str(Path.cwd() / "mine.keras")
    assert (flatten(made(name).trainable_variables) == flatten(model.trainable_variables)).all()


def test_a_saved_model_that_only_a_run_directory_names_is_not_loaded():
    keras.Sequential([keras.Input([8, 8, 1]), keras.layers.Flatten(), keras.layers.Dense(3)]).save("mine.keras")
    with pytest.raises(
        UserError,
        match="is named only in a run directory, and it may run code: if you trust this file, add --code '.*mine.keras'",
    ):
        made(str(Path.cwd() / "mine.keras"))


def test_a_saved_model_that_is_not_there_is_told_before_anything_starts():
    with pytest.raises(UserError, match="model.name: 'no.keras': there is no such file"):
        NETWORKS["no.keras"]


def test_safe_mode_refuses_code_in_a_saved_model():
    layer = keras.layers.Lambda(lambda image: image[:, :1])
    model = keras.Sequential([keras.Input([8, 8, 1]), layer, keras.layers.Flatten(), keras.layers.Dense(3)])
    model.save("mine.keras")
    with pytest.raises(UserError, match="[Ll]ambda"):
        made(NETWORKS.allow_code_of("mine.keras", Path.cwd()))


@keras.saving.register_keras_serializable("page")
class Line(keras.Model):
    def __init__(self, **named):
        super().__init__(**named)
        self.line = keras.layers.Dense(1)

    def call(self, row):
        return self.line(row)


@pytest.mark.parametrize("made", [Line, lambda: keras.Sequential([keras.Input([2]), keras.layers.Dense(1)])])
def test_a_saved_regression_is_in_the_targets_units_and_goes_on_in_those_that_it_is_trained_in(made):
    row, model = RNG.normal(size=[5, 2]).astype(np.float32), made()
    trained = model(row).numpy()
    head_of(REGRESSION).finished(model).save("best.keras")
    assert keras.models.load_model("best.keras")(row).numpy() == pytest.approx(4 * trained + 10, rel=1e-5)
    assert check_network(load_saved(Path("best.keras"), REGRESSION), REGRESSION)(row).numpy() == pytest.approx(trained)


def test_a_saved_regression_that_a_build_compiles_anew_has_its_units_once():
    row = keras.Input([2])
    own = keras.Model(row, [keras.layers.Dense(1)(row), keras.layers.Dense(1)(row)])
    head_of(REGRESSION).finished(own).save("best.keras")
    loaded = keras.models.load_model("best.keras")
    loaded.compile("adam", loss=["mae", "mae"], metrics=[["mse"], ["mse"]])
    model, row = check_network(loaded, REGRESSION), RNG.normal(size=[5, 2]).astype(np.float32)
    outputs, expected = (keras.tree.flatten(one(row)) for one in (model, own))
    for output, value in zip(outputs, expected, strict=True):
        assert output.numpy() == pytest.approx(value.numpy(), rel=1e-5)
    head = head_of(REGRESSION, model=model)
    loss = head.loss(tf.fill([5, 1], 10.0), model(row))
    assert float(loss) == pytest.approx(sum(np.abs(value).mean() for value in expected), rel=1e-5)
    (again, *_) = keras.tree.flatten(head.finished(model)(row))
    assert again.numpy() == pytest.approx(4 * expected[0].numpy() + 10, rel=1e-5)


def test_units_that_are_not_at_the_end_are_refused_by_name():
    saved = head_of(REGRESSION).finished(keras.Sequential([keras.Input([2]), keras.layers.Dense(1)]))
    model = keras.Sequential([keras.Input([2]), saved, keras.layers.Dense(1)])
    with pytest.raises(ValueError, match="it contains the layer 'ps_cluster_units' of a saved regression"):
        check_network(model, REGRESSION)


@pytest.mark.filterwarnings("ignore:Skipping variable loading for optimizer:UserWarning")  # it was not trained yet
def test_a_regression_that_was_saved_elsewhere_goes_on_in_the_targets_units_and_is_saved_in_them():
    model, row = keras.Sequential([keras.Input([2]), keras.layers.Dense(1)]), RNG.normal(size=[5, 2]).astype(np.float32)
    model.compile("adam", "mse")
    model.save("mine.keras")
    for file in ("mine.keras", "again.keras"):  # what a run saves, too
        loaded = check_network(load_saved(Path(file), REGRESSION), REGRESSION)
        head = head_of(REGRESSION, model=loaded)
        assert (
            head.interpretation
            == "targets in their own units (the saved model already returns values in the target's units)"
        )
        assert float(head.loss(tf.fill([5, 1], 10.0), tf.fill([5, 1], 7.0))) == 9
        head.finished(loaded).save("again.keras")
        assert loaded(row).numpy() == pytest.approx(model(row).numpy())


def test_a_class_of_ones_own_on_images_is_saved_with_the_inputs_that_it_was_built_for():
    spec = ExampleSpec({"image": ArrayField("uint8", (4, 4, 1))}, REGRESSION.target, "regression")
    model = Line()
    assert [one.dtype for one in head_of(spec).finished(model).inputs] == ["float32"]


def plain(**given):
    return keras.Sequential([keras.Input([2]), keras.layers.Dense(3, **given)])


def compiled(**given):
    model = plain()
    model.compile(**given)
    return model


def test_the_note_names_what_of_compile_is_not_used():
    config = build_config(overrides={"training.label_smoothing": 0.1, "model.precision": "float32"})
    assert list(unused_parts(plain(), config)) == []
    (told,) = unused_parts(compiled(optimizer="adam", loss="mse"), config)
    assert "compile() has a loss, so training.label_smoothing 0.1 is not used" in told


@pytest.mark.parametrize(("own", "told"), [("float32", "precision bfloat16 is not"), ("mixed_bfloat16", "")])
def test_a_precision_that_the_layers_do_not_have_is_told(own, told):
    lines = list(unused_parts(plain(dtype=own), build_config(overrides={"model.precision": "bfloat16"})))
    assert len(lines) == bool(told) and told in "".join(lines)


def test_metrics_and_losses_of_keras_that_compare_places_get_rows_for_labels_and_others_the_labels():
    labels, outputs = RNG.integers(0, 3, [10]), keras.ops.softmax(RNG.normal(size=[10, 3])).numpy().astype(np.float32)
    rows = np.eye(3, dtype=np.float32)[labels]
    of_rows = [
        keras.metrics.CategoricalAccuracy(), keras.metrics.TopKCategoricalAccuracy(2), keras.metrics.AUC(),
        keras.metrics.F1Score("macro"), keras.metrics.Precision(), keras.metrics.OneHotMeanIoU(3),
        keras.metrics.MeanMetricWrapper(keras.losses.CategoricalCrossentropy(), name="as_a_metric"),
    ]  # fmt: skip

    def first(labels, outputs):
        return keras.ops.cast(labels, "float32")

    model = compiled(loss="mse", metrics=[*of_rows, "accuracy", first])
    metrics = CompiledMetrics(model)
    metrics.update(tf.constant(labels), tf.constant(outputs), tf.constant(outputs))
    found = metrics.take_results()
    assert (found["first"], found["accuracy"]) == pytest.approx((labels.mean(), (outputs.argmax(1) == labels).mean()))
    for metric in of_rows:
        metric.reset_state()
        metric.update_state(rows, outputs)
        assert found[metric.name] == pytest.approx(float(metric.result()), rel=1e-5)
    spec = replace(SPEC, inputs={"row": ArrayField("float32", (2,))})
    loss = head_of(spec, model=model).loss(tf.constant(labels, tf.int32), tf.constant(outputs))
    assert float(loss) == pytest.approx(((rows - outputs) ** 2).mean(), rel=1e-5)


@pytest.mark.parametrize("end", ["softmax", "sigmoid", "mean of softmax", "mean of all places"])
def test_probabilities_of_a_model_that_was_compiled_for_them_are_kept_as_they_are(end):
    given = keras.Input([8, 8, 1])
    flat = keras.layers.Flatten()(given)
    if end == "mean of softmax":
        scores = keras.layers.Average()([keras.layers.Dense(3, "softmax")(flat) for _ in range(3)])
    elif end == "mean of all places":
        scores = keras.layers.GlobalAveragePooling2D()(keras.layers.Conv2D(3, 1, activation="softmax")(given))
    else:
        scores = keras.layers.Dense(3, end)(flat)
    model = keras.Model(given, scores)
    model.compile("sgd", "binary_crossentropy" if end == "sigmoid" else "sparse_categorical_crossentropy")
    probabilities = model(RNG.uniform(0, 1, [4, 8, 8, 1])).numpy()
    kept = head_of(SPEC, model=model).kept(tf.constant([0, 1, 2, 0]), tf.constant(probabilities))
    assert kept["confidence"].numpy() == pytest.approx(probabilities.max(1), rel=1e-5)


def test_metrics_of_compile_are_those_of_keras_over_all_batches_and_begin_anew():
    of_two = keras.metrics.SparseTopKCategoricalAccuracy(2)
    model = compiled(loss="sparse_categorical_crossentropy", metrics=["accuracy", of_two])
    metrics, outputs = CompiledMetrics(model), RNG.normal(size=[10, 3]).astype(np.float32)
    labels = RNG.integers(0, 3, [10])
    update = tf.function(metrics.update, autograph=False)
    for part in (slice(0, 7), slice(7, 10)):
        update(tf.constant(labels[part]), tf.constant(outputs[part]), tf.constant(outputs[part]))
    ranks = (outputs > outputs[range(10), labels][:, None]).sum(1)
    expected = {"accuracy": (ranks == 0).mean(), "sparse_top_k_categorical_accuracy": (ranks < 2).mean()}
    assert metrics.take_results() == pytest.approx(expected)
    update(tf.constant([0]), tf.constant([[1.0, 0.0, 0.0]]), tf.constant([[1.0, 0.0, 0.0]]))
    assert metrics.take_results() == pytest.approx(dict.fromkeys(expected, 1.0))
