"""Each mode in which rows of embedding tables travel learns, with one worker, what it learns with whole tables."""

import numpy as np
import pytest

from ps_cluster.models.keyed_rows import EMPTY
from tests.helpers import local_training
from tests.helpers.exhaustive import mostly
from tests.helpers.finished_runs import last_arrays
from tests.helpers.local_training import TABLES, train

pytestmark = pytest.mark.slow

ADAGRAD = TABLES | {"optimizer.rule": "adagrad", "optimizer.global_clip_norm": 1.0}
MODES = {
    "single": {"mode.name": "single"},
    "async, 3 ps": {"mode.name": "async", "cluster.parameter_servers": 3},
    "bounded": {"mode.name": "bounded"},
    "sync-ps": {"mode.name": "sync-ps"},
}


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """The last checkpoint of a training in one process whose tables travel whole."""
    folder = tmp_path_factory.mktemp("whole") / "training"
    trained = train(folder, **ADAGRAD | {"mode.name": "single", "model.rows_from": 257})
    assert trained.result.tables is None
    return last_arrays(folder / "run")


@pytest.mark.parametrize("mode", mostly(MODES, "async, 3 ps"))
def test_one_worker_learns_with_rows_what_a_process_alone_learns_with_whole_tables(mode, whole, tmp_path):
    trained = train(tmp_path / "training", **ADAGRAD, **MODES[mode])
    assert trained.problems == [] and trained.result.proof.holds
    tables, found = trained.result.tables, last_arrays(tmp_path / "training" / "run")
    assert tables.row_values == 4 * tables.rows and 24 < tables.rows <= 24 * 256
    for name in ("weights", "statistics", "slot_accumulator"):
        np.testing.assert_allclose(found[name], whole[name], rtol=1e-4, atol=1e-6, err_msg=name)


def test_with_muon_for_the_other_weights_rows_travel_and_their_updates_are_those_that_are_computed_again(tmp_path):
    rule = {"optimizer.rule": "muon_adam", "optimizer.learning_rate": 0.02}
    trained = train(tmp_path / "training", **TABLES | rule | MODES["async, 3 ps"])
    assert trained.problems == [] and trained.result.proof.holds
    tables = trained.result.tables
    assert tables is not None and 24 < tables.rows <= 24 * 256
    assert len(trained.recomputed) >= 2 and not any(row.unchecked for row in trained.recomputed)
    assert {"gradient", "given weights", "weights", "slots"} <= trained.recomputed[-1].deviations.keys()


@pytest.mark.exhaustive
def test_updates_of_a_table_of_keys_are_those_that_plain_keras_computes(tmp_path, monkeypatch):
    by_keys = "ps_cluster.layers.DynamicEmbedding(96, 4, scale=0.5, admit_after=2)"
    network = "import ps_cluster.layers\n" + local_training.NETWORK_WITH_TABLE.replace(
        "layers.Embedding(256, 4)", by_keys
    )
    monkeypatch.setattr(local_training, "NETWORK_WITH_TABLE", network)
    trained = train(tmp_path / "training", **ADAGRAD, **MODES["async, 3 ps"])
    assert trained.problems == [] and trained.result.proof.holds
    assert len(trained.recomputed) >= 2 and not any(row.unchecked for row in trained.recomputed)
    assert {"gradient", "given weights", "weights", "slots"} <= trained.recomputed[-1].deviations.keys()
    state = last_arrays(tmp_path / "training" / "run")["keyed"].reshape(6, -1)
    assert (state[:, :16] != EMPTY).sum() > 48 and state[:, -1].sum() > 0
