"""What the evaluator reads and leaves: scores, the best one, and the mark that training has ended."""

from __future__ import annotations

from typing import Literal

from ps_cluster.rows.base import Count, Loss, Number, Row, Seconds, Share


class Score(Row):
    """A checkpoint scored on the test images, as summary.json has it.

    Attributes:
      test_loss: None where it was not finite.
      validation_accuracy: on the training images held out; None where there are none.
      augmented_test_accuracy: that of the mean over six views of each image; None where nobody asked for it.
      train_seconds, examples: None where the checkpoint does not tell.
    """

    step: Count
    test_accuracy: Share
    test_loss: Loss | None = None
    validation_accuracy: Share | None = None
    augmented_test_accuracy: Share | None = None
    train_seconds: Number | None = None
    examples: Count | None = None


class EvaluationRow(Score):
    """A row of metrics/evaluation.jsonl. `seconds`: that the scoring took."""

    time: Number = 0.0
    seconds: Seconds = 0.0
    best: bool = False


class BestRecord(Row):
    """best/best.json: the score of best/model.keras."""

    step: Count
    test_accuracy: Share
    test_loss: Loss | None = None
    validation_accuracy: Share | None = None


class EndedMark(Row):
    """checkpoints/ended.json: no checkpoint comes after that of `last_step`."""

    last_step: Count
    outcome: Literal["completed", "stopped"]
