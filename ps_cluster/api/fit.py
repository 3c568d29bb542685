"""Train a compiled Keras model on a cluster with the arguments of `Model.fit`."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Unpack

import keras
import numpy as np

from ps_cluster.api import keywords
from ps_cluster.api.fit_data import Examples, FitData, evaluate, fit_data
from ps_cluster.api.keras_callbacks import ACCURACIES, check_callbacks, metric_names, name_in_compile
from ps_cluster.api.program import COMMAND, refuse_within_a_run
from ps_cluster.api.result import Result
from ps_cluster.api.run_callbacks import RunCallbacks, with_epochs_scored
from ps_cluster.api.train import train_new
from ps_cluster.errors import UserError
from ps_cluster.files.values import one_line
from ps_cluster.models.compiled import has_loss
from ps_cluster.notices import Notify, ignore
from ps_cluster.private_names import given_to_compile
from ps_cluster.report.terminal import print_line

BATCH_SIZE = 32  # as in Model.fit
METRIC_EXAMPLES = 2_048  # the number of examples for measuring the metrics that the run does not report
_OF_NUMBERS = (
    "mse", "mean_squared_error", "mae", "mean_absolute_error", "mape", "mean_absolute_percentage_error", "msle",
    "mean_squared_logarithmic_error", "huber", "log_cosh", "logcosh", "poisson", "cosine_similarity",
)  # fmt: skip


@dataclass(frozen=True)
class FitHistory:
    """The outcome of `fit`, with the attributes of the History that `Model.fit` returns.

    Attributes:
      history: name of a log → its value at the end of each epoch.
      epoch: the numbers of these epochs, from 0 or `initial_epoch`.
      params: the parameters that the callbacks were given.
      model: the model that was trained.
      result: the run, with its directory, its ledger and its best model.
    """

    history: dict[str, list[float]]
    epoch: list[int]
    params: dict[str, Any]
    model: keras.Model
    result: Result


def fit(
    model: keras.Model,
    x: Any = None,
    y: Any = None,
    batch_size: int | None = None,
    epochs: int = 1,
    verbose: str | int = "auto",
    callbacks: Any = None,
    validation_split: float = 0.0,
    validation_data: Any = None,
    shuffle: bool = True,
    class_weight: Mapping[int, float] | None = None,
    sample_weight: Any = None,
    initial_epoch: int = 0,
    steps_per_epoch: int | None = None,
    validation_steps: int | None = None,
    validation_batch_size: int | None = None,
    validation_freq: int = 1,
    *,
    run_dir: str | os.PathLike[str] | None = None,
    settings: Mapping[str, Any] | None = None,
    command: Sequence[str] = COMMAND,
    **options: Unpack[keywords.FitOptions],
) -> FitHistory:
    """Train a compiled Keras model on a cluster of processes on this machine, with the arguments of `Model.fit`.

        model.compile("adam", "sparse_categorical_crossentropy", metrics=["accuracy"])
        history = ps_cluster.fit(model, x, y, validation_data=(xv, yv), epochs=5, batch_size=128, workers=3)

    Three workers compute gradients at the same time and send them to a parameter server, which applies each one
    immediately. At the end, the model has the weights of the last update, as after `Model.fit`. The optimizer of the
    model is not changed.

    Args:
      model: a compiled model. It may use layers, losses and metrics that your script or notebook defines.
      x: an array, a dictionary or tuple of arrays, a pandas frame, a tf.data.Dataset, a keras.utils.PyDataset, or a generator.
        A stream is read once, into files, and each epoch trains on what was read. So put random augmentation into layers
        of the model.
      y: the targets, if x is not a stream; a dictionary or tuple of arrays for a model with several outputs.
      batch_size: the number of examples in one batch of one worker; None: 32, or the batch size of a stream.
      epochs: the number of the last epoch.
      verbose: 0 prints nothing, 2 prints a line for each epoch, and 1 or "auto" prints the lines of the run too.
      callbacks: Keras callbacks. `on_train_begin`, `on_epoch_begin`, `on_epoch_end` and `on_train_end` are called in this
        process, with the weights of the epoch in `self.model`. Callbacks that act within an epoch are refused.
      validation_split: the fraction of the examples that is held out and scored, taken from the end of the arrays.
      validation_data: (x, y), (x, y, sample_weight), or a stream. These examples are scored after each epoch.
      shuffle: has to be True. The examples of each epoch are shuffled.
      class_weight: class → the weight of its examples in the loss.
      sample_weight: a weight for each example.
      initial_epoch: the number of the first epoch. The optimizer starts without moments from earlier calls.
      steps_per_epoch: the number of updates of an epoch; needed for a generator.
      validation_steps: the number of batches of `validation_data` to score; None: all.
      validation_batch_size: the size of the batches that `validation_steps` counts; it does not change a score.
      validation_freq: has to be 1, because a separate process scores every epoch.
      run_dir: a new folder for the files of the run; None: a new one in runs/.
      settings: any settings of docs/configuration.md, e.g. {"staleness.method": "none"}.
      command: the words that start the program `ps-cluster`, before its arguments.
      options: the options of `ps-cluster run`: workers, ps, mode, seed, …

    Returns:
      A FitHistory. `history` has the keys of `Model.fit`. `loss` and the accuracy are means over the updates of an epoch; other
      metrics of the training are measured at the end of the epoch, on up to 2,048 training examples. The workers wait at
      the end of each epoch until its checkpoint is written.

    Raises:
      UserError: bad input, in one line that says what to do.
      TrainingFailed: the training failed.
      KeyboardInterrupt, and whatever a callback raises: raised after the run was stopped cleanly.
    """
    refuse_within_a_run("fit")
    if not isinstance(model, keras.Model) or not model.compiled or not has_loss(model):
        raise UserError("model: give a Keras model that was compiled with a loss: model.compile('adam', loss=…)")
    for name, value, needed in (("shuffle", bool(shuffle), True), ("validation_freq", validation_freq, 1)):
        if value != needed:
            raise UserError(f"{name}: got {value}: only {needed} is possible with a cluster: leave it out")
    if not 0 <= initial_epoch < epochs:
        raise UserError(
            f"initial_epoch: got {initial_epoch}: it has to be at least 0 and below epochs, which is {epochs}"
        )
    if verbose not in ("auto", 0, 1, 2):
        raise UserError(f"verbose: got {one_line(repr(verbose), 50)}: give 'auto', 0, 1 or 2")
    level = 1 if verbose == "auto" else int(verbose)
    say: Notify = print_line if level == 1 else ignore
    found = check_callbacks(callbacks)
    values = keywords.values_of(options, settings)
    with fit_data(
        model, x, y, sample_weight, validation_data=validation_data, validation_split=validation_split,
        steps_per_epoch=steps_per_epoch, validation_steps=validation_steps,
        validation_batch_size=validation_batch_size or batch_size or BATCH_SIZE, say=say,
    ) as data:  # fmt: skip
        if data.batch_size is not None and batch_size is not None:
            raise UserError("batch_size: x is a stream, which has batches of its own: leave batch_size out")
        size = batch_size or data.batch_size or BATCH_SIZE
        passes = 1.0  # the number of passes over the training examples in an epoch
        if steps_per_epoch is not None and data.batch_size is None:  # arrays; a stream was read only for these steps
            passes = steps_per_epoch * size / len(data.train)
            values = {"training.steps": steps_per_epoch * (epochs - initial_epoch), **values}
        values = with_epochs_scored(
            _settings_of(model, data, size, epochs - initial_epoch, class_weight) | dict(values), passes
        )
        history = keras.callbacks.History()
        extra_logs = partial(
            _measured,
            model,
            data.train.part(0, METRIC_EXAMPLES),
            None if data.validation is None else data.validation.part(0, METRIC_EXAMPLES),
        )
        listener = partial(
            RunCallbacks,
            callbacks=[*found, *([EpochLines(epochs)] if level else []), history],
            model=model,
            passes=passes,
            first_epoch=initial_epoch,
            verbose=level,
            examples=data.train.part(0, 2),
            extra_logs=extra_logs,
            say=say,
        )
        result = train_new(model, data.arrays, values, run_dir=run_dir, listeners=[listener], command=command, say=say)
    return FitHistory(history.history, history.epoch, history.params, model, result)


keywords.show_keywords(fit, keywords.FitOptions)


def _settings_of(
    model: keras.Model,
    data: FitData,
    batch_size: int,
    epochs: int,
    class_weight: Mapping[int, float] | None,
) -> dict[str, Any]:
    """Return the settings of the run that follow from the arguments of `fit`."""
    found: dict[str, Any] = {"training.batch_size_per_worker": batch_size, "training.epochs": epochs}
    if data.validation is None:
        found["cluster.evaluator"] = False
    if class_weight is not None:
        found["training.class_weights"] = {str(label): float(weight) for label, weight in class_weight.items()}
    if _predicts_numbers(model, data.train):
        found["data.objective"] = "regression"
    return found


def _predicts_numbers(model: keras.Model, train: Examples) -> bool:
    """Return whether the loss shows that numeric targets are values to predict, not classes."""
    names = set(map(name_in_compile, keras.tree.flatten(given_to_compile(model).losses)))
    if isinstance(train.y, Mapping) or not names <= set(_OF_NUMBERS):
        return False
    return train.y.dtype.kind in "iuf" and not np.isin(train.y[:METRIC_EXAMPLES], (0, 1)).all()


def _measured(model: keras.Model, train: Examples, validation: Examples | None) -> dict[str, float]:
    """Return the logs of an epoch that the run does not report, measured on some examples.

    These are the metrics of the training except the accuracy and, if there are several outputs, the loss of each output.
    """
    outputs = train.y if isinstance(train.y, Mapping) and len(train.y) > 1 else {}
    if not outputs and metric_names(model) <= ACCURACIES:
        return {}
    found = evaluate(model, train)
    logs = {name: value for name, value in found.items() if name != "loss" and name not in ACCURACIES}
    losses = {f"{name}_loss" for name in outputs} & found.keys()
    if losses and validation is not None:
        logs |= {f"val_{name}": value for name, value in evaluate(model, validation).items() if name in losses}
    return logs


class EpochLines(keras.callbacks.Callback):
    """Prints a line at the end of each epoch, as `Model.fit` does with verbose=2."""

    def __init__(self, epochs: int):
        super().__init__()
        self._epochs, self._begun_at = epochs, time.monotonic()

    def on_epoch_begin(self, epoch: int, logs: Mapping[str, float] | None = None) -> None:
        self._begun_at = time.monotonic()

    def on_epoch_end(self, epoch: int, logs: Mapping[str, float] | None = None) -> None:
        told = "".join(f" - {name}: {value:.4f}" for name, value in sorted((logs or {}).items()))
        print_line(f"Epoch {epoch + 1}/{self._epochs} - {time.monotonic() - self._begun_at:.0f}s{told}")
