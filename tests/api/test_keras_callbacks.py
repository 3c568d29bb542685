"""Keras callbacks that read the files of a run. The tests write these files themselves."""

import contextlib
import json
import math

import keras
import numpy as np
import pytest

from ps_cluster.api.fit_data import Examples
from ps_cluster.api.keras_callbacks import (
    CallbackCaller,
    Epoch,
    EpochReader,
    accuracy_names,
    check_callbacks,
    metric_names,
)
from ps_cluster.api.run_callbacks import RunCallbacks
from ps_cluster.config import build_config
from ps_cluster.data.packed import write_pointer
from ps_cluster.errors import UserError
from ps_cluster.files.json_rows import last_row
from ps_cluster.files.writing import write_whole
from ps_cluster.runs import checkpoints
from ps_cluster.runs.checkpoints import Checkpoint, CheckpointMeta
from ps_cluster.runs.journal import Journal
from ps_cluster.runs.ledger import ROW
from ps_cluster.runs.result_rows import CallbacksRow
from ps_cluster.runs.run_dir import RunDir
from tests.helpers.data import pack_images

pytestmark = pytest.mark.slow


class OfBatches(keras.callbacks.Callback):
    def on_train_batch_end(self, batch, logs=None):
        """Do nothing."""


class OfValidation(keras.callbacks.Callback):
    def on_test_end(self, logs=None):
        """Do nothing."""


class OwnCheckpoint(keras.callbacks.ModelCheckpoint):
    """It inherits methods for batches, with which Keras only counts."""


class EveryTenthEpoch(keras.callbacks.Callback):
    log_freq = 10


@pytest.mark.parametrize(
    ("callback", "told"),
    [
        (keras.callbacks.ReduceLROnPlateau(), "ReduceLROnPlateau can't be used with a cluster: .*schedule.kind"),
        (keras.callbacks.ModelCheckpoint("{epoch}.keras", save_freq=100), r"acts within an epoch \(save_freq=100\)"),
        (OwnCheckpoint("{epoch}.keras", save_freq=9), r"OwnCheckpoint acts within an epoch \(save_freq=9\)"),
        (OfBatches(), r"OfBatches acts within an epoch \(on_train_batch_end\), .*use on_epoch_end"),
        (keras.callbacks.LambdaCallback(on_train_batch_end=print), "LambdaCallback acts within an epoch"),
        (OfValidation(), r"OfValidation acts within an epoch \(on_test_end\)"),
        (print, "callbacks: got <built-in function print>: give objects of keras.callbacks.Callback"),
    ],
)
def test_a_callback_that_only_fit_can_serve_is_refused_by_name_with_what_to_do(callback, told):
    with pytest.raises(UserError, match=told):
        check_callbacks([keras.callbacks.TerminateOnNaN(), callback])


def test_callbacks_that_act_at_the_end_of_an_epoch_are_taken_also_in_nested_lists():
    taken = [
        keras.callbacks.EarlyStopping(),
        keras.callbacks.TensorBoard(),
        keras.callbacks.LambdaCallback(on_epoch_end=print),
        OwnCheckpoint("{epoch}.keras"),
        EveryTenthEpoch(),
    ]
    assert check_callbacks([taken[:1], taken[1:]]) == taken
    assert check_callbacks(None) == []


@pytest.fixture
def run_dir(tmp_path):
    for folder in ("metrics", "checkpoints"):
        (tmp_path / folder).mkdir()
    return RunDir(tmp_path)


def add(run_dir, name, **row):
    with (run_dir.root / "metrics" / name).open("a") as file:
        file.write(json.dumps(row) + "\n")


def write_updates(run_dir, losses, term=1):
    """Append updates of 10 examples each, with an accuracy of a tenth of the loss."""
    run_dir.journals.mkdir(exist_ok=True)
    rows = np.zeros(len(losses), ROW)
    rows["examples"], rows["loss"], rows["metric"] = 10, losses, losses
    with contextlib.closing(Journal(run_dir.journal(0, term))) as journal:
        journal.append(rows)


