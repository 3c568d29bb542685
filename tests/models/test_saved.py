"""What becomes of a finished model that is used: probabilities, once, of its first output, in float32."""

import os

import keras
import numpy as np
import pytest

from ps_cluster.config import user_code
from ps_cluster.config.objectives import ArrayField, ExampleSpec
from ps_cluster.errors import UserError
from ps_cluster.models.saved import in_float32, load_unchanged, predicting
from ps_cluster.process_variables import TRUSTED_FILES
from tests.helpers.users import SOMEBODY, SOMEBODY_ELSE, as_user, common  # noqa: F401

LAYERS = keras.layers
ROWS = np.random.default_rng(0).normal(size=[5, 6]).astype(np.float32)


def spec(objective="classification"):
    target = ArrayField("float32", (3,)) if objective == "regression" else ArrayField("uint8", ())
    classes = () if objective == "regression" else ("a", "b", "c")
    return ExampleSpec({"row": ArrayField("float32", (6,))}, target, objective, classes)


def several():
    row = keras.Input([6])
    first, second = LAYERS.Dense(3, name="first")(row), LAYERS.Dense(3, name="second")(row)
    return keras.Model(row, [first, second])


@keras.saving.register_keras_serializable("saved")
class Subclassed(keras.Model):
    def __init__(self, **named):
        super().__init__(**named)
        self.scores = LAYERS.Dense(3)

    def call(self, row):
        return self.scores(row)


def sequential(activation=None):
    return keras.Sequential([keras.Input([6]), LAYERS.Dense(3, activation)])


@pytest.mark.parametrize(
    ("objective", "made", "expected"),
    [
        ("classification", sequential, keras.ops.softmax),
        ("classification", Subclassed, keras.ops.softmax),
        ("classification", lambda: sequential("softmax"), lambda probabilities: probabilities),
        ("classification", several, lambda outputs: keras.ops.softmax(outputs[0])),
        ("multi-label", sequential, keras.ops.sigmoid),
        ("multi-label", lambda: sequential("sigmoid"), lambda probabilities: probabilities),
        ("regression", sequential, lambda values: values),
    ],
)
def test_predictions_are_what_the_objective_says_of_the_first_output(objective, made, expected):
    model = made()
    found = predicting(model, spec(objective))(ROWS)
    np.testing.assert_allclose(found, expected(model(ROWS)), atol=1e-6)


def test_a_model_of_bfloat16_computes_in_float32_with_the_same_weights():
    keras.utils.set_random_seed(1)
    half = keras.Sequential([keras.Input([6]), LAYERS.Dense(50, dtype="mixed_bfloat16"), LAYERS.Dense(3)])
    exact = keras.Sequential([keras.Input([6]), LAYERS.Dense(50), LAYERS.Dense(3)])
    exact.set_weights(half.get_weights())
    assert np.abs(half(ROWS) - exact(ROWS)).max() > 1e-4
    np.testing.assert_allclose(in_float32(half)(ROWS), exact(ROWS), atol=1e-6)


def test_a_model_of_another_user_is_loaded_only_by_who_names_it(common, monkeypatch):  # noqa: F811
    file = common / "model.keras"
    keras.Sequential([keras.Input([6]), LAYERS.Dense(3)]).save(file)
    os.chown(file, SOMEBODY_ELSE, SOMEBODY_ELSE)
    monkeypatch.setenv(TRUSTED_FILES, "")
    load_unchanged(file)  # what it imports, another user may not be able to read
    with as_user(SOMEBODY), pytest.raises(UserError, match=f"belongs to .*{SOMEBODY_ELSE}.*, or add --code '{file}'"):
        load_unchanged(file)
    user_code.trust(file)
    with as_user(SOMEBODY):
        assert len(load_unchanged(file).layers) == 1
