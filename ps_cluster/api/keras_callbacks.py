"""Call Keras callbacks in the caller's process while a cluster trains, as `Model.fit` calls them at the end of each epoch.

The epochs of a run end when a checkpoint has been written and, if the run has an evaluator, scored. `EpochReader` finds these
epochs in the files of the run, and `CallbackCaller` hands each one to the callbacks, with the weights of its checkpoint.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import keras
import numpy as np

from ps_cluster.errors import UserError
from ps_cluster.files.json_rows import RowTail
from ps_cluster.files.values import one_line
from ps_cluster.models.flat import assign
from ps_cluster.private_names import given_to_compile, wrapped_function_of
from ps_cluster.report.terminal import print_line
from ps_cluster.runs import checkpoints
from ps_cluster.runs.checkpoint_arrays import KEYED
from ps_cluster.runs.journal import JournalTail
from ps_cluster.runs.result_rows import EvaluationRow
from ps_cluster.runs.run_dir import RunDir

# The callbacks of these modules need no calls within an epoch, unless an argument that is checked below asks for them.
_KNOWN_MODULES = ("keras.", "wandb.", "mlflow.")
_USUAL = (keras.callbacks.Callback, keras.callbacks.LambdaCallback)
# The processes of the workers train the batches, and the evaluator scores the validation data.
_METHODS_NOT_CALLED = (
    "on_batch_begin", "on_batch_end", "on_train_batch_begin", "on_train_batch_end", "on_test_begin", "on_test_end",
    "on_test_batch_begin", "on_test_batch_end",
)  # fmt: skip
_SET_THE_SCHEDULE = (
    "the workers compute the learning rate of each step: set schedule.kind, e.g. settings={'schedule.kind': 'cosine'}, or a "
    "schedule of your own (docs/extending.md)"
)
_REFUSED: dict[type[keras.callbacks.Callback], str] = {
    keras.callbacks.LearningRateScheduler: _SET_THE_SCHEDULE,
    keras.callbacks.ReduceLROnPlateau: _SET_THE_SCHEDULE,
    keras.callbacks.BackupAndRestore: "every run saves its state automatically, and train(resume=RUN_DIR) continues it",
    keras.callbacks.SwapEMAWeights: "the optimizer keeps no moving average of the weights here: with "
    "settings={'lookahead.every_updates': 5}, the parameter servers set the weights to their moving mean every 5 updates",
}


def metric_names(model: keras.Model) -> set[str]:
    """Return the names of the metrics that a model was compiled with."""
    return set(map(name_in_compile, keras.tree.flatten(given_to_compile(model).metrics)))


def accuracy_names(model: keras.Model) -> set[str]:
    """Return the names of those metrics of a compiled model whose value is the accuracy that each update reports.

    Other metrics that Keras calls an accuracy, e.g. with another threshold or among the five best classes, have other
    values.
    """
    outputs = getattr(model, "outputs", None) or []
    is_binary = [tuple(one.shape[1:]) for one in outputs] == [(1,)]
    metrics = keras.tree.flatten(given_to_compile(model).metrics)
    return {name_in_compile(one) for one in metrics if _is_plain_accuracy(one, is_binary=is_binary)}


def _is_plain_accuracy(given: object, *, is_binary: bool) -> bool:
    if given in ("accuracy", "acc"):
        return True
    metric = keras.metrics.get(given)
    function = wrapped_function_of(metric) or metric
    if function is keras.metrics.binary_accuracy:
        return is_binary and getattr(metric, "threshold", 0.5) == 0.5
    return function in (keras.metrics.categorical_accuracy, keras.metrics.sparse_categorical_accuracy)


def name_in_compile(passed: object) -> str:
    """Return the name of a loss or metric that was passed to `compile` as a name, an object or a function."""
    return passed if isinstance(passed, str) else getattr(passed, "name", "") or getattr(passed, "__name__", "")


def check_callbacks(given: object) -> list[keras.callbacks.Callback]:
    """Return the callbacks as a flat list. Raises UserError if a callback can't be used with a cluster."""
    found = list(keras.tree.flatten(given)) if given is not None else []
    for one in found:
        name = type(one).__name__
        if not isinstance(one, keras.callbacks.Callback):
            raise UserError(f"callbacks: got {one_line(repr(one), 100)}: give objects of keras.callbacks.Callback")
        for kind, advice in _REFUSED.items():
            if isinstance(one, kind):
                raise UserError(f"callbacks: {name} can't be used with a cluster: {advice}")
        if reason := _acts_within_an_epoch(one):
            raise UserError(
                f"callbacks: {name} acts within an epoch ({reason}), but other processes train the batches and score the "
                "validation data: use on_epoch_end, or the function on_progress=… of ps_cluster.train"
            )
    return found


