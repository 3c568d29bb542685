"""A network of a user's own class, with what Keras offers, on a real cluster."""

from pathlib import Path

import keras
import numpy as np
import pytest

from tests.doors.toy_subclassed import Toy
from tests.helpers.processes import assert_none_left
from tests.helpers.real_cluster import finish, start_run, summary_of

STEPS = 40


@pytest.mark.cluster
def test_a_class_of_ones_own_trains_with_its_loss_and_weights_and_is_left_as_a_model_that_keras_loads(tmp_path):
    network = ("--model", f"{Path(__file__).parent}/toy_subclassed.py:build", "--steps", STEPS, "--workers", 2)
    weights = ("--set", 'training.class_weights={"2": 3.0}', "--set", "optimizer.clip_norm=1.0")
    finish(start_run(tmp_path / "run", *network, *weights))
    assert_none_left(tmp_path / "run")
    summary = summary_of(tmp_path / "run")
    assert summary["updates"]["applied"] == STEPS and summary["proof"]["holds"]
    scores = summary["evaluation"]["history"][-1]
    assert scores["test_accuracy"] <= scores["compiled"]["top3"] <= 1
    assert summary["settings"]["optimizer.rule"] == "rmsprop", "Keras's default in compile(loss=…)"
    model = keras.models.load_model(tmp_path / "run" / "best" / "model.keras", custom_objects={"Toy": Toy})
    assert model.predict(np.zeros([2, 32, 32, 3], np.uint8), verbose=0).shape == (2, 10)
