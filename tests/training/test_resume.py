"""What a run may go on from: refused before anything is started or written."""

import numpy as np
import pytest

from ps_cluster.config import build_config
from ps_cluster.errors import UserError
from ps_cluster.run_dir import RunDir
from ps_cluster.training import checkpoints
from ps_cluster.training.ledger import COLUMNS
from ps_cluster.training.resume import newest_checkpoint

WORK = {"data.dataset": "synthetic", "model.precision": "float32", "training.steps": 8, "cluster.parameter_servers": 2}


@pytest.fixture
def resumed(tmp_path):
    """resumed(values, columns, meta) → the checkpoint to go on from, with `values` changed, where WORK had taken 6 steps."""

    def resume(values=None, *, columns=len(COLUMNS), meta=None):
        run_dir = RunDir.create(tmp_path / "run")
        before = {"config": build_config(None, WORK).model_dump(mode="json"), "train_seconds": 3.0}
        arrays = {"ledger": np.zeros([2, 6, columns])}
        checkpoints.save(run_dir.checkpoints, checkpoints.Checkpoint(6, arrays, meta or before), keep=1)
        return newest_checkpoint(build_config(None, WORK | (values or {})), run_dir, 1000, notify=pytest.fail)

    return resume


@pytest.mark.parametrize(
    "values", [{}, {"training.steps": 20}, {"optimizer.learning_rate": 0.5}, {"cluster.workers": 2}]
)
def test_the_same_work_goes_on_though_it_be_longer_or_otherwise_done(resumed, values):
    assert resumed(values).step == 6


@pytest.mark.parametrize(
    ("values", "says"),
    [
        ({"training.seed": 1}, "training.seed: got 1, but the checkpoint to resume from was made with 0"),
        ({"training.batch_size_per_worker": 7}, "training.batch_size_per_worker: got 7"),
        ({"data.dataset": "cifar10"}, "data.dataset: got cifar10"),
        ({"cluster.parameter_servers": 1}, "cluster.parameter_servers: got 1"),
        ({"training.steps": 5}, "training.steps, training.epochs: 5 updates in all, but 6 of the run"),
    ],
)
def test_other_work_is_refused_by_name(resumed, values, says):
    with pytest.raises(UserError, match=says):
        resumed(values)


def test_a_run_of_an_earlier_version_is_refused(resumed):
    with pytest.raises(UserError, match="is of an earlier version"):
        resumed(columns=3)


def test_a_configuration_of_an_earlier_version_is_refused(resumed):
    with pytest.raises(UserError, match="is of an earlier version"):
        resumed(meta={"config": {"cluster": {"workers": 3}}, "train_seconds": 3.0})


def test_updates_are_counted_where_each_takes_several_steps(tmp_path):
    run_dir = RunDir.create(tmp_path / "run")
    config = build_config(None, WORK | {"training.mode": "sync", "training.steps": 4})
    meta = {"config": config.model_dump(mode="json"), "train_seconds": 3.0}
    arrays = {"ledger": np.zeros([1, 12, len(COLUMNS)])}
    checkpoints.save(run_dir.checkpoints, checkpoints.Checkpoint(4, arrays, meta), keep=1)
    assert newest_checkpoint(config, run_dir, 1000, notify=pytest.fail).step == 4
    with pytest.raises(UserError, match="3 updates in all, but 4 of the run"):
        newest_checkpoint(config.with_values({"training.steps": 3}), run_dir, 1000, notify=pytest.fail)
