"""Follow a run with Keras callbacks.

When the run begins to train, its data and its model are opened. The callbacks are called at the end of each epoch.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import keras
import tensorflow as tf

from ps_cluster.api.fit_data import Examples, evaluate
from ps_cluster.api.keras_callbacks import CallbackCaller, Epoch, EpochReader
from ps_cluster.config import RunConfig, load_config, user_code
from ps_cluster.config.networks import NETWORKS
from ps_cluster.config.objectives import OBJECTIVES
from ps_cluster.data.packed import PackedDataset
from ps_cluster.evaluation.scorer import dataset_of
from ps_cluster.files.json_rows import append_row
from ps_cluster.models.build import build
from ps_cluster.models.compiled import CompiledMetrics
from ps_cluster.models.compiled_heads import head_of, zero_targets
from ps_cluster.models.flat import as_arguments
from ps_cluster.notices import Notify
from ps_cluster.report.terminal import print_line
from ps_cluster.runs import checkpoints
from ps_cluster.runs.result_rows import CallbacksRow
from ps_cluster.runs.run_dir import RunDir

# Checkpoints are kept until the callbacks have read them, up to a total size (training/saver.py). This many are kept in
# any case, so callbacks may be this many epochs behind the training, and still find the weights of their epoch.
CHECKPOINTS_KEPT = 10


def with_epochs_scored(values: Mapping[str, Any], passes: float = 1.0) -> dict[str, Any]:
    """Return a copy of `values` with added settings, which make the run score each epoch.

    If `values` choose when checkpoints are written, this choice stays.

    Args:
      values: settings by dotted key.
      passes: the length of an epoch, in passes over the training examples.
    """
    found = {"checkpoints.keep": CHECKPOINTS_KEPT, **values}
    if not {"checkpoints.every_epochs", "checkpoints.every_seconds"} & values.keys():
        found = {"checkpoints.every_epochs": passes, "checkpoints.exact": True, **found}
    return found


@dataclass
class RunCallbacks:
    """Calls Keras callbacks for a run. It is a `RunFollower` (api/listener.py).

    The run's data and network are read only when its training begins.

    Attributes:
      model: the Keras model that the callbacks get; None: the network of the run is built for them.
      examples: some of the caller's examples, with which the model's metrics are built. Keras decides by the shape of
        the targets which metric "accuracy" means. The targets of the run may have another shape than the caller's,
        because one-hot targets are stored as labels.
      passes: the length of an epoch, in passes over the training examples.
      steps: the number of batches of an epoch, which callbacks find in `self.params`; None: the number in one pass.
      first_epoch: the number of the first epoch, as `initial_epoch` of `fit`.
      verbose: the value that callbacks find in `self.params`.
      extra_logs: returns further logs of an epoch. When it is called, the model has the weights of the epoch.
      notify: called with each line about the data set.
    """

    run_dir: RunDir
    callbacks: Sequence[keras.callbacks.Callback]
    model: keras.Model | None = None
    examples: Examples | None = None
    passes: float = 1.0
    steps: int | None = None
    first_epoch: int = 0
    verbose: int = 0
    extra_logs: Callable[[], Mapping[str, float]] = dict
    notify: Notify = print_line

    @cached_property
    def _config(self) -> RunConfig:
        return load_config(self.run_dir.config)

    @cached_property
    def _dataset(self) -> PackedDataset:
        return dataset_of(self.run_dir, self._config, None, self.notify)

    @cached_property
    def _reader(self) -> EpochReader:
        data, config = self._dataset, self._config
        every = config.checkpoints.every_epochs
        return EpochReader(
            self.run_dir,
            self.passes * config.examples_seen(data.train_examples),
            examples_per_update=config.examples_per_update,
            scored=config.cluster.evaluator,
            metric=OBJECTIVES[data.spec.objective].metric_name,
            checkpoint_every=every / self.passes if every is not None and config.checkpoints.exact else None,
        )

    @cached_property
    def _caller(self) -> CallbackCaller:
        training = self._config.training
        examples = self._config.examples_seen(self._dataset.train_examples)
        return CallbackCaller(
            self.callbacks,
            self._built_model(),
            epochs=self.first_epoch + round(training.epochs / self.passes),
            steps=self.steps or math.ceil(examples / training.batch_size_per_worker),
            first_epoch=self.first_epoch,
            verbose=self.verbose,
            extra_logs=self.extra_logs,
            logs_of_fit=self.model is not None and self.model.compiled,
        )

    def _built_model(self) -> keras.Model:
        """Return the model for the callbacks, with its metrics built.

        Keras's callbacks learn from the built metrics whether larger values are better.
        """
        spec, model = self._dataset.spec, self.model
        if self.examples is not None:
            evaluate(model, self.examples)
            return model
        if model is None:
            if code := NETWORKS.code_of(self._config.model.name):
                user_code.trust(code)  # the caller has chosen this code
            model = build(self._config.model, spec, seed=self._config.training.seed)
            model.compile(loss="mse", metrics=["accuracy"] if OBJECTIVES[spec.objective].has_accuracy else [])
        zeros = {name: tf.zeros([2, *field.shape], field.network_dtype) for name, field in spec.inputs.items()}
        head = head_of(spec, model=model)
        outputs = head.final(model(as_arguments(zeros)))
        CompiledMetrics(model).check_on(head.targets(zero_targets(spec, 2)), outputs)
        return model

    def poll(self) -> bool:
        """Call the callbacks for all new epochs. Return whether a callback wants to end the training."""
        if self.run_dir.config.is_file() and not self.run_dir.callbacks.is_file():  # before there is a checkpoint
            self._keep_checkpoints_above(0)
        if not self.run_dir.progress.is_file():
            return False
        self._caller.begin()
        return any(map(self._end_epoch, self._reader.new_epochs()))

    def _end_epoch(self, epoch: Epoch) -> bool:
        wants_end = self._caller.end_epoch(epoch, self.run_dir.checkpoints)
        self._keep_checkpoints_above(epoch.checkpoint)
        return wants_end

    def _keep_checkpoints_above(self, step: int) -> None:
        """Tell the run that the callbacks still need the checkpoints of all later steps."""
        append_row(self.run_dir.callbacks, CallbacksRow(step=step))

    def finish(self) -> None:
        """Load the last weights into the model, call `on_train_end`, and remove checkpoints kept for the callbacks."""
        folder = self.run_dir.checkpoints
        if steps := checkpoints.steps(folder):
            self._caller.load(folder, max(steps))
        self._caller.end()
        self.run_dir.callbacks.unlink(missing_ok=True)
        if not self._config.evaluation.after_training:
            checkpoints.keep_newest(folder, self._config.checkpoints.keep)
