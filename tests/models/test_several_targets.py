"""Networks whose outputs have targets of their own: as Keras's `evaluate` judges them."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from ps_cluster.config import build_config
from ps_cluster.config.datasets import OwnDataSettings
from ps_cluster.config.objectives import OBJECTIVES
from ps_cluster.data.own_arrays import as_contents
from ps_cluster.data.packed import fields_of, targets_in
from ps_cluster.data.packing import write_packed
from ps_cluster.files.values import Malformed
from ps_cluster.models.compiled import CompiledMetrics
from ps_cluster.models.compiled_heads import head_of
from ps_cluster.models.saved import predicting
from ps_cluster.models.user_networks import check_network

LAYERS, DRAW = keras.layers, np.random.default_rng(0)
X = DRAW.normal(size=(60, 4)).astype(np.float32)
Y = {
    "kind": np.arange(60) % 3,
    "size": (100 + 30 * X[:, 0]).astype(np.float32),
    "flag": (X[:, 1] > 0).astype(np.float32),
}
SCORES = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
LOSSES = {"kind": SCORES, "size": "mse", "flag": "binary_crossentropy"}


def network(by_name=True, loss=LOSSES):
    row = keras.Input([4])
    outputs = {
        "kind": LAYERS.Dense(3, name="kind")(row),
        "size": LAYERS.Dense(1, name="size")(row),
        "flag": LAYERS.Dense(1, "sigmoid", name="flag")(row),
    }
    model = keras.Model(row, outputs if by_name else list(outputs.values()))
    if loss:
        weights = {"kind": 1.0, "size": 0.01, "flag": 2.0}
        metrics = {"kind": "accuracy", "size": ["mae"], "flag": ["accuracy"]}
        model.compile("adam", loss, loss_weights=weights, metrics=metrics, run_eagerly=True)
    return model


def dataset(folder, y=Y):
    given = {"x_train": X, "y_train": y, "x_test": X, "y_test": y}
    return write_packed(folder / "packed", "mine", "real", as_contents(given, OwnDataSettings(dataset="packed_arrays")))


@pytest.mark.parametrize(("by_name", "y"), [(True, Y), (False, Y), (False, tuple(Y.values()))])
def test_each_output_is_judged_against_its_own_target_as_keras_does(tmp_path, by_name, y):
    data, model, plain = dataset(tmp_path, y), network(by_name), network(by_name)
    expected = plain.evaluate(X, y, batch_size=60, return_dict=True, verbose=0)
    check_network(model, data.spec).set_weights(plain.get_weights())
    head, metrics = head_of(data.spec, model=model), CompiledMetrics(model)
    rows = {name: tf.constant(data.rows("test", name, field)) for name, field in fields_of(data.spec).items()}
    targets, outputs = head.targets(targets_in(rows, data.spec)), model(X)
    assert float(head.loss(targets, outputs)) == pytest.approx(expected["loss"], rel=1e-5)
    metrics.update(targets, head.final(outputs), head.as_probabilities(outputs))
    found = metrics.take_results()
    assert set(found) == {"kind_accuracy", "size_mae", "flag_accuracy"}
    assert found == pytest.approx({name: expected[name] for name in found}, rel=1e-5)
    assert float(tf.reduce_mean(head.metric(targets, outputs))) == pytest.approx(expected["kind_accuracy"])
    probabilities = predicting(head.finished(model), data.spec)(X)
    of_kind = keras.tree.flatten(outputs)[1 if by_name else 0]
    np.testing.assert_allclose(probabilities, tf.nn.softmax(of_kind), rtol=1e-5)


def without(name):
    return {key: rows for key, rows in Y.items() if key != name}


@pytest.mark.parametrize(
    ("y", "build", "told"),
    [
        (without("flag"), network, "its outputs are flag, kind, size, and the data has targets for kind, size: give y"),
        (tuple(Y.values()), network, "outputs are flag, kind, size, and the data has targets for output_0, output_1"),
        (Y, lambda: network(loss=None), r"the data has 3 targets: compile\(\) it with a loss for each output"),
        (
            {**Y, "kind": Y["size"]},
            network,
            "output 'kind': it returns 3 numbers for each example, and the data set asks",
        ),
    ],
)
def test_outputs_that_do_not_fit_their_targets_are_told_by_name(tmp_path, y, build, told):
    with pytest.raises(ValueError, match=told):
        check_network(build(), dataset(tmp_path, y).spec)


def test_targets_with_names_and_without_are_told_apart():
    given = {"x_train": X, "y_train": Y, "x_test": X, "y_test": Y["kind"]}
    with pytest.raises(
        Malformed, match="y_train has the outputs kind, size, flag, but y_test is one array without names"
    ):
        as_contents(given, OwnDataSettings(dataset="packed_arrays"))


@pytest.mark.parametrize(
    ("y", "told"),
    [
        ({"Kind": Y["kind"], "size": Y["size"]}, "y_train has a target for output 'Kind': give the output a name of"),
        ({}, "y_train has no target"),
        ({**Y, "size": Y["size"][:50]}, "y_train have different numbers of rows: 'kind' has 60, 'size' has 50"),
        ({**Y, "flag": np.zeros(60, int)}, "output 'flag': all training examples are of one class, '0'"),
    ],
)
def test_targets_that_do_not_fit_each_other_are_told_by_name(tmp_path, y, told):
    with pytest.raises(Malformed, match=told):
        dataset(tmp_path, y)


def test_classes_have_no_weights_where_there_are_several_targets(tmp_path):
    config = build_config(overrides={"training.class_weights": {"1": 2.0}})
    with pytest.raises(ValueError, match="class_weights.*the data has several targets: weigh the examples instead"):
        OBJECTIVES["classification"].check(config, dataset(tmp_path).spec)
