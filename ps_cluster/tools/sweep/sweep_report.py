"""Write the results of a sweep (results.json and best.yaml), and print the best trials, without scores of the test set."""

from __future__ import annotations

import shlex
from pathlib import Path

from rich.console import Console

from ps_cluster.files.values import one_line
from ps_cluster.files.writing import write_json, write_whole
from ps_cluster.files.yaml_files import dump_yaml
from ps_cluster.installation import PROGRAM
from ps_cluster.report.terminal import FOLD, LEFT, RIGHT, plain_table
from ps_cluster.runs.result_rows import MetricText
from ps_cluster.tools.sweep.space import Values
from ps_cluster.tools.sweep.sweep_plan import SweepPlan
from ps_cluster.tools.sweep.trial_book import TrialBook

TRIALS_FOLDER = "trials"  # the folder of the trials' run directories
JOURNAL, RESULTS, BEST = "trials.journal", "results.json", "best.yaml"
MOST_PRINTED = 10  # trials in the printed table
_WORDS = {"completed": "completed", "pruned": "stopped early", "running": "not finished", "failed": "failed"}


def write_sweep_report(plan: SweepPlan, book: TrialBook, output: Path) -> None:
    """Write results.json into the sweep's folder and, if a trial has completed, best.yaml."""
    content = {
        "schema": 1,
        "method": plan.method.name,
        "dataset": plan.dataset.name,
        "dataset_kind": plan.dataset.kind,
        "held_out_examples": plan.dataset.validation_examples,
        "metric": plan.monitor.name,
        "smaller_is_better": plan.smaller_is_better,
        "settings": plan.sweep.settings,
        "trials": [
            {"trial": trial.number, "state": trial.state, "held_out_score": trial.score, "values": dict(trial.values)}
            | ({"why": trial.why} if trial.why else {})
            for trial in book.ranked()
        ],
    }
    write_json(output / RESULTS, content)
    if best := book.best():
        comment = f"# The best of a sweep: trial {best.number}, {score_text(plan, best.score)} on {_held_out(plan)}.\n"
        write_whole(output / BEST, comment + dump_yaml(plan.found(best.values)))


def print_sweep_result(plan: SweepPlan, book: TrialBook, output: Path, console: Console) -> None:
    """Print the best trials, why some trials failed, and where the results are."""
    ranked, best = book.ranked(), book.best()
    table = plain_table(trial=RIGHT, **{"held-out score": RIGHT}, state=LEFT, values=FOLD)
    for trial in ranked[:MOST_PRINTED]:
        why = f": {one_line(trial.why)}" if trial.why else ""
        table.add_row(str(trial.number), score_text(plan, trial.score), _WORDS[trial.state] + why, listed(trial.values))
    if len(ranked) > MOST_PRINTED:
        table.caption = f"and {len(ranked) - MOST_PRINTED} more in {RESULTS}"
    console.print()
    console.print(table)
    lines = [
        f"all trials:    {output / RESULTS}",
        f"as curves:     optuna-dashboard {shlex.quote(str(output / JOURNAL))}",
    ]
    if best is None:
        console.print("no trial has completed", style="bold yellow")
    else:
        console.print(f"best trial:    {listed(best.values)}", style="bold", soft_wrap=True)
        lines = [
            f"its score:     {score_text(plan, best.score)} on {_held_out(plan)} (a little too good, because the trial was "
            "chosen by this score)",
            f"train with it: {PROGRAM} run --config {shlex.quote(str(output / BEST))}",
            *lines,
        ]
    for line in lines:
        console.print(line, soft_wrap=True)


def score_text(plan: SweepPlan, score: float | None) -> str:
    """Return a score in words, e.g. "accuracy 91.20%"."""
    return "–" if score is None else str(MetricText.of(plan.monitor.name, score))


def listed(values: Values) -> str:
    """Return values as text, e.g. "optimizer.learning_rate=0.05, training.batch_size_per_worker=64"."""
    return ", ".join(
        f"{key}={value:.4g}" if isinstance(value, float) else f"{key}={value}" for key, value in values.items()
    )


def _held_out(plan: SweepPlan) -> str:
    return f"{plan.dataset.validation_examples:,} held-out training {plan.dataset.spec.unit}"
