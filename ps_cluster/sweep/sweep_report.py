"""Write the results of a sweep: results.json, best.yaml, the plots and one page. The test set is in none of them."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from rich.console import Console

from ps_cluster.catalogue.objectives import OBJECTIVES
from ps_cluster.files.writing import write_json, write_whole
from ps_cluster.files.yaml_files import dump_yaml
from ps_cluster.installation import PROGRAM
from ps_cluster.reporting.html_page import rendered
from ps_cluster.run.rows.scores import told
from ps_cluster.sweep.sweep_plan import SweepPlan
from ps_cluster.sweep.sweep_plots import make_sweep_plots
from ps_cluster.sweep.sweep_view import listed, text
from ps_cluster.sweep.trial_book import Trial, TrialBook

TRIALS = "trials"  # folder of their run directories
RESULTS, BEST, PAGE = "results.json", "best.yaml", "sweep.html"
_WORDS = {"completed": "completed", "pruned": "stopped early", "running": "not finished", "failed": "failed"}


def write_sweep_report(plan: SweepPlan, book: TrialBook, output: Path) -> None:
    """Write all files of the results into the sweep's folder."""
    trials, importances, best = book.ranked(), book.importances(), book.best()
    write_json(output / RESULTS, _results(plan, trials, importances))
    if best is not None:
        write_whole(output / BEST, _best_file(plan, best))
    objective = OBJECTIVES[plan.dataset.spec.objective]
    shown = (100.0, "accuracy [%]") if objective.has_accuracy else (1.0, "error")
    plots = make_sweep_plots(
        plan.space, trials, importances, scale=shown[0], axis=f"held-out {shown[1]}", larger=objective.has_accuracy
    )
    for plot in plots:
        write_whole(output / f"{plot.name}.png", plot.png)
        write_whole(output / f"{plot.name}.svg", plot.svg)
    page = rendered(
        __package__,
        "sweep.html",
        overview=_overview(plan, trials),
        plots=plots,
        keys=list(plan.space.axes),
        rows=[_row(plan, trial) for trial in trials],
        failed=[trial for trial in trials if trial.state == "failed"],
        best=best and {"values": listed(best.values), "score": _score(plan, best)},
        command=_command(output),
        trials_folder=shlex.quote(str(output / TRIALS)),
        written=datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
    )
    write_whole(output / PAGE, page)


def print_sweep_result(plan: SweepPlan, book: TrialBook, output: Path, console: Console) -> None:
    """Print the best trial, and where the results are."""
    best = book.best()
    console.print()
    if best is None:
        console.print("no trial has completed", style="bold yellow")
    else:
        among = sum(trial.state in ("completed", "pruned") for trial in book.trials)
        count = f"{plan.dataset.validation_examples:,} held-out {plan.dataset.spec.unit}"
        console.print(f"best of {among} trials: {listed(best.values)}", style="bold", soft_wrap=True)
        console.print(f"{_score(plan, best)} on {count} (chosen on them, so a little too high)", soft_wrap=True)
        console.print(f"train with it: {_command(output)}", soft_wrap=True)
    console.print(f"all trials:    {output / PAGE}", soft_wrap=True)


def _results(plan: SweepPlan, trials: Sequence[Trial], importances: dict[str, float]) -> dict[str, Any]:
    return {
        "schema": 1,
        "method": plan.method.name,
        "dataset": plan.dataset.name,
        "dataset_kind": plan.dataset.kind,
        "held_out_examples": plan.dataset.validation_examples,
        "metric": OBJECTIVES[plan.dataset.spec.objective].field,
        "settings": plan.sweep.settings,
        "trials": [
            {"trial": trial.number, "state": trial.state, "held_out_score": trial.score, "values": dict(trial.values)}
            | ({"why": trial.why} if trial.why else {})
            for trial in trials
        ],
        "importances": importances,
    }


def _best_file(plan: SweepPlan, best: Trial) -> str:
    count = f"{plan.dataset.validation_examples:,} held-out training {plan.dataset.spec.unit}"
    comment = f"# The best of a sweep: trial {best.number}, {_score(plan, best)} on {count}.\n"
    return comment + dump_yaml(plan.found(best.values))


def _score(plan: SweepPlan, trial: Trial) -> str:
    has_accuracy = OBJECTIVES[plan.dataset.spec.objective].has_accuracy
    return (told(trial.score, None) if has_accuracy else told(None, trial.score)) or "–"


def _overview(plan: SweepPlan, trials: Sequence[Trial]) -> dict[str, str]:
    dataset = plan.dataset
    states = [trial.state for trial in trials]
    counts = ", ".join(f"{states.count(state)} {word}" for state, word in _WORDS.items() if state in states)
    return {
        "method": f"{plan.method.name}: {plan.method.says}",
        "trials": f"{counts or 'none'} of {plan.count} planned",
        "data set": f"{dataset.name} ({dataset.kind}): {dataset.train_examples:,} {dataset.spec.unit} to train on",
        "judged on": f"{dataset.validation_examples:,} training {dataset.spec.unit} that are held out",
        "all trials have": listed(plan.sweep.settings),
    }


def _row(plan: SweepPlan, trial: Trial) -> list[str]:
    values = (text(trial.values[key]) for key in plan.space.axes)
    return [f"trial {trial.number}", _score(plan, trial), _WORDS[trial.state], *values]


def _command(output: Path) -> str:
    return f"{PROGRAM} run --config {shlex.quote(str(output / BEST))}"