def _acts_within_an_epoch(callback: keras.callbacks.Callback) -> str:
    """Return the callback's method or argument that acts within an epoch, e.g. "save_freq=9"; "" if there is none."""
    known = [kind for kind in type(callback).__mro__ if kind.__module__.startswith(_KNOWN_MODULES)]
    if any(kind not in _USUAL for kind in known):  # in these classes the arguments below have this meaning
        for argument in (
            "save_freq",
            "update_freq",
            "log_freq",
            "log_every_n_steps",
        ):  # a number of batches, or "epoch"
            value = getattr(callback, argument, None)
            if value == "batch" or (isinstance(value, int) and not isinstance(value, bool)):
                return f"{argument}={value!r}"
    return next((name for name in _METHODS_NOT_CALLED if _is_of_user(callback, name)), "")


def _is_of_user(callback: keras.callbacks.Callback, method: str) -> bool:
    """Return whether a callback's method was written by the user.

    Otherwise it is inherited from Keras or from an experiment tracker (wandb or mlflow).
    """
    if method in vars(callback):  # LambdaCallback keeps the user's functions in the object
        return True
    owner = next((kind for kind in type(callback).__mro__ if method in vars(kind)), keras.callbacks.Callback)
    return not owner.__module__.startswith(_KNOWN_MODULES)


@dataclass(frozen=True)
class Epoch:
    """An epoch that has ended.

    Attributes:
      number: the number of the epoch, from 0.
      checkpoint: the step of the checkpoint that ends the epoch.
      logs: the `loss` and the `accuracy` or `error` of the updates since the previous epoch. If the epoch was scored,
        also the scores with the prefix `val_`, and the metrics of compile().
      left_out: the number of epochs directly before this one whose checkpoint was deleted before it was read.
    """

    number: int
    checkpoint: int
    logs: Mapping[str, float]
    left_out: int = 0


