"""Join the networks of trained members: one model that averages their predictions, and how good all of them are."""

from __future__ import annotations

import os
import secrets
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import keras
import numpy as np
import tensorflow as tf

from ps_cluster.catalogue.examples import Field
from ps_cluster.catalogue.objectives import OBJECTIVES
from ps_cluster.data.packed import PackedDataset
from ps_cluster.ensemble.ensemble_plan import Member
from ps_cluster.ensemble.member_scores import Scores
from ps_cluster.errors import UserError
from ps_cluster.evaluation.scorer import Scorer
from ps_cluster.models.flat import as_arguments
from ps_cluster.models.saved import predicting
from ps_cluster.reporting.calibration import expected_calibration_error
from ps_cluster.run import checkpoints
from ps_cluster.run.run_dir import RunDir
from ps_cluster.training.judges import Judge, judge_of

BATCH_SIZE = 100


def load_member(member: Member, root: Path, dataset: PackedDataset) -> keras.Model:
    """Return a member's network as it is after its last step, with predictions as its only output (`predicting`).

    Raises UserError where that checkpoint can't be read.
    """
    folder = RunDir(root).checkpoints
    ended = checkpoints.ended(folder)
    if ended is None:
        raise UserError(f"member '{root}' has not ended its training: go on with the same command")
    model: keras.Model = Scorer(member.config, dataset).model_of(
        checkpoints.load(checkpoints.path_of(folder, ended.last_step))
    )
    return predicting(model, dataset.spec)


def joined(members: Sequence[keras.Model], dataset: PackedDataset) -> keras.Model:
    """Return a model of raw inputs whose output is the mean of the members' predictions, float32 [B, outputs]."""
    fields = dataset.spec.inputs.items()
    inputs = as_arguments(
        {name: keras.Input(field.shape, name=name, dtype=field.network_dtype) for name, field in fields}
    )
    for index, member in enumerate(members):
        member.name = f"member_{index}"  # names in a model differ
    predictions = [member(inputs) for member in members]
    return keras.Model(inputs, keras.layers.Average(dtype="float32")(predictions), name="ensemble")


def save_joined(model: keras.Model, path: Path) -> None:
    """Save the model whole or not at all."""
    beside = path.with_name(f".{path.stem}.{secrets.token_hex(8)}.keras")
    try:
        model.save(beside)
        with beside.open("rb") as file:
            os.fsync(file.fileno())
        beside.replace(path)
    finally:
        beside.unlink(missing_ok=True)


def score(members: Sequence[keras.Model], dataset: PackedDataset) -> list[Scores]:
    """Return the scores of each member on the test set, then those of their mean prediction."""
    judge = judge_of(dataset.spec)
    calibrated = OBJECTIVES[dataset.spec.objective].activation == "softmax"
    tallies = [_Tally(judge, calibrated=calibrated) for _ in range(len(members) + 1)]
    predict = [
        tf.function(partial(member, training=False), autograph=False, reduce_retracing=True) for member in members
    ]
    inputs, target, fields = dataset.inputs("test"), dataset.target("test"), dataset.spec.inputs
    for start in range(0, len(target), BATCH_SIZE):
        batch = slice(start, start + BATCH_SIZE)
        arrays = as_arguments({name: _as_given(rows[batch], fields[name]) for name, rows in inputs.items()})
        targets = judge.targets(tf.constant(np.asarray(target[batch])))
        found = [one(arrays) for one in predict]
        for tally, prediction in zip(tallies, (*found, tf.add_n(found) / len(found))):
            tally.add(targets, prediction)
    return [tally.scores(len(target)) for tally in tallies]


def _as_given(rows: np.ndarray, field: Field) -> tf.Tensor:
    """Return rows as a network is given them: in its dtype."""
    return tf.cast(tf.constant(np.asarray(rows)), field.network_dtype)


class _Tally:
    """Sums over the test examples of one member, or of the ensemble."""

    def __init__(self, judge: Judge, *, calibrated: bool):
        self._judge = judge
        self._calibrated = calibrated
        self._metric = self._loss = 0.0
        self._sure: list[np.ndarray] = []
        self._right: list[np.ndarray] = []

    def add(self, targets: tf.Tensor, prediction: tf.Tensor) -> None:
        outputs = self._judge.outputs_of(prediction)
        metric = self._judge.metric(targets, outputs)
        self._metric += float(tf.reduce_sum(metric))
        self._loss += float(tf.reduce_sum(self._judge.losses(targets, outputs)))
        if self._calibrated:
            self._sure.append(tf.reduce_max(prediction, axis=-1).numpy())
            self._right.append(metric.numpy() > 0.5)

    def scores(self, count: int) -> Scores:
        off = None
        if self._sure:
            off = expected_calibration_error(np.concatenate(self._sure), np.concatenate(self._right))
        return Scores(self._metric / count, self._loss / count, off)