def test_an_epoch_has_the_means_over_its_updates_and_the_scores_of_its_checkpoint(run_dir):
    reader = EpochReader(run_dir, 100, scored=True)
    write_updates(run_dir, [4.0] * 2 + [2.0] * 8 + [1.0] * 4 + [0.5] * 7)
    assert list(reader.new_epochs()) == []
    add(run_dir, "evaluation.jsonl", step=10, examples=100, test_loss=3.0, test_accuracy=0.5, compiled={"auc": 0.75})
    add(run_dir, "evaluation.jsonl", step=20, examples=200, test_loss=2.0)
    first, second = reader.new_epochs()
    assert (first.number, first.checkpoint) == (0, 10) and (second.number, second.checkpoint) == (1, 20)
    assert first.logs == {
        "loss": pytest.approx(2.4), "accuracy": pytest.approx(0.24), "val_loss": 3.0, "val_accuracy": 0.5, "val_auc": 0.75,
    }  # fmt: skip
    assert second.logs == {"loss": pytest.approx(0.7), "accuracy": pytest.approx(0.07), "val_loss": 2.0}


def test_updates_that_a_failed_leader_has_left_behind_its_last_state_are_in_no_mean(run_dir):
    reader = EpochReader(run_dir, 100, scored=True, metric="error")
    write_updates(run_dir, [4.0] * 10 + [9.0] * 5)
    add(run_dir, "evaluation.jsonl", step=10, examples=100)
    assert [epoch.logs["loss"] for epoch in reader.new_epochs()] == [4.0]
    write_updates(run_dir, [1.0] * 10, term=2)
    add(run_dir, "evaluation.jsonl", step=20, examples=200)
    assert [epoch.logs for epoch in reader.new_epochs()] == [{"loss": 1.0, "error": pytest.approx(0.1)}]


def test_a_second_score_of_an_epoch_ends_no_epoch(run_dir):
    reader = EpochReader(run_dir, 100, scored=True)
    for step, examples in ((10, 100), (10, 100), (11, 110), (20, 200)):
        add(run_dir, "evaluation.jsonl", step=step, examples=examples)
    assert [epoch.number for epoch in reader.new_epochs()] == [0, 1]


def test_an_epoch_is_over_when_its_last_examples_are_trained_on_give_or_take_half_an_update(run_dir):
    reader = EpochReader(run_dir, 100, examples_per_update=8, scored=True)
    for step, examples in ((6, 48), (13, 104), (24, 192), (25, 196)):
        add(run_dir, "evaluation.jsonl", step=step, examples=examples)
    assert [(epoch.number, epoch.checkpoint) for epoch in reader.new_epochs()] == [(0, 13), (1, 25)]


def test_an_update_that_is_longer_than_an_epoch_ends_the_last_epoch_that_it_reaches(run_dir):
    reader = EpochReader(run_dir, 32, examples_per_update=96, scored=True)
    for step, examples in ((1, 96), (2, 192)):
        add(run_dir, "evaluation.jsonl", step=step, examples=examples)
    assert [epoch.number for epoch in reader.new_epochs()] == [2, 5]


def compiled_model():
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1, use_bias=False)])
    model.compile("sgd", "mse", metrics=["acc", keras.metrics.AUC(name="area")])
    return model


def save(run_dir, step, weights):
    arrays = {"weights": np.array(weights, np.float32), "statistics": np.zeros(0, np.float32)}
    checkpoints.save(run_dir.checkpoints, Checkpoint(step, arrays, CheckpointMeta(examples=10 * step)), keep=3)


def test_without_an_evaluator_an_epoch_ends_with_its_checkpoint(run_dir):
    reader = EpochReader(run_dir, 100, scored=False)
    save(run_dir, 10, [1, 2])
    assert [(epoch.number, epoch.checkpoint) for epoch in reader.new_epochs()] == [(0, 10)]
    assert list(reader.new_epochs()) == []


