"""Join the networks of trained members into one model that averages their predictions, and score all of them."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path

import keras
import numpy as np
import tensorflow as tf

from ps_cluster.config import RunConfig
from ps_cluster.config.objectives import OBJECTIVES
from ps_cluster.data.packed import PackedDataset
from ps_cluster.data.text_rows import network_inputs
from ps_cluster.errors import UserError
from ps_cluster.evaluation.scorer import Scorer
from ps_cluster.files.writing import path_beside
from ps_cluster.models.compiled_heads import head_of
from ps_cluster.models.flat import as_arguments
from ps_cluster.models.saved import predicting
from ps_cluster.report.calibration import Calibration
from ps_cluster.runs import checkpoints
from ps_cluster.runs.run_dir import RunDir
from ps_cluster.tools.sweep.ensemble_scores import Scores, ScoreTable

BATCH_SIZE = 100


def load_member(config: RunConfig, root: Path, dataset: PackedDataset) -> keras.Model:
    """Return a member's network with the weights of its last step. Its only output is the prediction.

    Raises UserError if the training has not ended, or if its last checkpoint can't be read.
    """
    folder = RunDir(root).checkpoints
    ended = checkpoints.ended(folder)
    if ended is None:
        raise UserError(f"member '{root}' has not ended its training: run the same command again to continue")
    model: keras.Model = Scorer(config, dataset).model_of(
        checkpoints.load(checkpoints.path_of(folder, ended.last_step))
    )
    return predicting(model, dataset.spec)


def joined(members: Sequence[keras.Model], dataset: PackedDataset) -> keras.Model:
    """Return a model that takes raw inputs, and returns the mean of the members' predictions, float32 [B, outputs]."""
    fields = dataset.spec.inputs.items()
    inputs = as_arguments(
        {name: keras.Input(field.shape, name=name, dtype=field.network_dtype) for name, field in fields}
    )
    for index, member in enumerate(members):
        member.name = f"member_{index}"  # the layers of a model need different names
    predictions = [member(inputs) for member in members]
    return keras.Model(inputs, keras.layers.Average(dtype="float32")(predictions), name="ensemble")


def save_joined(model: keras.Model, path: Path) -> None:
    """Save the model atomically."""
    with path_beside(path) as unfinished:
        model.save(unfinished)


def score(names: Sequence[str], members: Sequence[keras.Model], dataset: PackedDataset) -> ScoreTable:
    """Return the scores of each member, and of their mean prediction, on the test set."""
    head, objective = head_of(dataset.spec).prediction_head, OBJECTIVES[dataset.spec.objective]
    calibrated = objective.activation == "softmax"
    predict = [
        tf.function(partial(member, training=False), autograph=False, reduce_retracing=True) for member in members
    ]
    inputs, target = dataset.inputs("test"), dataset.target("test")
    # For each member, and then for the ensemble: an array float32 [3, B] for each batch.
    found: list[list[np.ndarray]] = [[] for _ in range(len(members) + 1)]
    for start in range(0, len(target), BATCH_SIZE):
        batch = slice(start, start + BATCH_SIZE)
        rows = {name: tf.constant(np.asarray(all_rows[batch])) for name, all_rows in inputs.items()}
        arrays = as_arguments(network_inputs(rows, dataset.spec))
        targets = head.targets(tf.constant(np.asarray(target[batch])))
        predictions = [one(arrays) for one in predict]
        for of_one, prediction in zip(found, (*predictions, tf.add_n(predictions) / len(predictions))):
            outputs = head.outputs_of(prediction)
            metric, losses = head.metric(targets, outputs), head.losses(targets, outputs)
            confidence = tf.reduce_max(prediction, axis=-1) if calibrated else tf.zeros_like(metric)
            of_one.append(np.stack([metric, losses, confidence]))
    *of_members, of_ensemble = (_scores(np.concatenate(of_one, axis=1), calibrated=calibrated) for of_one in found)
    return ScoreTable(tuple(names), tuple(of_members), of_ensemble, objective.metric_name)


def _scores(found: np.ndarray, *, calibrated: bool) -> Scores:
    """Return the scores of one model.

    Args:
      found: metric, loss and confidence of each example, float32 [3, examples].
      calibrated: whether the scores include the calibration error, which only a classification has.
    """
    metric, losses, confidence = found.astype(np.float64)
    calibration_error = Calibration.of(confidence, metric > 0.5).expected_error if calibrated else None
    return Scores(float(metric.mean()), float(losses.mean()), calibration_error)
