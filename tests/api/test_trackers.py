"""The callbacks of trackers, on a real cluster: Weights & Biases offline, MLflow with a local store, TensorBoard."""

import keras
import numpy as np
import pytest

import ps_cluster
from tests.helpers.processes import assert_none_left

wandb = pytest.importorskip("wandb", reason="wandb is not installed: make test-extras")
mlflow = pytest.importorskip("mlflow", reason="mlflow is not installed: make test-extras")
pytestmark = pytest.mark.cluster


def test_three_trackers_log_each_epoch_of_a_run(tmp_path, monkeypatch):
    from mlflow.keras import MlflowCallback
    from wandb.integration.keras import WandbMetricsLogger

    monkeypatch.chdir(tmp_path)
    for name, value in (("WANDB_MODE", "offline"), ("WANDB_SILENT", "true"), ("MLFLOW_ALLOW_FILE_STORE", "true")):
        monkeypatch.setenv(name, value)
    (tmp_path / "of_wandb").mkdir()  # its service leaves files there
    monkeypatch.setenv("TMPDIR", str(tmp_path / "of_wandb"))
    x = np.random.default_rng(0).normal(size=(3000, 8)).astype("float32")
    model = keras.Sequential([keras.Input((8,)), keras.layers.Dense(2, activation="softmax")])
    model.compile("adam", "sparse_categorical_crossentropy", metrics=["accuracy"])
    mlflow.set_tracking_uri(f"file://{tmp_path}/mlruns")
    with wandb.init(dir=tmp_path, project="test") as logged, mlflow.start_run() as tracked:
        trackers = [
            WandbMetricsLogger(),
            MlflowCallback(tracked),
            keras.callbacks.TensorBoard(tmp_path / "tensorboard"),
        ]
        history = ps_cluster.fit(
            model, x, (x[:, 0] > 0).astype("int32"), validation_split=0.2, epochs=3, workers=1, run_dir=tmp_path / "run",
            callbacks=trackers,
        )  # fmt: skip
        assert logged.summary["epoch/val_loss"] == pytest.approx(history.history["val_loss"][-1])
    wandb.teardown()  # ends its service, a process that would outlive the test
    of_mlflow = mlflow.MlflowClient().get_metric_history(tracked.info.run_id, "val_loss")
    assert [one.value for one in of_mlflow] == pytest.approx(history.history["val_loss"])
    assert [one.step for one in of_mlflow] == history.epoch
    assert list((tmp_path / "tensorboard" / "validation").iterdir())
    assert_none_left(tmp_path / "run")
