"""`ps_cluster.fit`: its arguments, and models that travel with the code of a script. Its trainings are in examples/."""

import inspect

import cloudpickle
import keras
import numpy as np
import pytest

import ps_cluster
from ps_cluster.api.fit import predicts_numbers
from ps_cluster.api.fit_data import Examples
from ps_cluster.api.networks import write_network
from ps_cluster.config import user_code
from ps_cluster.models.by_value import own_objects

pytestmark = pytest.mark.slow


def model(**compiled):
    found = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    if compiled:
        found.compile(**compiled)
    return found


X, Y = np.zeros((8, 2), "float32"), np.arange(8) % 2


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"model": model()}, r"model: give a Keras model that was compiled with a loss"),
        ({"shuffle": False}, "shuffle: got False: only True is possible"),
        ({"validation_freq": 2}, "validation_freq: got 2: only 1 is possible"),
        ({"initial_epoch": 3, "epochs": 3}, "initial_epoch: got 3"),
        ({"initial_epoch": -1}, "initial_epoch: got -1: give a whole number of at least 0"),
        ({"epochs": "3"}, "epochs: got '3': give a whole number of at least 1"),
        ({"batch_size": 0}, "batch_size: got 0: give a whole number of at least 1"),
        ({"steps_per_epoch": -1}, "steps_per_epoch: got -1: give a whole"),
        ({"validation_steps": 1.5}, "validation_steps: got 1.5: give a whole"),
        ({"class_weight": [1, 2]}, "class_weight: got .1, 2.: give a dictionary"),
        (
            {"settings": {"training": {"epochs": 2}}},
            "training.epochs: the argument 'epochs' of fit decides this setting",
        ),
        ({"steps": 50}, "training.steps: the argument 'epochs' of fit decides"),
        ({"patience": 3}, "evaluation.patience: it needs examples to score: give validation_data"),
        ({"settings": {"cluster.evaluator": True}}, "cluster.evaluator: it needs examples to score"),
        ({"data_dir": "/mnt"}, "data.data_dir: got '/mnt', but the argument 'data' also chooses the data"),
        ({"verbose": 7}, "verbose: got 7"),
        ({"max_queue_size": 3}, "max_queue_size: there is no such argument"),
        ({"callbacks": [keras.callbacks.ReduceLROnPlateau()]}, "ReduceLROnPlateau can't be used"),
    ],
)
def test_an_argument_that_can_not_be_honoured_is_refused_before_anything_starts(options, told, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ps_cluster.UserError, match=told):
        ps_cluster.fit(**{"model": model(optimizer="adam", loss="mse"), "x": X, "y": Y, **options})
    assert not list(tmp_path.iterdir())


def absolute_error(wanted, found):
    return keras.ops.mean(keras.ops.abs(wanted - found), axis=-1)


@pytest.mark.parametrize(
    ("loss", "outputs", "targets", "are_numbers"),
    [
        ("mse", 1, [1, 2, 3], True),
        ("MeanSquaredError", 1, [1, 2, 3], True),
        (keras.losses.Huber(), 1, [20, 35, 50], True),
        (keras.losses.Huber(), 1, [0, 1, 1], False),
        (absolute_error, 1, [-1, 1, 1], True),
        (absolute_error, 3, [0, 1, 2], False),
        (absolute_error, 2, [[0.5, 1.5], [2.0, 3.0]], True),
        ("sparse_categorical_crossentropy", 3, [0, 1, 2], False),
        (keras.losses.CategoricalCrossentropy(), 2, [[0.25, 0.75], [0.5, 0.5]], False),
        ("hinge", 1, [-1, 1, 1], False),
        ("mse", 1, [0] * 3_000 + [7], True),
    ],
)
def test_the_loss_says_whether_targets_are_numbers_and_a_loss_of_the_users_is_judged_by_the_shapes(
    loss, outputs, targets, are_numbers
):
    judged = keras.Sequential([keras.Input((2,)), keras.layers.Dense(outputs)])
    judged.compile(loss=loss)
    examples = Examples(np.zeros((len(targets), 2)), np.array(targets))
    assert predicts_numbers(judged, examples) == are_numbers


def test_the_arguments_of_fit_are_those_of_model_fit_in_the_same_order():
    ours = list(inspect.signature(ps_cluster.fit).parameters)
    assert ours[1:17] == list(inspect.signature(keras.Model.fit).parameters)[1:]
    assert {"workers", "ps", "mode", "run_dir", "settings"} <= set(ours)


class Doubled(keras.layers.Layer):
    def call(self, x):
        return 2 * x


def too_large(wanted, found):
    return keras.ops.mean(keras.ops.abs(wanted - found), axis=-1)


