"""Write the summary and print the closing table when a run ends, on one machine or on several."""

from __future__ import annotations

import contextlib

from ps_cluster.config import RunConfig
from ps_cluster.errors import RunFailed, UserError
from ps_cluster.files import locks
from ps_cluster.files.json_files import read_json
from ps_cluster.notices import Notify
from ps_cluster.report import closing_table, summary
from ps_cluster.report.drawing import try_to_draw_results
from ps_cluster.report.summary import EndedRun
from ps_cluster.report.terminal import make_console, print_error, print_line
from ps_cluster.runs import logs
from ps_cluster.runs.monitor import EarlyStopping
from ps_cluster.runs.result_rows import Outcome, TrainingResult
from ps_cluster.runs.run_dir import RunDir


def training_result(run_dir: RunDir) -> TrainingResult | None:
    """Return the result that the leader wrote when training last ended cleanly, or None if there is none."""
    with contextlib.suppress(FileNotFoundError, UserError):
        return read_json(run_dir.training_result, TrainingResult)
    return None


def early_stopping_of(run_dir: RunDir, config: RunConfig) -> EarlyStopping:
    """Return the early-stopping rule for a run that starts or resumes.

    If the run has ended cleanly before, the scores up to that end do not stop it again.
    """
    before = training_result(run_dir)
    return EarlyStopping(config, before.updates.applied if before else -1)


def why_broken(outcome: Outcome, updates: int) -> str:
    """Return a line that says why a training is broken (`outcome` is "diverged" or "nan_loss"), and what to do."""
    if outcome == "nan_loss":
        return (
            f"the loss was NaN or infinite in every step of {updates:,} updates, so the training can't be judged: look for "
            "NaN in the inputs and targets, and for a logarithm of 0 or a division by 0 in the loss "
            "(docs/extending.md#if-it-does-not-learn)"
        )
    return (
        f"the training diverged: after {updates:,} updates, weights are NaN or infinite; begin a new run with a lower "
        "optimizer.learning_rate or with optimizer.global_clip_norm=1 (docs/extending.md#if-it-does-not-learn)"
    )


def write_ending(config: RunConfig, run_dir: RunDir, ended: EndedRun, notify: Notify, *, draw: bool = True) -> int:
    """Write the summary and print the closing table.

    Return the exit code: 1 if the proof (the check of the ledger after training) has found an error, else 0.
    `draw`: whether to draw the page of results as well. Raises RunFailed if the summary can't be written.
    """
    try:
        with locks.briefly_locked(run_dir.summary_lock):
            written = summary.write_summary(run_dir, ended, notify)
    except OSError as error:
        raise RunFailed(f"the summary '{run_dir.summary}' can't be written: {error.strerror}") from error
    console = make_console()
    closing_table.print_numbers(written, console)
    if not logs.chosen().is_text:
        print_line(closing_table.as_line(written))
    if draw and config.evaluation.draw_results:
        try_to_draw_results(run_dir, notify)
    closing_table.print_places(written, run_dir, console)
    if (proof := written.proof) is None or proof.holds:
        return 0
    print_error(f"the proof of this run fails: {proof.problem} (details: {run_dir.summary})")
    return 1
