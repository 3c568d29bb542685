"""Show scored checkpoints in TensorBoard: histograms of weights, and test images with their predictions."""

from __future__ import annotations

import numpy as np

from ps_cluster.evaluation.scorer import Scorer
from ps_cluster.runs.checkpoints import Checkpoint
from ps_cluster.training.tensorboard_files import EvaluationWriter

PICTURES = 16
# Limits on time and file size. A checkpoint of tutorial_cnn takes 0.1 s to write (0.7 s to score) and 80 kB.
MOST_VARIABLES, MOST_VALUES = 32, 20_000
GROWTH = 0.1  # a checkpoint is shown if its step exceeds the last shown step by at least this share of that step


class Insight:
    """Writes histograms of weights and of their changes, and a sheet of test images with predictions, to TensorBoard.

    A change is the difference from the last checkpoint whose histograms were written. With `evaluation.gradients` there
    are also histograms of the gradient on some fixed training examples (`Scorer.gradient`).
    """

    def __init__(self, writer: EvaluationWriter, scorer: Scorer):
        self._writer = writer
        self._scorer = scorer
        self._parts = _largest(scorer.variables)
        self._before: dict[str, np.ndarray] = {}
        self._step = 0

    def write(self, checkpoint: Checkpoint) -> None:
        """Write histograms and images of the checkpoint that was scored last.

        Write nothing if its step is less than 10 % larger than the step of the last checkpoint whose histograms were
        written.
        """
        if checkpoint.step - self._step < max(1, GROWTH * self._step):
            return
        self._step = checkpoint.step
        weights = {name: checkpoint.arrays["weights"][part] for name, part in self._parts.items()}
        for name, values in weights.items():
            self._writer.write_values(f"weights/{name}", values, checkpoint.step)
            if name in self._before:
                self._writer.write_values(f"changes of weights/{name}", values - self._before[name], checkpoint.step)
        self._before = weights
        if self._scorer.gradient is not None:
            gradient = self._scorer.gradient()
            for name, part in self._parts.items():
                self._writer.write_values(f"gradients/{name}", gradient[part], checkpoint.step)
        if self._scorer.unit == "images":
            from ps_cluster.report.prediction_sheet import draw_predictions

            self._writer.write_predictions(draw_predictions(self._scorer.answers(PICTURES)), checkpoint.step)


def _largest(sizes: dict[str, int]) -> dict[str, slice]:
    """Choose the largest variables. Return, by name, the positions of some of their values in the flat vector.

    Args:
      sizes: the size of each variable, by its name, in the order of the flat vector.
    """
    chosen = set(sorted(sizes, key=lambda name: -sizes[name])[:MOST_VARIABLES])
    ends = np.cumsum(list(sizes.values())).tolist()
    return {
        name: slice(end - size, end, -(-size // MOST_VALUES))
        for (name, size), end in zip(sizes.items(), ends)
        if name in chosen and size
    }