def test_callbacks_see_the_weights_of_the_epoch_and_the_logs_under_the_names_of_fit(run_dir):
    seen = []

    class Watching(keras.callbacks.Callback):
        def on_epoch_end(self, epoch, logs=None):
            seen.append((epoch, self.model.get_weights()[0].ravel().tolist(), logs))
            self.model.stop_training = epoch == 5

        def on_train_end(self, logs=None):
            seen.append("end")

    model = compiled_model()
    assert metric_names(model) == {"acc", "area"}
    history = keras.callbacks.History()
    caller = CallbackCaller([Watching(), history], model, epochs=9, first_epoch=4)
    for step, weights in ((10, [1, 2]), (20, [3, 4])):
        save(run_dir, step, weights)
    logs = {"loss": 1.0, "accuracy": 0.5, "val_loss": 2.0, "val_accuracy": 0.7, "val_acc": 0.7}
    assert not caller.end_epoch(Epoch(0, 10, logs), run_dir.checkpoints)
    assert caller.end_epoch(Epoch(1, 20, logs), run_dir.checkpoints)
    caller.end()
    of_fit = {"loss": 1.0, "acc": 0.5, "val_loss": 2.0, "val_acc": 0.7}
    assert seen == [(4, [1, 2], of_fit), (5, [3, 4], of_fit), "end"]
    assert history.epoch == [4, 5] and history.history["val_acc"] == [0.7, 0.7]


@pytest.mark.parametrize(("logs_of_fit", "seen"), [(True, ["loss"]), (False, ["error", "loss", "val_error"])])
def test_the_runs_own_metric_is_told_unless_the_caller_has_compiled_the_model_without_it(run_dir, logs_of_fit, seen):
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1, use_bias=False)])
    model.compile("sgd", "mse")
    history = keras.callbacks.History()
    caller = CallbackCaller([history], model, epochs=1, logs_of_fit=logs_of_fit)
    save(run_dir, 10, [1, 2])
    caller.end_epoch(Epoch(0, 10, {"loss": 1.0, "error": 0.5, "val_error": 0.7}), run_dir.checkpoints)
    assert sorted(history.history) == seen


def test_an_exception_of_a_callback_says_in_which_method_it_was_raised(run_dir):
    def fails(epoch, logs):
        raise ZeroDivisionError

    caller = CallbackCaller([keras.callbacks.LambdaCallback(on_epoch_end=fails)], compiled_model(), epochs=1)
    save(run_dir, 10, [1, 2])
    with pytest.raises(ZeroDivisionError) as error:
        caller.end_epoch(Epoch(0, 10, {}), run_dir.checkpoints)
    assert "on_epoch_end of epoch 1 of your callbacks" in error.value.__notes__[0]


def test_an_epoch_whose_checkpoint_was_deleted_is_left_out_with_a_line(run_dir, capsys):
    history = keras.callbacks.History()
    caller = CallbackCaller([history], compiled_model(), epochs=3)
    save(run_dir, 20, [1, 2])
    assert not caller.end_epoch(Epoch(0, 10, {"loss": 1.0}), run_dir.checkpoints)
    assert "epoch 1 is left out, because the checkpoint was deleted" in capsys.readouterr().out
    caller.end_epoch(Epoch(1, 20, {"loss": 0.5}), run_dir.checkpoints)
    assert history.epoch == [1] and history.history["loss"] == [0.5]