class EpochReader:
    """Reads the epochs of a run from the files that its processes write."""

    def __init__(
        self,
        run_dir: RunDir,
        examples: float,
        *,
        examples_per_update: int = 0,
        scored: bool,
        metric: str = "accuracy",
        checkpoint_every: float | None = None,
    ):
        """Create a reader that begins with the first epoch.

        Args:
          examples: the number of examples of an epoch.
          examples_per_update: the number of examples of an update. An epoch rarely ends exactly with an update. So it
            counts as complete if the examples that it lacks are at most half an update, or half an epoch if that is
            less.
          scored: true if an epoch ends when its checkpoint has been scored; false if it ends when the checkpoint has
            been written, as in a run without an evaluator.
          metric: the metric that each update reports, "accuracy" or "error".
          checkpoint_every: the number of epochs between two checkpoints, by which the reader notices that a checkpoint
            was deleted (`Epoch.left_out`). None if the run itself may skip a checkpoint: then this can't be known.
        """
        self._run_dir, self._examples, self._scored = run_dir, examples, scored
        self._margin = min(examples_per_update, examples) / 2
        # The most epochs between two checkpoints. An update that is longer than an epoch ends several epochs at once.
        self._most_apart = (
            math.inf
            if checkpoint_every is None
            else math.ceil(checkpoint_every + round(examples_per_update / examples))
        )
        # The journal of the first parameter server has a row for each update, in the order in which they were applied. Once a
        # checkpoint is on the disk, the rows of all updates in it are there too.
        self._updates, self._metric = JournalTail(run_dir, 0), metric
        self._examples_before = 0  # the number of examples of the epochs so far
        self._evaluation = RowTail(run_dir.evaluation, EvaluationRow)
        self._seen: set[int] = set()
        self._last_number = -1

    def new_epochs(self) -> Iterator[Epoch]:
        """Yield the epochs that have ended since the last call."""
        rows = self._evaluation.new_rows() if self._scored else self._new_checkpoints()
        for row in rows:
            number = math.floor(((row.examples or 0) + self._margin) / self._examples) - 1
            is_new = row.step not in self._seen and number > self._last_number
            self._seen.add(row.step)
            if not is_new:
                continue
            passed = number - self._last_number
            left_out = passed - 1 if passed > self._most_apart else 0
            self._last_number = number
            logs = self._means_up_to(row.examples or 0) | _validation_logs(row)
            yield Epoch(number, row.step, logs, left_out)

    def _means_up_to(self, examples: int) -> dict[str, float]:
        """Return the mean loss and metric of the updates since the last call; {} if there are none.

        Updates after the first `examples` examples of the run are left for the next call.
        """
        self._updates.poll()
        rest = examples - self._examples_before
        self._examples_before = examples
        rows = self._updates.take(
            int(np.searchsorted(np.cumsum(self._updates.waiting["examples"]), rest, side="right"))
        )
        if not len(rows):
            return {}
        metric = float(rows["metric"].sum() / max(1.0, rows["examples"].sum()))
        return {"loss": float(rows["loss"].mean()), self._metric: metric}

    def _new_checkpoints(self) -> list[EvaluationRow]:
        """Return a row without scores for each new checkpoint. A checkpoint deleted before it is read is skipped."""
        folder, rows = self._run_dir.checkpoints, []
        for step in checkpoints.steps(folder):
            if step not in self._seen:
                with contextlib.suppress(checkpoints.CheckpointGone):
                    meta = checkpoints.load(checkpoints.path_of(folder, step)).meta
                    rows.append(EvaluationRow(step=step, examples=meta.examples))
        return rows


def _validation_logs(row: EvaluationRow) -> dict[str, float]:
    values = {"loss": row.test_loss, "accuracy": row.test_accuracy, "error": row.test_error, **row.compiled}
    return {f"val_{name}": float(value) for name, value in values.items() if value is not None}


