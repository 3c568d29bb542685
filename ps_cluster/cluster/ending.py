"""The end of a run, on one machine or on several: its outcome, what is written and printed of it, its exit code."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ps_cluster.config import RunConfig
from ps_cluster.errors import RunFailed, UserError
from ps_cluster.files import locks
from ps_cluster.files.json_files import read_json
from ps_cluster.reporting import closing_table, summary
from ps_cluster.reporting.results.after_run import try_to_draw
from ps_cluster.reporting.terminal import make_console, print_error, print_line
from ps_cluster.run import log_formats
from ps_cluster.run.rows.training import TrainingResult
from ps_cluster.run.run_dir import RunDir


@dataclass(frozen=True)
class Ending:
    """The end of a run; `message` says what went wrong, on one line."""

    outcome: str  # "completed" | "stopped" | "diverged" | "failed"
    exit_code: int = 0
    message: str | None = None
    user_error: bool = False


def diverged_line(updates: int) -> str:
    """Return what to do about a training whose weights are no longer finite, on one line."""
    return (
        f"the training diverged: after {updates:,} updates weights are NaN or infinite; begin a new run with a lower "
        "optimizer.learning_rate or with optimizer.global_clip_norm=1 (docs/own-network.md#if-it-does-not-learn)"
    )


def training_outcome(run_dir: RunDir) -> str:
    """Return the outcome that the leader wrote: "completed", "stopped" or "diverged"; "failed" where it wrote none."""
    try:
        result = read_json(run_dir.training_result, TrainingResult)
    except (FileNotFoundError, UserError):
        return "failed"
    return "diverged" if result.diverged else "completed" if result.completed else "stopped"


def write_ending(
    config: RunConfig, run_dir: RunDir, notify: Callable[[str], None], *, draw: bool = True, **facts: Any
) -> int:
    """Write the summary and the results page, and print the closing table. Return the exit code that the proof asks for.

    Args:
      draw: also the page of results.
      facts: the other arguments of `write_summary`.
    Raises:
      RunFailed: the summary can't be written.
    """
    try:
        with locks.in_turn(run_dir.summary_lock):
            written = summary.write_summary(run_dir, notify=notify, **facts)
    except OSError as error:
        raise RunFailed(f"the summary '{run_dir.summary}' can't be written: {error.strerror}") from error
    console = make_console()
    closing_table.print_numbers(written, console)
    if not log_formats.chosen().is_text:
        print_line(closing_table.as_line(written))
    if draw and config.evaluation.draw_results:
        try_to_draw(run_dir, notify)
    closing_table.print_places(written, run_dir, console)
    if (proof := written["proof"]) is None or proof["holds"]:
        return 0
    print_error(f"the ledger is not exact: {proof['problems'][0]} (all: {run_dir.summary})")
    return 1