@pytest.mark.parametrize(
    ("kept", "every", "told"),
    [
        ((10, 20, 30), 1.0, ""),
        ((20, 30), 1.0, "epoch 1 is left out"),
        ((10, 40), 1.0, "epochs 2 to 3 are left out"),
        ((20, 40), 2.0, ""),
        ((10, 40), None, ""),
    ],
)
def test_epochs_whose_checkpoints_were_deleted_before_they_were_seen_are_named(run_dir, capsys, kept, every, told):
    history = keras.callbacks.History()
    caller = CallbackCaller([history], compiled_model(), epochs=4)
    for step in kept:
        save(run_dir, step, [1, 2])
    for epoch in EpochReader(run_dir, 100, examples_per_update=10, scored=False, checkpoint_every=every).new_epochs():
        caller.end_epoch(epoch, run_dir.checkpoints)
    lines = [line for line in capsys.readouterr().out.splitlines() if "left out" in line]
    assert len(lines) == bool(told) and all(told in line for line in lines)
    assert history.epoch == [step // 10 - 1 for step in kept]


def test_no_gap_is_told_where_an_update_is_about_as_long_as_an_epoch(run_dir):
    for length in (0.4, 0.6, 0.9, 1.4, 2.4):
        reader = EpochReader(run_dir, 100, examples_per_update=round(100 * length), scored=True, checkpoint_every=1.0)
        updates = sorted({max(1, math.ceil(epoch / length - 1e-9)) for epoch in range(1, 20)})
        run_dir.evaluation.unlink(missing_ok=True)
        for update in updates:
            add(run_dir, "evaluation.jsonl", step=update, examples=round(100 * length) * update)
        assert {epoch.left_out for epoch in reader.new_epochs()} == {0}, length


def test_a_run_is_told_which_checkpoints_the_callbacks_still_need_until_it_has_ended(run_dir, tmp_path):
    images = np.zeros([10, 32, 32, 3], np.uint8), np.arange(10, dtype=np.uint8)
    dataset = pack_images(tmp_path / "packed", "synthetic", tuple("abcdefghij"), (*images, *images))
    write_pointer(run_dir.dataset, dataset)
    model, needed = compiled_model(), []

    def note_needed(epoch, logs):
        needed.append(last_row(run_dir.callbacks, CallbacksRow).step)

    two = Examples(np.zeros([2, 2], np.float32), np.zeros([2, 1], np.float32))
    note = keras.callbacks.LambdaCallback(on_epoch_end=note_needed)
    follower = RunCallbacks(run_dir, callbacks=[note], model=model, examples=two)
    follower.poll()
    assert not run_dir.callbacks.exists()
    settings = {"training.batch_size_per_worker": 10, "checkpoints.keep": 2, "cluster.evaluator": False}
    write_whole(run_dir.config, build_config(None, settings | {"data.dataset": "synthetic"}).to_yaml())
    follower.poll()
    assert last_row(run_dir.callbacks, CallbacksRow).step == 0
    add(run_dir, "progress.jsonl")
    for step in (1, 2, 3):
        save(run_dir, step, [step, step])
    follower.poll()
    assert needed == [0, 1, 2] and last_row(run_dir.callbacks, CallbacksRow).step == 3
    follower.finish()
    assert not run_dir.callbacks.exists() and checkpoints.steps(run_dir.checkpoints) == [2, 3]
    assert model.get_weights()[0].ravel().tolist() == [3, 3]


@pytest.mark.parametrize("method", ["on_epoch_begin", "on_epoch_end"])
def test_a_callback_that_changes_the_learning_rate_is_told_that_it_has_no_effect(run_dir, method):
    model = compiled_model()
    warm_up = keras.callbacks.LambdaCallback(**{method: lambda *_: model.optimizer.learning_rate.assign(0.5)})
    caller = CallbackCaller([warm_up], model, epochs=2)
    save(run_dir, 10, [1, 2])
    with pytest.raises(UserError, match="changed the learning rate from 0.01 to 0.5, .*set schedule.kind"):
        caller.end_epoch(Epoch(0, 10, {}), run_dir.checkpoints)


@pytest.mark.parametrize(
    ("metric", "outputs", "is_reported"),
    [
        ("accuracy", 3, True),
        ("acc", 1, True),
        ("sparse_categorical_accuracy", 3, True),
        (keras.metrics.SparseCategoricalAccuracy(), 3, True),
        (keras.metrics.BinaryAccuracy(), 1, True),
        (keras.metrics.BinaryAccuracy(threshold=0.9), 1, False),
        ("binary_accuracy", 3, False),
        (keras.metrics.SparseTopKCategoricalAccuracy(2, name="accuracy"), 3, False),
    ],
)
def test_an_accuracy_that_means_another_one_than_that_of_the_run_is_measured(metric, outputs, is_reported):
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(outputs)])
    model.compile("sgd", "mse", metrics=[metric])
    assert accuracy_names(model) == (metric_names(model) if is_reported else set())


def test_a_checkpoint_within_an_epoch_that_has_ended_is_read_once_and_ends_none(run_dir, monkeypatch):
    reader, read, load = EpochReader(run_dir, 100, scored=False), [], checkpoints.load
    monkeypatch.setattr(checkpoints, "load", lambda path: read.append(path) or load(path))
    save(run_dir, 10, [1, 2])
    save(run_dir, 11, [1, 2])
    assert [epoch.checkpoint for epoch in reader.new_epochs()] == [10]
    assert list(reader.new_epochs()) == [] and len(read) == 2
