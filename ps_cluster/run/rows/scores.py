"""Files that the evaluator reads and writes: scores, the best one, and the mark that training has ended."""

from __future__ import annotations

import math
from typing import Annotated, Any, Literal, cast

from pydantic import Field

from ps_cluster.catalogue.datasets import MOST_CLASSES
from ps_cluster.files.number_text import number_text
from ps_cluster.run.rows.base import Count, Loss, Number, Row, Seconds, Share, Word
from ps_cluster.run.rows.dataset import Examples, Name

Ending = Literal["completed", "stopped", "diverged"]
"""The end of a training that did not fail."""


class Measured(Row):
    """A checkpoint's metric, as accuracies (shares of what is right) or as errors (in the target's units).

    Attributes:
      test_accuracy, test_error: over the test examples; one is None, both if it is not finite. test_loss: None if not
        finite.
      validation_accuracy, validation_error: over held-out training examples; None without any.
    """

    step: Count
    test_accuracy: Share | None = None
    test_error: Loss | None = None
    test_loss: Loss | None = None
    validation_accuracy: Share | None = None
    validation_error: Loss | None = None

    @property
    def merit(self) -> float:
        """The value that the best model is chosen by, larger is better: on held-out examples if any, else on test.

        It is minus infinity for a model whose loss is not finite: such a model is never the best.
        """
        if self.test_loss is None:
            return -math.inf
        for accuracy, error in (
            (self.validation_accuracy, self.validation_error),
            (self.test_accuracy, self.test_error),
        ):
            if accuracy is not None or error is not None:
                return accuracy if accuracy is not None else -cast(float, error)
        return -math.inf

    @property
    def test(self) -> str:
        """The metric over the test examples in words, e.g. "accuracy 91.20%"."""
        return told(self.test_accuracy, self.test_error) or "metric not a finite number"

    @property
    def validation(self) -> str | None:
        """The metric over held-out training examples in words; None without any."""
        return told(self.validation_accuracy, self.validation_error)


def told(accuracy: float | None, error: float | None) -> str | None:
    """Return "accuracy 91.20%" or "error 0.123", whichever there is; None for neither."""
    if accuracy is not None:
        return f"accuracy {accuracy:.2%}"
    return None if error is None else f"error {number_text(error)}"


class ScoreRow(Measured):
    """A scored checkpoint, as summary.json has it.

    Attributes:
      augmented_test_accuracy: of the mean over views of each example; None if not asked for.
      compiled: over the test examples, the metrics that a user's model was compiled with, by name.
      train_seconds, examples: None if the checkpoint does not have them.
    """

    augmented_test_accuracy: Share | None = None
    compiled: dict[Word, Loss] = {}
    train_seconds: Number | None = None
    examples: Count | None = None


class EvaluationRow(ScoreRow):
    """A row of metrics/evaluation.jsonl. `seconds`: duration of the scoring."""

    time: Number = 0.0
    seconds: Seconds = 0.0
    best: bool = False

    @property
    def fields(self) -> dict[str, Any]:
        """The values of a log line about it."""
        return self.model_dump(exclude={"time"}, exclude_none=True)


class BestRecord(Measured):
    """best/best.json: the score of best/model.keras."""


class PredictionsHeader(Row):
    """The header of metrics/predictions.safetensors: what the network of one checkpoint said of each test example.

    `classes`: names by label; empty for an objective without any. `arrays`: their names (`Judge.kept`).
    """

    step: Count
    objective: Name
    unit: Word = "examples"
    examples: Examples
    classes: Annotated[list[Word], Field(max_length=MOST_CLASSES)] = []
    arrays: Annotated[list[Annotated[str, Field(pattern=r"^[a-z_]{1,40}$")]], Field(max_length=20)]


class EndedMark(Row):
    """checkpoints/ended.json: the checkpoint of `last_step` is the last one.

    Attributes:
      goes_on: the leader has only made room, and another one will go on: more checkpoints may come.
      epoch: of the leader (run/leaders.py). Where there are states of a later one, the mark does not count.
    """

    last_step: Count
    outcome: Ending
    goes_on: bool = False
    epoch: Count = 0
