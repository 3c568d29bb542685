"""Join the networks of trained members: one model that averages their predictions, and how good all of them are."""

from __future__ import annotations

import os
import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from math import isfinite
from pathlib import Path
from statistics import fmean

import keras
import numpy as np
import tensorflow as tf
from rich.console import Console
from rich.table import Table

from ps_cluster.config.objectives import OBJECTIVES
from ps_cluster.data.packed import PackedDataset
from ps_cluster.errors import UserError
from ps_cluster.evaluation.scorer import Scorer
from ps_cluster.files.values import number_text
from ps_cluster.files.writing import write_json
from ps_cluster.models.build import predicting
from ps_cluster.models.flat import as_arguments
from ps_cluster.models.judges import judge_of
from ps_cluster.report.analysis import Calibration
from ps_cluster.runs import checkpoints
from ps_cluster.runs.run_dir import RunDir
from ps_cluster.tools.sweep.ensemble import Ensemble, EnsembleMember

BATCH_SIZE = 100


def load_member(member: EnsembleMember, root: Path, dataset: PackedDataset) -> keras.Model:
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
    predict = [
        tf.function(partial(member, training=False), autograph=False, reduce_retracing=True) for member in members
    ]
    inputs, target, fields = dataset.inputs("test"), dataset.target("test"), dataset.spec.inputs
    found: list[list[np.ndarray]] = [[] for _ in range(len(members) + 1)]  # of each: float32 [3, B], by batches
    for start in range(0, len(target), BATCH_SIZE):
        batch = slice(start, start + BATCH_SIZE)
        rows = {name: tf.constant(np.asarray(all_rows[batch])) for name, all_rows in inputs.items()}
        arrays = as_arguments({name: tf.cast(row, fields[name].network_dtype) for name, row in rows.items()})
        targets = judge.targets(tf.constant(np.asarray(target[batch])))
        predictions = [one(arrays) for one in predict]
        for of_one, prediction in zip(found, (*predictions, tf.add_n(predictions) / len(predictions))):
            outputs = judge.outputs_of(prediction)
            metric, losses = judge.metric(targets, outputs), judge.losses(targets, outputs)
            sure = tf.reduce_max(prediction, axis=-1) if calibrated else tf.zeros_like(metric)
            of_one.append(np.stack([metric, losses, sure]))
    return [_scores(np.concatenate(of_one, axis=1), calibrated=calibrated) for of_one in found]


def _scores(found: np.ndarray, *, calibrated: bool) -> Scores:
    metric, losses, sure = found.astype(np.float64)
    off = Calibration.of(sure, metric > 0.5).expected_error if calibrated else None
    return Scores(float(metric.mean()), float(losses.mean()), off)


@dataclass(frozen=True)
class Scores:
    """Over the test examples.

    Attributes:
      metric: the objective's, an accuracy (a share) or an error. loss: the objective's, without label smoothing.
      calibration_error: the expected calibration error of a classification, Guo et al. 2017, eq. 3; None for others.
    """

    metric: float
    loss: float
    calibration_error: float | None


@dataclass(frozen=True)
class ScoreTable:
    """The scores in words.

    Attributes:
      names: of the members. scores: of the members, then of the ensemble. field: "accuracy" or "error".
    """

    names: tuple[str, ...]
    scores: tuple[Scores, ...]
    field: str

    @property
    def mean(self) -> Scores:
        """The mean of each score of the members: what one of them is worth on average."""
        members = self.scores[:-1]
        off = [one.calibration_error for one in members if one.calibration_error is not None]
        means = fmean(one.metric for one in members), fmean(one.loss for one in members)
        return Scores(*means, fmean(off) if off else None)

    @property
    def headings(self) -> list[str]:
        calibrated = self.scores[-1].calibration_error is not None
        return ["member", f"test {self.field}", "loss", *(["calibration error"] * calibrated)]

    @property
    def rows(self) -> list[list[str]]:
        """Each member, their mean, and the ensemble."""
        *of_members, of_ensemble = self.scores
        names = (*self.names, "mean of the members", "the ensemble")
        rows = []
        for name, one in zip(names, (*of_members, self.mean, of_ensemble), strict=True):
            off = [] if one.calibration_error is None else [f"{one.calibration_error:.2%}"]
            rows.append([name, self._metric(one), f"{one.loss:.4f}", *off])
        return rows

    @property
    def headline(self) -> str:
        *of_members, of_ensemble = self.scores
        best = (max if self.field == "accuracy" else min)(of_members, key=lambda one: one.metric)
        ensemble, mean, best_one = map(self._metric, (of_ensemble, self.mean, best))
        return f"The ensemble has a test {self.field} of {ensemble}; its members have {mean} on average, the best {best_one}."

    def _metric(self, one: Scores) -> str:
        return f"{one.metric:.2%}" if self.field == "accuracy" else number_text(one.metric)

    def print_to(self, console: Console) -> None:
        """Print the table."""
        table = Table(title="on the test set", title_justify="left")
        for place, heading in enumerate(self.headings):
            table.add_column(heading, justify="right" if place else "left")
        for row in self.rows:
            table.add_row(*row)
        console.print()
        console.print(table)

    def write(self, file: Path, ensemble: Ensemble, members: Sequence[EnsembleMember], *, dataset: str) -> None:
        """Write ensemble.json, for programs."""
        *of_members, of_ensemble = self.scores
        content = {
            "schema": 1,
            "dataset": dataset,
            **ensemble.content(),
            "members": [
                {
                    "run": f"members/{member.name}",
                    "model": member.config.model.name,
                    "seed": member.config.training.seed,
                    "sample": member.config.training.sample,
                    **self._named(one),
                }
                for member, one in zip(members, of_members)
            ],
            "mean": self._named(self.mean),
            "ensemble": self._named(of_ensemble),
        }
        write_json(file, content)

    def _named(self, one: Scores) -> dict[str, float | None]:
        names = (f"test_{self.field}", "test_loss", "calibration_error")
        values = (one.metric, one.loss, one.calibration_error)
        return {name: value if value is None or isfinite(value) else None for name, value in zip(names, values)}