class CallbackCaller:
    """Loads the weights of each epoch of a run into a model, and then calls the callbacks."""

    def __init__(
        self,
        callbacks: Sequence[keras.callbacks.Callback],
        model: keras.Model,
        *,
        epochs: int,
        steps: int | None = None,
        first_epoch: int = 0,
        verbose: int = 0,
        extra_logs: Callable[[], Mapping[str, float]] = dict,
        logs_of_fit: bool = True,
    ):
        """Create a caller of callbacks, and give the model to the callbacks.

        Args:
          epochs, steps, verbose: the parameters that callbacks find in `self.params`; steps is per epoch.
          first_epoch: the number of the first epoch, as `initial_epoch` of `fit`.
          extra_logs: returns further logs of an epoch. When it is called, the model has the weights of the epoch.
          logs_of_fit: whether callbacks get only the logs that `fit` would give them. If true, the run's metric
            (`accuracy` or `error`) is left out unless the model was compiled with it.
        """
        self._model, self._first_epoch, self._extra_logs = model, first_epoch, extra_logs
        self._callbacks = keras.callbacks.CallbackList(
            list(callbacks), add_history=True, model=model, epochs=epochs, steps=steps, verbose=verbose
        )
        self._epochs, self._metrics, self._accuracies = epochs, metric_names(model), accuracy_names(model)
        self._learning_rate = self._current_learning_rate()
        self._begun, self._logs_of_fit_only = False, logs_of_fit
        self.last_logs: dict[str, float] = {}

    def begin(self) -> None:
        """Call `on_train_begin`, once."""
        if self._begun:
            return
        self._begun = True
        self._model.stop_training = False
        with _reported("on_train_begin"):
            self._callbacks.on_train_begin()
            self._callbacks.on_epoch_begin(self._first_epoch)
            self._check_learning_rate()

    def end_epoch(self, epoch: Epoch, folder: Path) -> bool:
        """Load the weights of an epoch and call `on_epoch_end`. Return whether a callback wants to stop the training.

        The callbacks are not called for an epoch whose checkpoint was deleted before it could be loaded: `epoch`
        itself, or one of the `epoch.left_out` epochs before it. A line with the numbers of these epochs is printed.
        """
        self.begin()
        number = self._first_epoch + epoch.number
        is_there = self.load(folder, epoch.checkpoint)
        first, last = number - epoch.left_out, number - is_there
        if first <= last:
            which = f"epoch {first + 1} is" if first == last else f"epochs {first + 1} to {last + 1} are"
            print_line(
                f"callbacks: {which} left out, because the checkpoint was deleted before the callbacks could be called: the "
                "callbacks are slower than the training, so set checkpoints.keep to a larger number"
            )
        if not is_there:
            return False
        self.last_logs = {**self._logs_of_fit(epoch.logs), **self._extra_logs()}
        with _reported(f"on_epoch_end of epoch {number + 1}"):
            for callback in self._callbacks.callbacks:
                if isinstance(callback, keras.callbacks.TerminateOnNaN):  # it acts only in `on_batch_end`
                    callback.on_batch_end(number, self.last_logs)
            self._callbacks.on_epoch_end(number, self.last_logs)
            if not self._model.stop_training and number + 1 < self._epochs:
                self._callbacks.on_epoch_begin(number + 1)
            self._check_learning_rate()
        return bool(self._model.stop_training)

    def _logs_of_fit(self, logs: Mapping[str, float]) -> dict[str, float]:
        """Return the logs of the loss and of the compiled metrics, under the names that `Model.fit` gives them."""
        unnamed = {"accuracy", "error"} - self._metrics if self._logs_of_fit_only else set()
        found = {name: value for name, value in logs.items() if name.removeprefix("val_") not in unnamed}
        if "accuracy" in logs:
            found |= dict.fromkeys(self._accuracies, logs["accuracy"])
        return found

    def _current_learning_rate(self) -> float | None:
        optimizer = getattr(self._model, "optimizer", None)
        return None if optimizer is None else float(optimizer.learning_rate)

    def _check_learning_rate(self) -> None:
        """Raise UserError if a callback has changed the learning rate of the model, which would have no effect."""
        if (found := self._current_learning_rate()) != self._learning_rate:
            raise UserError(
                f"callbacks: one of them changed the learning rate from {self._learning_rate:g} to {found:g}, which can't be "
                f"done with a cluster: {_SET_THE_SCHEDULE}"
            )

    def end(self) -> None:
        """Call `on_train_end`. The model has the weights that were loaded last, unless a callback has changed them."""
        self.begin()
        with _reported("on_train_end"):
            self._callbacks.on_train_end(self.last_logs)

    def load(self, folder: Path, step: int) -> bool:
        """Load the weights of a step's checkpoint into the model. Return False if the checkpoint is gone."""
        try:
            arrays = checkpoints.load(checkpoints.path_of(folder, step)).arrays
        except checkpoints.CheckpointGone:
            return False
        weights, statistics = (np.asarray(arrays[name]) for name in ("weights", "statistics"))
        assign(self._model, weights, statistics, arrays.get(KEYED))
        return True


@contextlib.contextmanager
def _reported(method: str) -> Iterator[None]:
    """Add a note to an exception. The note says which method of the user's callbacks raised it."""
    try:
        yield
    except Exception as error:
        error.add_note(f"It was raised by {method} of your callbacks. The run was stopped cleanly.")
        raise
