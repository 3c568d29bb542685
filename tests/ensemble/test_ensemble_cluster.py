import json

import keras
import numpy as np
import pytest

from tests.helpers.processes import assert_none_left
from tests.helpers.real_cluster import finish, small, start

pytestmark = pytest.mark.cluster


def test_members_are_trained_on_their_shards_and_joined_into_one_model(tmp_path):
    output = tmp_path / "out"
    command = ("ensemble", "--members", 2, "--split", "shards", "--output", output, *small("--steps", 20))
    told = finish(start(*command))
    assert_none_left(output)
    assert "the ensemble" in told and "calibration error" in told
    scores = json.loads((output / "ensemble.json").read_text())
    assert [member["sample"] for member in scores["members"]] == ["shard:0/2", "shard:1/2"]
    for member in scores["members"]:
        summary = json.loads((output / member["run"] / "summary.json").read_text())
        assert summary["outcome"] == "completed" and summary["updates"]["applied"] == 20
        # Both are of the last checkpoint: the evaluator's score and the one of the table.
        assert summary["evaluation"]["test_accuracy"] == pytest.approx(member["test_accuracy"], abs=1e-3)
    model = keras.models.load_model(output / "ensemble.keras")
    probabilities = model.predict(np.zeros([3, 32, 32, 3], np.uint8), verbose=0)
    np.testing.assert_allclose(probabilities.sum(1), 1, rtol=1e-5)
