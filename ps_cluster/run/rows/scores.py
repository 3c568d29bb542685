"""Files that the evaluator reads and writes: scores, the best one, and the mark that training has ended."""

from __future__ import annotations

from typing import Literal

from ps_cluster.run.rows.base import Count, Loss, Number, Row, Seconds, Share

Ending = Literal["completed", "stopped"]
"""How a training ended that did not fail."""


class ScoreRow(Row):
    """A checkpoint scored on the test images, as summary.json has it.

    Attributes:
      test_loss: None if not finite.
      validation_accuracy: on held-out training images; None without any.
      augmented_test_accuracy: of the mean over six views of each image; None if not asked for.
      train_seconds, examples: None if the checkpoint does not have them.
    """

    step: Count
    test_accuracy: Share
    test_loss: Loss | None = None
    validation_accuracy: Share | None = None
    augmented_test_accuracy: Share | None = None
    train_seconds: Number | None = None
    examples: Count | None = None


class EvaluationRow(ScoreRow):
    """A row of metrics/evaluation.jsonl. `seconds`: duration of the scoring."""

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
    """checkpoints/ended.json: the checkpoint of `last_step` is the last one."""

    last_step: Count
    outcome: Ending
