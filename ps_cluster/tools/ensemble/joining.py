"""Join the networks of trained members: one model that averages their predictions, and how good all of them are."""

from __future__ import annotations

import os
import secrets
import shlex
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from functools import partial
from math import isfinite
from pathlib import Path
from statistics import fmean
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from rich.console import Console
from rich.table import Table

from ps_cluster.config.objectives import OBJECTIVES, Field
from ps_cluster.data.packed import PackedDataset
from ps_cluster.errors import UserError
from ps_cluster.evaluation.scorer import Scorer
from ps_cluster.files.values import number_text
from ps_cluster.files.writing import write_json, write_whole
from ps_cluster.installation import PROGRAM
from ps_cluster.models.build import predicting
from ps_cluster.models.flat import as_arguments
from ps_cluster.report.analysis import expected_calibration_error
from ps_cluster.report.pages import rendered
from ps_cluster.runs import checkpoints
from ps_cluster.runs.run_dir import RunDir
from ps_cluster.tools.ensemble.plan import Ensemble, Member
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


# The scores of an ensemble's members: a table for people, and one for programs.


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


def mean_of(scores: Sequence[Scores]) -> Scores:
    """Return the mean of each score: what one member is worth on average."""
    off = [one.calibration_error for one in scores if one.calibration_error is not None]
    return Scores(fmean(one.metric for one in scores), fmean(one.loss for one in scores), fmean(off) if off else None)


def write_scores(
    file: Path, ensemble: Ensemble, members: Sequence[Member], scores: Sequence[Scores], *, field: str, dataset: str
) -> None:
    """Write ensemble.json. `scores`: of the members, then of the ensemble. `field`: "accuracy" or "error"."""

    def row(one: Scores) -> dict[str, Any]:
        named = {name: value if value is None or isfinite(value) else None for name, value in asdict(one).items()}
        return {f"test_{field}": named.pop("metric"), "test_loss": named.pop("loss"), **named}

    *of_members, of_ensemble = scores
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
                **row(one),
            }
            for member, one in zip(members, of_members)
        ],
        "mean": row(mean_of(of_members)),
        "ensemble": row(of_ensemble),
    }
    write_json(file, content)


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
    def headings(self) -> list[str]:
        calibrated = self.scores[-1].calibration_error is not None
        return ["member", f"test {self.field}", "loss", *(["calibration error"] * calibrated)]

    @property
    def rows(self) -> list[list[str]]:
        """Each member, their mean, and the ensemble."""
        *of_members, of_ensemble = self.scores
        named = zip(
            (*self.names, "mean of the members", "the ensemble"), (*of_members, mean_of(of_members), of_ensemble)
        )
        return [[name, self.metric(one), f"{one.loss:.4f}", *_calibration(one)] for name, one in named]

    def metric(self, one: Scores) -> str:
        return f"{one.metric:.2%}" if self.field == "accuracy" else number_text(one.metric)

    def print_to(self, console: Console) -> None:
        """Print the table."""
        table = Table(title="on the test set", title_justify="left")
        for place, heading in enumerate(self.headings):
            table.add_column(heading, justify="right" if place else "left")
        *of_members, of_mean, of_ensemble = self.rows
        for row in of_members:
            table.add_row(*row)
        table.add_section()
        table.add_row(*of_mean)
        table.add_row(*of_ensemble, style="bold")
        console.print()
        console.print(table)


def _calibration(one: Scores) -> list[str]:
    return [] if one.calibration_error is None else [f"{one.calibration_error:.2%}"]


# Write the page of an ensemble: each member, their mean and the ensemble on the test set.


def write_ensemble_page(
    file: Path, ensemble: Ensemble, table: ScoreTable, dataset: PackedDataset, *, model: Path, members: Path
) -> None:
    """Write the page whole. `model`: the joined one. `members`: the folder of their run directories."""
    page = rendered(
        __package__,
        "ensemble.html",
        written=datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        is_generated=dataset.kind == "synthetic",
        unit=dataset.spec.unit,
        headline=_headline(table),
        headings=table.headings,
        rows=table.rows,
        overview=_overview(ensemble, dataset),
        model=model,
        runs_command=f"{PROGRAM} runs {shlex.quote(str(members))}",
    )
    write_whole(file, page)


def _headline(table: ScoreTable) -> str:
    *of_members, of_ensemble = table.scores
    best = _best(of_members, larger=table.field == "accuracy")
    told = [table.metric(one) for one in (of_ensemble, mean_of(of_members), best)]
    return f"The ensemble has a test {table.field} of {told[0]}; its members have {told[1]} on average, the best {told[2]}."


def _best(scores: Sequence[Scores], *, larger: bool) -> Scores:
    return max(scores, key=lambda one: one.metric if larger else -one.metric)


def _overview(ensemble: Ensemble, dataset: PackedDataset) -> dict[str, str]:
    settings = ", ".join(f"{key}={value}" for key, value in ensemble.settings.items())
    return {
        "members": f"{ensemble.count}: {ensemble.seeds} of each of {', '.join(ensemble.models)}",
        "training examples": f"{ensemble.split} of {dataset.train_examples:,} {dataset.spec.unit}",
        "data set": f"{dataset.name} ({dataset.kind}), tested on {dataset.test_examples:,} {dataset.spec.unit}",
        "all members have": settings,
    }
