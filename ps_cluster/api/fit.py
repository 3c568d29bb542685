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
from ps_cluster.api.keras_callbacks import accuracy_names, check_callbacks, metric_names
from ps_cluster.api.program import COMMAND, refuse_within_a_run
from ps_cluster.api.result import Result
from ps_cluster.api.run_callbacks import RunCallbacks, with_epochs_scored
from ps_cluster.api.train import train_new
from ps_cluster.errors import UserError
from ps_cluster.files.values import one_line
from ps_cluster.models.compiled import has_loss
from ps_cluster.models.keras_losses import compares_numbers
from ps_cluster.notices import Notify, ignore
from ps_cluster.private_names import given_to_compile
from ps_cluster.report.terminal import print_line

METRIC_EXAMPLES = 2_048  # the number of examples for measuring the metrics that the run does not report
# For each setting that an argument of `fit` decides: the name of this argument.
_OF_ARGUMENTS = {
    "training.epochs": "epochs", "training.steps": "epochs", "training.batch_size_per_worker": "batch_size",
    "training.class_weights": "class_weight", "data.held_out": "validation_split",
}  # fmt: skip
_OF_SCORES = ("evaluation.patience", "evaluation.monitor", "cluster.evaluator")  # they need examples to score


@dataclass(frozen=True)
class FitHistory:
    """The result of `fit`. It has the attributes of the `History` that `Model.fit` returns, and `result`.

    Attributes:
      history: a dictionary that maps the name of each log to a list of its values at the ends of the epochs.
      epoch: the numbers of the epochs. The first number is `initial_epoch`.
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
        The last three are streams. A stream is read once, into files, and each epoch trains on what was read. So put
        random augmentation into layers of the model.
      y: the targets, if x is not a stream; a dictionary or tuple of arrays for a model with several outputs.
      batch_size: the number of examples in one batch of one worker; None: 32, or the batch size of a stream.
      epochs: the number of epochs, including those before `initial_epoch`.
      verbose: 0 prints nothing, 2 prints a line for each epoch, and 1 or "auto" prints the lines of the run too.
      callbacks: Keras callbacks. `on_train_begin`, `on_epoch_begin`, `on_epoch_end` and `on_train_end` are called in this
        process, with the weights of the epoch in `self.model`. Callbacks that act within an epoch, or change the learning
        rate, are refused.
      validation_split: the fraction of the examples that is held out and scored, taken from the end of the arrays.
      validation_data: (x, y), (x, y, sample_weight), or a stream. These examples are scored after each epoch.
      shuffle: has to be True. The examples of each epoch are shuffled.
      class_weight: a dictionary that maps a class to the weight of its examples in the loss.
      sample_weight: a weight for each example.
      initial_epoch: the number of the first epoch. Unlike in `Model.fit`, the optimizer starts without
        the moments that it had at the end of an earlier call.
      steps_per_epoch: the number of batches of an epoch; needed for a stream without end. If it is given, only the
        batches of one epoch are read from a generator or a tf.data.Dataset, and every epoch trains on them.
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
      UserError: the input is bad. The message is one line that says what to do.
      TrainingFailed: the training failed.
      KeyboardInterrupt, and whatever a callback raises: raised after the run was stopped cleanly.
    """
    refuse_within_a_run("fit")
    if not isinstance(model, keras.Model) or not model.compiled or not has_loss(model):
        raise UserError("model: give a Keras model that was compiled with a loss: model.compile('adam', loss=…)")
    for name, value, needed in (("shuffle", bool(shuffle), True), ("validation_freq", validation_freq, 1)):
        if value != needed:
            raise UserError(f"{name}: got {value}: only {needed} is possible with a cluster: leave it out")
    epochs = _whole("epochs", epochs)
    initial_epoch = _whole("initial_epoch", initial_epoch, least=0)
    if initial_epoch >= epochs:
        raise UserError(f"initial_epoch: got {initial_epoch}: it has to be below epochs, which is {epochs}")
    if verbose not in ("auto", 0, 1, 2):
        raise UserError(f"verbose: got {one_line(repr(verbose), 50)}: give 'auto', 0, 1 or 2")
    level = 1 if verbose == "auto" else int(verbose)
    notify: Notify = print_line if level == 1 else ignore
    found = check_callbacks(callbacks)
    if class_weight is not None and not isinstance(class_weight, Mapping):
        raise UserError(
            f"class_weight: got {one_line(repr(class_weight), 50)}: give a dictionary that maps a class to its weight"
        )
    values = keywords.values_of(options, settings)
    for key, argument in _OF_ARGUMENTS.items():
        if key in values:
            raise UserError(f"{key}: the argument '{argument}' of fit decides this setting: leave the setting out")
    counts = {
        "batch_size": batch_size, "steps_per_epoch": steps_per_epoch, "validation_steps": validation_steps,
        "validation_batch_size": validation_batch_size,
    }  # fmt: skip
    with fit_data(
        model, x, y, sample_weight, epochs=epochs - initial_epoch, validation_data=validation_data,
        validation_split=validation_split, notify=notify,
        **{name: None if value is None else _whole(name, value) for name, value in counts.items()},
    ) as data:  # fmt: skip
        if data.validation is None and (unscored := [key for key in _OF_SCORES if values.get(key)]):
            raise UserError(
                f"{unscored[0]}: it needs examples to score: give validation_data or validation_split, or leave it out"
            )
        values = with_epochs_scored(
            _settings_of(model, data, epochs - initial_epoch, class_weight) | values,
            passes=data.passes,
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
            passes=data.passes,
            steps=data.steps,
            first_epoch=initial_epoch,
            verbose=level,
            examples=data.train.part(0, 2),
            extra_logs=extra_logs,
            notify=notify,
        )
        result = train_new(
            model, data.arrays, values, run_dir=run_dir, listeners=[listener], command=command, notify=notify
        )
    return FitHistory(history.history, history.epoch, history.params, model, result)