class Furthest(keras.metrics.MeanAbsoluteError):
    pass


def squashed(x):
    return keras.ops.tanh(x)


@pytest.mark.filterwarnings("ignore:Skipping variable loading for optimizer:UserWarning")  # it was not trained yet
def test_layers_functions_losses_and_metrics_of_a_script_travel_with_the_model_by_value(tmp_path):
    mine = keras.Sequential([keras.Input((2,)), Doubled(), keras.layers.Dense(1, activation=squashed)])
    mine.compile("adam", too_large, metrics=[Furthest(name="furthest")])
    assert {"Doubled", "squashed", "too_large", "Furthest"} <= own_objects(mine).keys()
    assert own_objects(model(optimizer="adam", loss="mse", metrics=["mae"])) == {}
    reference = user_code.parse(write_network(mine, tmp_path))
    user_code.trust(reference.file)
    spec = type("Spec", (), {"objective": "classification"})
    copied = user_code.load(reference)(spec)
    x = np.ones((3, 2), "float32")
    assert np.array_equal(copied.predict(x, verbose=0), mine.predict(x, verbose=0))
    assert type(copied.optimizer) is keras.optimizers.Adam and copied.compiled
    assert write_network(mine, tmp_path) == str(reference), "the same model has the same name"


class Block(keras.layers.Layer):
    """A layer as in many examples of Keras: without `get_config` and without `**kwargs`."""

    def __init__(self, width, rate=0.1):
        super().__init__()
        self.inner = keras.Sequential([keras.layers.Dense(width, activation="relu"), keras.layers.Dropout(rate)])

    def call(self, x):
        return self.inner(x)


class OfBlocks(keras.Model):
    def __init__(self):
        super().__init__()
        self.first, self.last = Block(4, rate=0.5), keras.layers.Dense(1)

    def call(self, x):
        return self.last(self.first(x))


@pytest.mark.filterwarnings("ignore:Skipping variable loading for optimizer:UserWarning")  # it was not trained yet
@pytest.mark.filterwarnings("ignore:`build..` was called on layer:UserWarning")  # Keras's, of layers without `build`
def test_layers_and_models_that_keras_can_save_but_not_load_travel_with_their_arguments(tmp_path):
    x = np.ones((3, 2), "float32")
    frozen, subclassed = Block(5), OfBlocks()
    frozen.trainable, frozen.dtype_policy = False, keras.DTypePolicy("mixed_bfloat16")
    subclassed(x)
    for mine in (keras.Sequential([keras.Input((2,)), frozen, Block(4), keras.layers.Dense(1)]), subclassed):
        mine.compile("adam", "mse")
        reference = user_code.parse(write_network(mine, tmp_path))
        user_code.trust(reference.file)
        copied = user_code.load(reference)(type("Spec", (), {"objective": "classification"}))
        assert np.array_equal(copied.predict(x, verbose=0), mine.predict(x, verbose=0))
        assert [one.shape for one in copied.trainable_weights] == [one.shape for one in mine.trainable_weights]
        assert copied.layers[0].compute_dtype == mine.layers[0].compute_dtype


def test_a_model_that_can_not_be_saved_is_refused_in_one_line(tmp_path):
    class Unsaved(keras.layers.Layer):
        def __init__(self, value):
            super().__init__()

        def get_config(self):
            raise NotImplementedError("no config")

    broken = keras.Sequential([keras.Input((2,)), Unsaved(3)])
    with pytest.raises(ps_cluster.UserError, match="model: Keras can't save it, .*no config") as error:
        write_network(broken, tmp_path)
    assert "\n" not in str(error.value)


def test_a_model_whose_arguments_keras_does_not_note_is_refused_without_the_example_that_keras_adds(tmp_path):
    class Wide(keras.Model):
        def __init__(self, width):
            super().__init__()
            self.inner = keras.layers.Dense(width)

        def call(self, x):
            return self.inner(x)

    model = Wide(2)
    model(np.ones((1, 2), "float32"))
    with pytest.raises(ps_cluster.UserError, match="Object Wide was created .* Please implement `get_config..`.$"):
        write_network(model, tmp_path)


def test_a_function_of_a_child_process_of_multiprocessing_is_sent_by_value(tmp_path, monkeypatch):
    """In such a child the main module is called `__mp_main__`, and the processes of a run have no module of that name."""
    script = type(inspect)("__mp_main__")
    monkeypatch.setitem(__import__("sys").modules, "__mp_main__", script)
    exec("def build():\n    return 7\n", script.__dict__)
    reference = user_code.parse(write_network(script.build, tmp_path))
    monkeypatch.delitem(__import__("sys").modules, "__mp_main__")
    assert cloudpickle.loads(reference.file.read_bytes())["build"]() == 7
