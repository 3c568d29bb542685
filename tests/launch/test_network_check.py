"""A user's own network is built once before a run: what is wrong is one line, and what compile() says becomes settings."""

import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from ps_cluster.config import build_config
from ps_cluster.config.datasets import OwnDataSettings
from ps_cluster.config.networks import NETWORKS
from ps_cluster.data.own_arrays import as_contents
from ps_cluster.data.packing import write_packed
from ps_cluster.errors import UserError
from ps_cluster.launch import network_check
from ps_cluster.launch.config_completion import complete_config
from ps_cluster.launch.network_check import CheckRequest, check_network, with_rule_of_compile
from tests.helpers.data import contents_of, random_images

pytestmark = pytest.mark.slow

BODY = """
import keras

def network(*ends, loss=None, optimizer="adam", metrics=None):
    model = keras.Sequential([keras.Input((32, 32, 3)), keras.layers.Flatten(), *ends])
    if loss:
        model.compile(optimizer, loss, metrics=metrics)
    return model

def dense(outputs=10, activation=None, **more):
    return network(keras.layers.Dense(outputs, activation), **more)

def raises(examples, settings):
    return 1 / 0

def nothing():
    return None

def one_output(examples):
    return dense(1)

def softmax():
    return dense(activation="softmax")

def bad_loss():
    return dense(loss=lambda targets, outputs: targets.nothing)

def bad_metric():
    return dense(loss="sparse_categorical_crossentropy", metrics=[lambda targets, outputs: targets.nothing])

def three(a, b, c):
    return dense()

def reads():
    open("vocab.txt")

def plain(examples, width=3):
    return dense(examples.outputs)

def compiled():
    return dense(loss="sparse_categorical_crossentropy", optimizer=keras.optimizers.SGD(0.2, momentum=0.5, clipnorm=1.0))

def with_a_lambda():
    return network(keras.layers.Lambda(lambda values: 2.0 * values), keras.layers.Dense(10))

def of_a_function():
    class Own(keras.layers.Layer):
        def call(self, values):
            return 2.0 * values
    return network(Own(), keras.layers.Dense(10))

def other_each_time(so_far=[]):
    so_far.append(keras.layers.Lambda(lambda values: 2.0 * values))
    return network(*[keras.layers.Dense(10) for _ in so_far], so_far[-1])

def unknown(settings=None):
    return dense(loss="sparse_categorical_crossentropy", optimizer="lion")
"""


@pytest.fixture(scope="module")
def of(tmp_path_factory):
    """of(name, **settings) → a configuration with that network, and the data set for it."""
    folder = tmp_path_factory.mktemp("check")
    (folder / "my.py").write_text(BODY)
    train, test = random_images(20), random_images(10)
    dataset = write_packed(folder / "packed", "cifar10", "real", contents_of((*train, *test)))

    def of(name, **settings):
        model = NETWORKS.allow_code_of(f"my.py:{name}", folder)
        return build_config(None, {"model.name": model} | settings), dataset

    return of


def answer(config, dataset):
    """Return the answer of the process, computed here."""
    return network_check._answer(CheckRequest.from_json(CheckRequest.of(config, dataset).to_json()))


def test_a_question_has_file_names_that_are_no_text(of):
    config, dataset = of("raises", **{"data.data_dir": Path("d\udcff")})
    asked = CheckRequest.of(config, replace(dataset, directory=Path("/p\udcfe")))
    assert CheckRequest.from_json(asked.to_json()) == asked
    assert asked.config["data"]["data_dir"] == "d\udcff"


@pytest.mark.filterwarnings("ignore:The object being serialized includes a `lambda`:UserWarning")
@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("raises", "my.py:14: ZeroDivisionError: division by zero"),
        ("nothing", "it returns nothing (is there a 'return'?), not a keras.Model"),
        (
            "one_output",
            "it returns 1 number for each example, and the data set asks for 10 numbers (10 classes): end it with Dense(10)",
        ),
        ("softmax", "returns probabilities (softmax), where scores are expected"),
        ("bad_loss", "the loss of its compile() fails: AttributeError"),
        (
            "reads",
            "FileNotFoundError: [Errno 2] No such file or directory: 'vocab.txt': the tasks of a run work in another "
            "folder, so a relative path is wrong there: give the absolute path, e.g. Path(__file__).parent / 'vocab.txt'",
        ),
        ("bad_metric", "the metrics of its compile() fail"),
    ],
)
def test_what_is_wrong_with_a_network_is_one_line_that_says_where(of, name, said):
    error = answer(*of(name)).error
    assert said in error and f"my.py:{name}' can't be built for examples of image uint8 [32, 32, 3]" in error
    assert "\n" not in error