keywords.show_keywords(fit, keywords.FitOptions)


def _settings_of(
    model: keras.Model,
    data: FitData,
    epochs: int,
    class_weight: Mapping[int, float] | None,
) -> dict[str, Any]:
    """Return the settings of the run that follow from the arguments of `fit`."""
    found: dict[str, Any] = {
        "training.batch_size_per_worker": data.batch_size,
        "training.epochs": data.passes * epochs,
    }
    if data.validation is None:
        found["cluster.evaluator"] = False
    if class_weight is not None:
        found["training.class_weights"] = {str(label): float(weight) for label, weight in class_weight.items()}
    if predicts_numbers(model, data.train):
        found["data.objective"] = "regression"
    return found


def predicts_numbers(model: keras.Model, train: Examples) -> bool:
    """Return whether numeric targets are values to predict (a regression) instead of classes. The loss decides this.

    If the loss is the user's own function, the targets are values if they have the shape of the model's output.
    """
    targets = train.y
    if isinstance(targets, Mapping) or targets.dtype.kind not in "iuf" or np.isin(targets, (0, 1)).all():
        return False
    losses = [one for one in keras.tree.flatten(given_to_compile(model).losses) if one is not None]
    found = {compares_numbers(keras.losses.get(one)) for one in losses}
    if None in found:
        outputs = getattr(model, "outputs", None) or []
        found.remove(None)
        found.add([(targets.shape[1:] or (1,))] == [tuple(one.shape[1:]) for one in outputs])
    return found == {True}


def _whole(name: str, value: object, least: int = 1) -> int:
    """Return `value`, an integer of Python or NumPy, as an int.

    Raises:
      UserError: it is not an integer, or is below `least`.
    """
    found = keywords.plain(value)
    if not isinstance(found, int) or isinstance(found, bool) or found < least:
        raise UserError(f"{name}: got {one_line(repr(value), 50)}: give a whole number of at least {least}")
    return found


def _measured(model: keras.Model, train: Examples, validation: Examples | None) -> dict[str, float]:
    """Measure those values of an epoch's logs that Keras reports but the run does not. Return them by name.

    These are the values of the compiled metrics on `train`, except the accuracy. If the model has several outputs,
    the loss of each output on `train` and on `validation` is also returned.
    """
    outputs = train.y if isinstance(train.y, Mapping) and len(train.y) > 1 else {}
    reported = accuracy_names(model)
    if not outputs and metric_names(model) <= reported:
        return {}
    found = evaluate(model, train)
    logs = {name: value for name, value in found.items() if name != "loss" and name not in reported}
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
