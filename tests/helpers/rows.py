"""Build rows that a leader or an evaluator writes."""

from ps_cluster.runs.result_rows import EvaluationRow, ProgressRow


def progress_row(applied: int = 0, phase: str = "training", **fields) -> ProgressRow:
    """Return a progress row with as many updates scheduled as applied, unless `fields` say otherwise."""
    return ProgressRow(**{"phase": phase, "applied": applied, "scheduled": applied} | fields)


def score_row(step: int, accuracy: float | None = 0.5, **fields) -> EvaluationRow:
    """Return the score of a checkpoint."""
    return EvaluationRow(**{"step": step, "test_accuracy": accuracy, "test_loss": 0.9} | fields)