@pytest.mark.parametrize(
    ("name", "why"),
    [("plain", None), ("with_a_lambda", "Lambda"), ("of_a_function", "Keras does not know Own")],
)
def test_a_layer_that_keras_alone_can_not_load_is_found_before_the_training(of, name, why):
    facts = answer(*of(name))
    assert facts.error is None and (facts.why_needs_code is None if why is None else why in facts.why_needs_code)
    assert facts.optimizer == facts.schedule == {}, "it was not compiled"


def test_a_network_whose_best_model_could_not_be_loaded_after_hours_is_refused_before(of):
    told = answer(*of("other_each_time")).error
    assert "my.py:other_each_time': the best model could not be loaded after the training" in told and "\n" not in told


def test_a_function_of_something_else_is_refused_when_it_is_named(of):
    with pytest.raises(
        UserError, match=r"three\(a, b, c\) in my.py takes 3 arguments: the function of a network takes no argument"
    ):
        of("three")


def test_a_process_that_dies_while_it_builds_is_told_with_its_signal(of, tmp_path, monkeypatch):
    dies = tmp_path / "python"
    dies.write_text("#!/bin/sh\nkill -9 $$\n")
    dies.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(dies))
    with pytest.raises(UserError, match="my.py:plain': the process that built it ended with SIGKILL"):
        check_network(*of("plain"))


def test_the_launcher_hears_what_compile_says_without_tensorflow(of, monkeypatch):
    config, dataset = of("compiled")
    lines = []
    facts = check_network(config, dataset, lines.append)
    trained = with_rule_of_compile(config, facts).optimizer
    assert (trained.rule, trained.learning_rate, trained.momentum, trained.clip_norm) == ("momentum", 0.2, 0.5, 1.0)
    monkeypatch.setattr(network_check, "_ask", None)
    assert len(lines) == 1 and config.model.name in lines[0], "the user knows what takes some seconds"
    assert check_network(config, dataset, lines.append) == facts  # of a network that was built it is known
    assert len(lines) == 1


def test_an_optimizer_without_a_rule_is_refused_unless_a_rule_is_chosen(of):
    config, dataset = of("unknown")
    facts = answer(config, dataset)
    with pytest.raises(UserError, match=r"optimizer of its compile\(\) \(Lion\) is not known"):
        with_rule_of_compile(config, facts)
    chosen, _ = of("unknown", **{"optimizer.rule": "sgd"})
    assert with_rule_of_compile(chosen, facts).optimizer.rule == "sgd"


def test_outputs_for_each_class_beside_float_targets_are_told_of_the_objective(tmp_path):
    (tmp_path / "my.py").write_text(BODY)
    y = np.arange(20, dtype=np.float32) % 3
    contents = as_contents(
        {"x_train": np.zeros((20, 32, 32, 3), np.uint8), "y_train": y}, OwnDataSettings(dataset="auto")
    )
    dataset = write_packed(tmp_path / "packed", "packed_images", "real", contents)
    config = build_config(None, {"model.name": NETWORKS.allow_code_of("my.py:dense", tmp_path)})
    told = "if the targets are classes, set data.objective=classification; if they are numbers to predict, end it with Dense(1)"
    assert told in answer(config, dataset).error


def test_examples_that_a_network_of_the_package_does_not_take_are_told_before_a_process_starts(tmp_path, monkeypatch):
    contents = as_contents({"x_train": np.eye(20), "y_train": np.arange(20) % 2}, OwnDataSettings(dataset="auto"))
    dataset = write_packed(tmp_path / "packed", "packed_arrays", "real", contents)
    config = build_config(None, {"model.name": "tutorial_cnn", "data.dataset": "packed_arrays"})
    with pytest.raises(UserError, match=r"model.name: 'tutorial_cnn' takes images .*; got x float64 \[20\]"):
        complete_config(config, dataset)
