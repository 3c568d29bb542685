"""Rows hold what a training can come to."""

import numpy as np

from ps_cluster.runs.result_rows import EvaluationRow, ProgressRow

LARGEST = float(np.finfo(np.float32).max)


def test_a_loss_that_grows_as_far_as_its_type_goes_is_still_written_down():
    row = ProgressRow(phase="training", loss=LARGEST)
    score = EvaluationRow(step=1, test_accuracy=0.1, test_loss=LARGEST)
    assert ProgressRow.model_validate_json(row.model_dump_json()).loss == LARGEST
    assert EvaluationRow.model_validate_json(score.model_dump_json()).test_loss == LARGEST
